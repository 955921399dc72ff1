"""Run shared cases with the forward operator."""

from __future__ import annotations

import numpy as np
from flash_attention import reference
from flash_attention.dropout import philox
from flash_attention.kernels.tik import KernelProblem, describe
from flash_attention.kernels.tik.problem import MAX_HEAD_DIM

from tests.train.flash_attention.support import case_list, cases
from tests.train.flash_attention.ut.tik.support import stored_arrays
from tests.train.flash_attention.ut.tik.support.passes import forward, random_arrays

_LISTED = ("block_mask", "segment_ids", "kv_segment_ids", "prefix")  # they become lists of tiles


def within_limits(case: cases.Case) -> bool:
    """Return True if the kernels take a case: its widths, and no slopes that are data.

    A bias of -inf for single scores saturates, which these tests do not allow.
    """
    return max(case.head_dim, case.value_dim) <= MAX_HEAD_DIM and not case.alibi.startswith(("slopes", "bias_hiding"))


def of_every_day() -> list:
    """Return the cases that run every day."""
    chosen = case_list.covering(case_list.values_of, case_list.in_float16(within_limits))
    return case_list.params(chosen.__contains__, dtype="float16")


def features_of(case: cases.Case) -> dict:
    """Mask, bias, keep bits and sinks of a case as the kernels take them."""
    inputs = case.inputs()
    optional = inputs.optional()
    optional.pop("sinks")
    return {
        "mask": stored_arrays.explicit_mask(case.call, case.backend_mask(), **optional),
        "bias": inputs.bias,
        "keep_bits": philox.keep_bits(case.call, cases.SEED) if case.dropout else None,
        "sinks": inputs.sinks,
        **({name: optional[name] for name in _LISTED} if describe.lists_tiles(case.call) else {}),
    }


def run_forward(tik, execute, case: cases.Case, cores: int = 4, tiling: str = "auto") -> reference.Attention:
    """Return the output and logsumexp of a case on the forward operator."""
    problem, inputs = describe.kernel_problem(case.call, cores=cores, tiling=tiling), case.inputs()
    tensors = inputs.query, inputs.key, inputs.value
    return reference.Attention(*forward(tik, execute, problem, *tensors, **features_of(case)))


def check_shards(tik, execute, whole: KernelProblem, shard: KernelProblem) -> None:
    """Check that two runs have the same bits, and so has the shard: one of two batch items, two of four heads."""
    query, key, value = random_arrays(whole)
    first, again = (forward(tik, execute, whole, query, key, value) for _ in range(2))
    part = forward(tik, execute, shard, query[1:, 2:], key[1:, 1:], value[1:, 1:])
    for one, other, own in zip(first, again, part):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(one[1:, 2:], own)


def check_closely(
    problem: KernelProblem, arrays, output, logsumexp, factor: float = 2.0, slack: float = 2.0**-11
) -> None:
    """Compare the error with the strictest baseline: composed attention without rounded scores."""
    call = problem.call
    query, key, value = (array.astype(np.float64) for array in arrays)
    key, value = (np.repeat(array, call.group, axis=1) for array in (key, value))
    scores = query @ key.swapaxes(-1, -2) * call.scale
    if call.rules.softcap:
        scores = call.rules.softcap * np.tanh(scores / call.rules.softcap)
    if call.rules.alibi:
        distance = np.arange(call.seq_q)[:, None] + call.offset - np.arange(call.seq_k)
        scores = scores - np.array(problem.slopes)[:, None, None] * np.abs(distance)
    scores = np.where(call.band.dense(), scores, -np.inf)
    top = np.maximum(scores.max(-1, keepdims=True), -1e300)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    safe = np.where(total == 0, 1, total)
    exact = weights @ value / safe
    low = (weights.astype(np.float16).astype(np.float64) @ value / safe).astype(np.float16)
    for measure in (np.max, np.mean):
        error, allowed = measure(np.abs(output - exact)), factor * measure(np.abs(low - exact))
        assert error <= allowed + 1e-7, f"{measure.__name__}: {error:.3g}, allowed {allowed:.3g}"
    visible = total[..., 0] > 0
    expected = (top + np.log(safe))[..., 0]
    slack = slack + 2.0**-22 * np.abs(expected)
    assert np.all(np.abs(logsumexp - expected)[visible] <= slack[visible])
    assert np.all(logsumexp[~visible] <= -3.4e38)
    assert not np.any(output[~visible])
