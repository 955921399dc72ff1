"""Terms of the scores that the Cube adds: one extra block of 16 products per score.

scores = query . key + sum over 16 places of (term of the query row) * (term of the key). The products are exact in
float32, so a factor of the row times a factor of the key costs no Vector pass. Such terms are minus the row reference,
a bias per key, a mask per key, and ALiBi by distance. For ALiBi, slope * (key - query) is divided into float16 numbers
without a loss that shows.

In L1 a term is a row of 16 values in each fractal; load2d transposes it into a column.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from flash_attention.kernels.tik.common.tails import by_keys
from flash_attention.kernels.tik.hardware import FRACTAL
from flash_attention.kernels.tik.problem import KernelProblem, padded
from flash_attention.kernels.tik.recorder import Core
from flash_attention.kernels.tik.tik_types import Number, Tensor, TilePlan

TERMS = 16  # depth of the extra block
REFERENCE = (0, 1, 2)  # minus the row reference in up to three float16 terms, times 1
BIAS = (3, 4, 5)  # three float16 terms of 1 / post_scale, times the bias of the key
BIAS_HIDES = 6  # HIDING / 16, times 16 for a key whose bias hides it, see layout.HIDDEN_BY_BIAS
KEY_BLOCK = (3, 4)  # two terms of 128 * slope, times key // 128
KEY_REST = (5, 6)  # two terms of the slope, times key % 128
POSITION = (7, 8, 9, 15)  # four terms of -slope * position of the query, times 1
KEY_MASK = 10  # HIDING, times 1 for a hidden key
CAP = (11, 12, 13)  # three float16 terms of softcap / post_scale, times 1
# The unit is the scores before the post-scale, which is at least 16 then. So this lowers a score by at least
# 224000, more than a score and a reference can make up for. Twice the number still fits in float16.
HIDING = -14000.0


class Planes(NamedTuple):
    """Run-time planes of inputs with one vector per plane. 0 for those that a problem lacks."""

    bias: Number
    mask: Number


def is_dynamic(problem: KernelProblem) -> bool:
    """Return if the key side of the terms differs from tile to tile."""
    return problem.call.bias in ("per_key", "alibi") or problem.mask == "per_key"


def terms(value: float, count: int) -> list[float]:
    """Return float16 numbers that add up to `value` as closely as float16 allows."""
    result, rest = [], np.float64(value)
    for _ in range(count):
        term = np.float16(np.clip(rest, -65504, 65504))
        result.append(float(term))
        rest -= np.float64(term)
    return result


def query_constants(problem: KernelProblem) -> dict[int, float]:
    """Query terms that are the same in all rows, by place."""
    call = problem.call
    result: dict[int, float] = {}
    if call.bias == "per_key":
        result.update(zip(BIAS, terms(1 / problem.post_scale, len(BIAS))))
        result[BIAS_HIDES] = HIDING / 16
    if problem.mask == "per_key":
        result[KEY_MASK] = HIDING
    if call.rules.softcap:
        result.update(zip(CAP, terms(call.rules.softcap / problem.post_scale, len(CAP))))
    return result


def fill_key_terms(core: Core[TilePlan], fractal: Tensor) -> None:
    """Write key terms of 16 keys in the Unified Buffer: ones for the row's terms, zeros for what differs by key."""
    core.fill(fractal, 0.0, FRACTAL)
    for places in (REFERENCE, CAP) if core.problem.call.rules.softcap else (REFERENCE,):
        core.fill(fractal[16 * places[0] :], 1.0, 16 * len(places))


