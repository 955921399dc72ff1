"""State in NumPy what the kernels of sparse attention in MindSpore's wheel compute.

A query sees the keys of its own block of 64, and of every block the 16 keys that its head chooses (far keys).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from emulator.tests.support.mindspore_problems import HALF, SINGLE, U16, Problem, described, normal, nz, product, zn


def seen(sequence: int, head: int) -> np.ndarray:
    """Return the keys that each block of queries sees, the far keys first."""
    own = np.arange(sequence).reshape(-1, 64)
    start = 16 * (3 - head % 4)
    far = own[:, start : start + 16].reshape(-1)
    return np.concatenate([np.tile(far, (len(own), 1)), own], axis=1)


def by_head(matrix: np.ndarray, head: int) -> np.ndarray:
    """Return the 128 columns of a head of a (sequence, heads * 128) matrix."""
    return matrix[:, 128 * head : 128 * head + 128]


def in_blocks(matrix: np.ndarray) -> np.ndarray:
    """Return the rows of a matrix in blocks of 64."""
    return matrix.reshape(-1, 64, matrix.shape[-1])


def swapped(matrices: np.ndarray) -> np.ndarray:
    """Return the transposed matrix of every block."""
    return matrices.swapaxes(-1, -2)


def parted(per_head: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return what belongs to local and to far keys, as MindSpore's kernels hold them: one batch of heads."""
    together = np.stack(per_head)[None]
    return nz(together[..., -64:]), nz(together[..., :-64])


