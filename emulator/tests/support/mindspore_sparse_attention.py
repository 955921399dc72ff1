"""State in NumPy what the kernels of sparse attention in MindSpore's wheel compute."""

from __future__ import annotations

from typing import Any

import numpy as np

from emulator.tests.support.mindspore_problems import HALF, SINGLE, U16, Problem, described, normal, nz, product, zn


def random_weights(generator: np.random.Generator, sequence: int, heads: int) -> dict[str, np.ndarray]:
    """Return local and global attention weights and what they meet, as matrices per (head, block)."""
    blocks = sequence // 64
    return {
        "local": np.abs(normal(generator, 1, heads, blocks, 64, 64, scale=0.1)),
        "far": np.abs(normal(generator, 1, heads, blocks, 64, sequence // 4, scale=0.1)),
        "value": normal(generator, sequence, heads * 128),
        "out_grad": normal(generator, heads, sequence, 128),
    }


def far_rows(sequence: int, head: int) -> np.ndarray:
    """Return the positions that every query of a head sees: one 16-row group of each block of 64."""
    start = 16 * (3 - head % 4)
    return np.concatenate([np.arange(64 * block + start, 64 * block + start + 16) for block in range(sequence // 64)])


def dsd(generator: np.random.Generator, sequence: int, heads: int) -> Problem:
    """Return the problem of dsd_matmul: weights, local and far, times value."""
    given = random_weights(generator, sequence, heads)
    truth = np.zeros((heads, sequence, 128))
    bound = np.zeros_like(truth)
    for head in range(heads):
        value = given["value"][:, head * 128 : (head + 1) * 128]
        for block in range(sequence // 64):
            rows = slice(64 * block, 64 * block + 64)
            weights = np.concatenate([given["far"][0, head, block], given["local"][0, head, block]], axis=1)
            seen = np.concatenate([value[far_rows(sequence, head)], value[rows]])
            truth[head, rows], bound[head, rows] = product(weights, seen, half=True)
    w1, w2, v = nz(given["local"]), nz(given["far"]), zn(given["value"])
    return Problem(
        {"input_w1": described(w1), "input_w2": described(w2), "input_v": described(v)},
        {"w1_gm": w1, "w2_gm": w2, "v_gm": v},
        {"output_gm": (nz(truth)[None], nz(bound)[None])},
    )


def dsd_back(generator: np.random.Generator, sequence: int, heads: int) -> Problem:
    """Return the problem of dsd_matmul's gradient: of value and of both kinds of weights."""
    given = random_weights(generator, sequence, heads)
    blocks = sequence // 64
    local = np.zeros((2, 1, heads, blocks, 64, 64))
    far = np.zeros((2, 1, heads, blocks, 64, sequence // 4))
    value_grad = np.zeros((2, sequence, heads * 128))
    for head in range(heads):
        columns, rows_far = slice(head * 128, (head + 1) * 128), far_rows(sequence, head)
        value, out_grad = given["value"][:, columns], given["out_grad"][head]
        for block in range(blocks):
            rows = slice(64 * block, 64 * block + 64)
            local[:, 0, head, block] = product(out_grad[rows], value[rows].T, half=True)
            far[:, 0, head, block] = product(out_grad[rows], value[rows_far].T, half=True)
            value_grad[:, rows, columns] = product(given["local"][0, head, block].T, out_grad[rows])
        value_grad[:, rows_far, columns] += product(given["far"][0, head].reshape(sequence, -1).T, out_grad)
    value_grad[1] += np.abs(value_grad[0]) * U16 * 1.01 + 2.0**-25
    w1, w2, v, d_a = nz(given["local"]), nz(given["far"]), zn(given["value"]), nz(given["out_grad"])[None]
    feeds = {"w1_gm": w1, "w2_gm": w2, "v_gm": v, "a_gm": np.zeros_like(d_a), "d_a_gm": d_a}
    return Problem(
        {name: described(array) for name, array in feeds.items()},
        feeds,
        {
            "d_w1_gm": (nz(local[0]), nz(local[1])),
            "d_w2_gm": (nz(far[0]), nz(far[1])),
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
    blocks = sequence // 64
    local = np.zeros((2, 1, heads, blocks, 64, 64))
    far = np.zeros((2, 1, heads, blocks, 64, sequence // 4))
    for head in range(heads):
        columns = slice(head * 128, head * 128 + 128)
        query, key = (given[name][:, columns].astype(np.float64) for name in ("query", "key"))
        for block in range(blocks):
            rows = slice(64 * block, 64 * block + 64)
            scores = np.concatenate(
                [
                    query[rows] @ key[far_rows(sequence, head)].T + given["far_mask"][rows],
                    query[rows] @ key[rows].T + given["local_mask"][:, rows],
                ],
                axis=1,
            )
            top = scores.max(axis=1, keepdims=True)
            exponents = np.exp(scores - top)
            weights = exponents / exponents.sum(axis=1, keepdims=True)
            # Score, shifted score, exponential, reciprocal and product are rounded to float16. The shift is one of
            # the chunk maxima, so it may be smaller than the maximum.
            bound = weights * U16 * (2 * np.abs(scores).max() + (top - scores.min()) + 6) + 2.0**-24
            far[:, 0, head, block] = weights[:, :-64], bound[:, :-64]
            local[:, 0, head, block] = weights[:, -64:], bound[:, -64:]
    q, k, local_mask, far_mask = (nz(given[name]) for name in ("query", "key", "local_mask", "far_mask"))
    feeds = {"mat_q": q, "mat_k": k, "mat_lm": local_mask, "mat_gm": far_mask}
    return Problem(
        {
            "q": described(q),
            "k": described(k),
            "local_mask": described(given["local_mask"]),
            "global_mask": described(far_mask),
            "local_prob": {},
            "global_prob": {},
            "bs": 1,
            "heads": heads,
        },
        feeds,
        {"mat_lc": (nz(local[0]), nz(local[1])), "mat_gc": (nz(far[0]), nz(far[1]))},
    )


def dds_grad(generator: np.random.Generator, sequence: int, heads: int) -> Problem:
    """Return the problem of the gradients of query and key in that attention."""
    given = random_inputs(generator, sequence, heads)
    blocks, width = sequence // 64, sequence // 4
    weights = generator.random((heads, blocks, 64, 64 + width))
    weights = (weights / weights.sum(axis=-1, keepdims=True)).astype(HALF)
    weights_grad = normal(generator, heads, blocks, 64, 64 + width)
    p, g = weights.astype(np.float64), weights_grad.astype(np.float64)
    scores_grad = p * (g - (p * g).sum(axis=-1, keepdims=True))
    # The product, its sum and the difference are rounded to float16.
    slack = U16 * (2 * np.abs(p * g) + p * (2 * np.abs(p * g).sum(axis=-1, keepdims=True) + 2)) + 2.0**-24
    query_grad, key_grad = np.zeros((2, sequence, heads * 128)), np.zeros((2, sequence, heads * 128))
    for head in range(heads):
        columns, rows_far = slice(head * 128, head * 128 + 128), far_rows(sequence, head)
        query, key = (given[name][:, columns].astype(np.float64) for name in ("query", "key"))

        def add(
            target: np.ndarray,
            rows: Any,
            left: np.ndarray,
            error: np.ndarray,
            right: np.ndarray,
            columns: slice = columns,
        ) -> None:
            target[0, rows, columns] += left @ right
            target[1, rows, columns] += error @ np.abs(right)

        for block in range(blocks):
            rows = slice(64 * block, 64 * block + 64)
            near, near_slack = scores_grad[head, block, :, :64], slack[head, block, :, :64]
            far, far_slack = scores_grad[head, block, :, 64:], slack[head, block, :, 64:]
            add(query_grad, rows, near, near_slack, key[rows])
            add(query_grad, rows, far, far_slack, key[rows_far])
            add(key_grad, rows, near.T, near_slack.T, query[rows])
            add(key_grad, rows_far, far.T, far_slack.T, query[rows])
    for gradient in (query_grad, key_grad):
        gradient[1] = gradient[1] * 1.05 + 4 * U16 * np.abs(gradient[0]) + 4 * U16 * np.abs(gradient[0]).max() / 16
    q, k = nz(given["query"]), nz(given["key"])
    local, far = nz(weights[None, ..., :64]), nz(weights[None, ..., 64:])
    local_grad, far_grad = nz(weights_grad[None, ..., :64]), nz(weights_grad[None, ..., 64:])
    key_layout = [matrix_.reshape(sequence // 16, 16, heads * 8, 16).transpose(0, 2, 3, 1) for matrix_ in key_grad]
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
        {"mat_dq": (nz(query_grad[0]), nz(query_grad[1])), "mat_dk": tuple(key_layout)},
    )