def key_positions(problem: KernelProblem) -> np.ndarray:
    """Return key terms of computed ALiBi: float16 (seq_k / 16, 16 terms, 16 keys), seq_k padded."""
    # With packed sequences the kernel reads whole tiles of any size.
    keys = np.arange(padded(problem.call.seq_k) + (256 if problem.sequences else 0)).reshape(-1, 16)
    result = np.zeros((keys.shape[0], 16, 16), np.float16)
    result[:, REFERENCE + POSITION + CAP, :] = 1
    result[:, KEY_BLOCK, :] = (keys // 128)[:, None]
    result[:, KEY_REST, :] = (keys % 128)[:, None]
    return result


SLOPE_WORDS = 8  # slope / post_scale; two terms of 128 * it; two terms of it; two terms of -2 * slope; -2 * it


def slope_table(problem: KernelProblem) -> np.ndarray:
    """Return float32 (slopes, SLOPE_WORDS): the slopes taken apart. All but the first word are float16 numbers."""
    table = np.zeros((len(problem.slopes), SLOPE_WORDS), np.float32)
    for number, slope in enumerate(problem.slopes):
        reduced = slope / problem.post_scale
        table[number] = [
            reduced,
            *terms(128 * reduced, 2),
            *terms(reduced, 2),
            *terms(-2 * slope, 2),
            np.float16(-2 * reduced),
        ]
    return table


def initialise(core: Core[TilePlan]) -> None:
    """Write constant terms of both sides, once per kernel."""
    term, stage = core.on.term[0], core.on.stage[0]
    queries = core.on.query_terms
    core.fill(stage, 0.0, core.plan.rows * TERMS)
    for block in queries:
        core.tik.data_move(block, stage, 0, 1, core.plan.rows, 0, 0)
    for place, value in query_constants(core.problem).items():
        core.fill(term, value, 128)
        for block in queries:
            write(core, block, place, term)
    fill_key_terms(core, stage)
    for block in core.on.key_terms:
        with core.tik.for_range(0, core.plan.columns, name="key_term") as fractal:
            core.tik.data_move(block[fractal * FRACTAL], stage, 0, 1, 16, 0, 0)
    if not is_dynamic(core.problem):
        _key_terms_to_l0(core, core.on.key_terms[0], 0, max(core.plan.segments) // 16)


def write(core: Core[TilePlan], block: Tensor, place: Number, values: Tensor) -> None:
    """Write one term of a row block. `values` is float16 (rows,) in the Unified Buffer, `place` may be a run-time
    number.
    """
    core.tik.data_move(block[place * 16], values, 0, core.plan.rows // 16, 1, 0, 15)


def load_key_terms(core: Core[TilePlan], slot: Tensor, planes: Planes, tile: Number) -> None:
    """Load key terms of a key tile from global memory."""
    if not is_dynamic(core.problem):
        return
    if core.problem.sequences:
        load_groups(core, slot, planes, tile * core.plan.columns, 1, core.plan.columns)
        return
    by_keys(core, tile, lambda keys: load_groups(core, slot, planes, tile * core.plan.columns, 1, padded(keys) // 16))


def load_groups(core: Core[TilePlan], slot: Tensor, planes: Planes, first: Number, stride: Number, count: int) -> None:
    if core.problem.call.bias == "alibi":
        core.tik.data_move(slot, core.gm["positions"][first * FRACTAL], 0, count, 16, (stride - 1) * 16, 0)
    sources: list[tuple[str, Number, int]] = []
    if core.problem.call.bias == "per_key":
        sources += [("key_bias", planes.bias, place) for place in BIAS]
        sources.append(("key_bias", planes.bias + math.prod(core.problem.bias_planes), BIAS_HIDES))
    if core.problem.mask == "per_key":
        sources.append(("key_mask", planes.mask, KEY_MASK))
    for name, number, place in sources:
        source = core.gm[name][core.wide(number, core.seq_k) + first * 16]
        core.tik.data_move(slot[place * 16], source, 0, count, 1, stride - 1, 15)


def key_terms_to_l0(core: Core[TilePlan], slot: Tensor, segment: int) -> None:
    """Load the right operand of the terms of one segment, if it differs by tile."""
    if is_dynamic(core.problem):
        start = core.plan.segment_start(segment) // 16
        _key_terms_to_l0(core, slot, start, core.plan.segments[segment] // 16)


def _key_terms_to_l0(core: Core[TilePlan], slot: Tensor, first: int, count: int) -> None:
    core.tik.load2dv1(core.on.l0_key_terms[0], slot, first, count, 1, 0, True)