def random_weights(generator: np.random.Generator, sequence: int, heads: int) -> dict[str, np.ndarray]:
    """Return attention weights, far keys first, and what they meet."""
    return {
        "weights": np.abs(normal(generator, heads, sequence // 64, 64, sequence // 4 + 64, scale=0.1)),
        "value": normal(generator, sequence, heads * 128),
        "out_grad": normal(generator, heads, sequence, 128),
    }


def dsd(generator: np.random.Generator, sequence: int, heads: int) -> Problem:
    """Return the problem of dsd_matmul: weights, local and far, times value."""
    given = random_weights(generator, sequence, heads)
    results = [
        product(given["weights"][head], by_head(given["value"], head)[seen(sequence, head)], half=True)
        for head in range(heads)
    ]
    truth, bound = (np.stack(parts).reshape(heads, sequence, 128) for parts in zip(*results))
    (w1, w2), v = parted(list(given["weights"])), zn(given["value"])
    return Problem(
        {"input_w1": described(w1), "input_w2": described(w2), "input_v": described(v)},
        {"w1_gm": w1, "w2_gm": w2, "v_gm": v},
        {"output_gm": (nz(truth)[None], nz(bound)[None])},
    )


def dsd_back(generator: np.random.Generator, sequence: int, heads: int) -> Problem:
    """Return the problem of dsd_matmul's gradient: of value and of both kinds of weights."""
    given = random_weights(generator, sequence, heads)
    weights_grad, value_grad = [], np.zeros((2, sequence, heads * 128))
    for head in range(heads):
        keys, out_grad = seen(sequence, head), in_blocks(given["out_grad"][head])
        weights_grad.append(product(out_grad, swapped(by_head(given["value"], head)[keys]), half=True))
        for target, part in zip(value_grad, product(swapped(given["weights"][head]), out_grad)):
            np.add.at(by_head(target, head), keys, part)
    value_grad[1] += np.abs(value_grad[0]) * U16 * 1.01 + 2.0**-25
    (local, far), (local_bound, far_bound) = (parted(list(parts)) for parts in zip(*weights_grad))
    w1, w2 = parted(list(given["weights"]))
    v, d_a = zn(given["value"]), nz(given["out_grad"])[None]
    feeds = {"w1_gm": w1, "w2_gm": w2, "v_gm": v, "a_gm": np.zeros_like(d_a), "d_a_gm": d_a}
    return Problem(
        {name: described(array) for name, array in feeds.items()},
        feeds,
        {
            "d_w1_gm": (local, local_bound),
            "d_w2_gm": (far, far_bound),
            "d_v_gm": (zn(value_grad[0]), zn(value_grad[1])),
        },
    )


def random_inputs(generator: np.random.Generator, sequence: int, heads: int) -> dict[str, np.ndarray]:
    """Query, key and both masks of an attention with local and far keys."""
    query, key = (normal(generator, sequence, heads * 128, scale=0.3) for _ in range(2))
    return {
        "query": query,
        "key": key,
        "local_mask": normal(generator, 64, sequence, dtype=SINGLE, scale=0.5),
        "far_mask": normal(generator, sequence, sequence // 4, dtype=SINGLE, scale=0.5),
    }


def dds(generator: np.random.Generator, sequence: int, heads: int) -> Problem:
    """Compute softmax over the keys of a query's block and the far keys."""
    given = random_inputs(generator, sequence, heads)
    local_mask = given["local_mask"].reshape(64, -1, 64).swapaxes(0, 1)
    masks = np.concatenate([in_blocks(given["far_mask"]), local_mask], axis=2)
    truth, bounds = [], []
    for head in range(heads):
        query, key = (by_head(given[name], head).astype(np.float64) for name in ("query", "key"))
        scores = in_blocks(query) @ swapped(key[seen(sequence, head)]) + masks
        top = scores.max(axis=2, keepdims=True)
        exponents = np.exp(scores - top)
        weights = exponents / exponents.sum(axis=2, keepdims=True)
        # Score, shifted score, exponential, reciprocal and product are rounded to float16. The shift is one of
        # the chunk maxima, so it may be smaller than the maximum.
        largest, least = np.abs(scores).max(axis=(1, 2), keepdims=True), scores.min(axis=(1, 2), keepdims=True)
        truth.append(weights)
        bounds.append(weights * U16 * (2 * largest + (top - least) + 6) + 2.0**-24)
    (local, far), (local_bound, far_bound) = parted(truth), parted(bounds)
    q, k, nz_local_mask, nz_far_mask = (nz(given[name]) for name in ("query", "key", "local_mask", "far_mask"))
    return Problem(
        {
            "q": described(q),
            "k": described(k),
            "local_mask": described(given["local_mask"]),
            "global_mask": described(nz_far_mask),
            "local_prob": {},
            "global_prob": {},
            "bs": 1,
            "heads": heads,
        },
        {"mat_q": q, "mat_k": k, "mat_lm": nz_local_mask, "mat_gm": nz_far_mask},
        {"mat_lc": (local, local_bound), "mat_gc": (far, far_bound)},
    )


def dds_grad(generator: np.random.Generator, sequence: int, heads: int) -> Problem:
    """Return the problem of the gradients of query and key in that attention."""
    given = random_inputs(generator, sequence, heads)
    shape = (heads, sequence // 64, 64, sequence // 4 + 64)
    weights = generator.random(shape)
    weights = (weights / weights.sum(axis=-1, keepdims=True)).astype(HALF)
    weights_grad = normal(generator, *shape)
    p, g = weights.astype(np.float64), weights_grad.astype(np.float64)
    scores_grad = p * (g - (p * g).sum(axis=-1, keepdims=True))
    # The product, its sum and the difference are rounded to float16.
    slack = U16 * (2 * np.abs(p * g) + p * (2 * np.abs(p * g).sum(axis=-1, keepdims=True) + 2)) + 2.0**-24
    gradients: dict[str, Any] = {name: np.zeros((2, sequence, heads * 128)) for name in ("query", "key")}
    for head in range(heads):
        keys = seen(sequence, head)
        query, key = (by_head(given[name], head).astype(np.float64) for name in ("query", "key"))
        for number, (factors, size) in enumerate(((scores_grad[head], np.array), (slack[head], np.abs))):
            by_head(gradients["query"][number], head)[:] = (factors @ size(key)[keys]).reshape(sequence, 128)
            part = swapped(factors) @ in_blocks(size(query))
            np.add.at(by_head(gradients["key"][number], head), keys, part)
    for gradient in gradients.values():
        gradient[1] = gradient[1] * 1.05 + 4 * U16 * np.abs(gradient[0]) + 4 * U16 * np.abs(gradient[0]).max() / 16
    q, k = nz(given["query"]), nz(given["key"])
    (local, far), (local_grad, far_grad) = parted(list(weights)), parted(list(weights_grad))
    key_layout = [part.reshape(sequence // 16, 16, heads * 8, 16).transpose(0, 2, 3, 1) for part in gradients["key"]]
    return Problem(
        {
            "q": described(q),
            "k": described(k),
            "local_prob": described(local),
            "global_prob": described(far),
            "local_prob_grad": described(local_grad),
            "global_prob_grad": described(far_grad),
            "dq": {},
            "dk": {},
        },
        {"mat_q": q, "mat_k": k, "mat_lc": local, "mat_gc": far, "mat_lc_grad": local_grad, "mat_gc_grad": far_grad},
        {"mat_dq": tuple(nz(part) for part in gradients["query"]), "mat_dk": tuple(key_layout)},
    )
