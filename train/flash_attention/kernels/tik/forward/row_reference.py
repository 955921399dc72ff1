"""The row reference: the number that is subtracted from the scores of a row before the exponential.

Any reference gives the same result as long as no probability saturates in float16 and none that matters underflows. The
first attempt takes the row maximum over a sample of keys. The row total then shows whether a probability saturated. If
so, the row block is computed again with the maximum over all keys, swept until float16 holds it closely.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from flash_attention.kernels.tik.common import alibi, mask, score_terms, softcap, tails
from flash_attention.kernels.tik.common.double_buffer import each_epoch
from flash_attention.kernels.tik.common.mask import LOWEST
from flash_attention.kernels.tik.forward import load, visibility
from flash_attention.kernels.tik.forward.items import Item
from flash_attention.kernels.tik.forward.score_bound import CEILING, ScoreBound
from flash_attention.kernels.tik.forward.tiling import RING, ForwardPlan
from flash_attention.kernels.tik.hardware import FRACTAL, HALF_ROUND
from flash_attention.kernels.tik.problem import padded
from flash_attention.kernels.tik.recorder import Address, Core
from flash_attention.kernels.tik.tik_types import Factor, Number, RunTime, Scalar, Tensor

EXACT_SWEEPS = len(score_terms.REFERENCE)
CAPPED_SWEEPS = 2  # over the sample: many scores may equal the cap, and float16 then holds their probabilities exactly
# Beyond this a float16 score is coarse. The reference is then lowered by more than its rounding, so that it does not
# pass the true maximum. If terms or a bias make the post-scale 16 or more, final scores of that size are coarse.
COARSE = 4096.0
COARSE_SLACK = 2.0**-9
# The reference of a row that sees no key of the sample, without and with float16 scores. Such scores reach 16376, and
# less the reference 65504.
UNSEEN_REFERENCE = (-60000.0, -20000.0)
LEAST_STEP = -64.0  # of the references after the first, which only make up for the rounding of the first
LEAST_REFERENCE = -9000.0  # if terms hide keys: a row with only hidden keys has scores of HIDING, far below
ABOVE_LOWEST = 33000.0  # added to a score gives more than 1, added to LOWEST less than 0


@dataclass(frozen=True)
class Search:
    """State of the search for references.

    Attributes:
        attempt: run-time 0 = sample (loaded before, see load_sample), 1 = all keys.
        sweeps, sweep_tiles, tile, number, distance: run-time variables of the search.
        code: of a tile, under a block mask.
        ways: there, of the first tiles of the row blocks, see common.kept_tiles.
        base, value_base: run-time first elements of the keys and values of the item in global memory; one variable
            if they are the same.
        numbered: whether there are visibility tiles.
        sample_misses: see work.WorkSplit.
        slopes: slopes of the item's head if keys stand on both sides of the queries, else None.
        score_bound: None if the kernel does not bound scores.
    """

    attempt: RunTime
    sweeps: Scalar
    sweep_tiles: Scalar
    tile: Scalar
    number: Scalar
    distance: Scalar
    code: Scalar | None
    ways: Sequence[Number]
    base: Scalar
    value_base: Scalar
    numbered: bool
    sample_misses: bool
    slopes: QuerySlopes | None
    score_bound: ScoreBound | None


def shift(seq_k: int) -> float:
    """Return the addend of the reference that keeps flat rows in range of the check."""
    return max(0.0, math.log(seq_k / 32768))


def initialise(core: Core[ForwardPlan]) -> None:
    """Write constants of the rows."""
    core.fill(core.on.half_ones[0], 1.0, 128)
    core.fill(core.on.next_reference[0], 0.0, core.plan.row_blocks * 128)


def references(core: Core[ForwardPlan], item: Item, epoch: Number, search: Search) -> None:
    """Record the references of all row blocks, to places REFERENCE of query_terms[epoch] and to next_reference.

    Row blocks that do not exist get numbers that nothing reads.

    Args:
        epoch: run-time parity of the item.
    """
    tik, blocks = core.tik, range(core.plan.row_blocks)
    bounded = _is_bounded(core)
    if bounded:
        core.fill(core.on.least_reference[0], LEAST_REFERENCE, 128)
    core.fill(core.on.next_reference[0], 0.0, len(blocks) * 128)
    sweeps = search.sweeps
    with tik.if_scope(search.attempt == 0):
        sweeps.set_as(CAPPED_SWEEPS if core.problem.call.rules.softcap else 1)
    with tik.else_scope():
        sweeps.set_as(EXACT_SWEEPS)
    with tik.for_range(0, sweeps, name="sweep") as sweep:
        core.fill(core.on.tile_max[0], LOWEST, len(blocks) * 128)
        for a in blocks:
            with tik.if_scope(item["rows", a] > 0):
                _maximum(core, item, a, epoch, search)
        _take(core, sweep, epoch, search)
        if bounded:
            core.fill(core.on.least_reference[0], LEAST_STEP, 128)


def _maximum(core: Core[ForwardPlan], item: Item, a: int, epoch: Number, search: Search) -> None:
    """Compute tile_max = row maxima of the scores of row block `a` less the reference."""
    tik, count, tile, number = core.tik, search.sweep_tiles, search.tile, search.number
    count.set_as(1)
    with tik.if_scope(search.attempt > 0):
        count.set_as(item["last", a] - item["first", a] + 1)
    with tik.for_range(0, count, name=f"sweep_tile_{a}") as step:
        with tik.if_scope(search.attempt == 0):
            tile.set_as(item["sample", a])
            if search.numbered:
                item.sample_number(number, a)
        with tik.else_scope():
            place = item["first", a] + step
            if search.code is not None:
                item.entry(a, place, tile, search.code)
                number.set_as(search.code - 1)
            else:
                tile.set_as(place)
                if search.numbered:
                    item.tile_number(number, a, tile)
            load_tile(core, item, a, tile, search)  # at attempt 0 the sample is there already
        _tile_maximum(core, item, a, epoch, tile, search)


def _is_bounded(core: Core[ForwardPlan]) -> bool:
    """Return if terms of the scores hide keys."""
    return core.problem.mask == "per_key" or core.problem.call.bias == "per_key"


def clear(core: Core[ForwardPlan], a: int, epoch: Number) -> None:
    """Record that row block `a` has no reference yet."""
    for variants in each_epoch(core, query_terms(core, a), epoch):
        for variant in variants:
            with core.tik.for_range(0, len(score_terms.REFERENCE), name="reference") as place:
                score_terms.write(core, variant, place, core.on.zeros[0])


def query_terms(core: Core[ForwardPlan], a: int) -> list[list[Tensor]]:
    """Query terms of row block `a`, by epoch: a list of variants, one or two (keys before and after the queries)."""
    terms_of = core.on.query_terms
    per_block = len(terms_of) // (2 * core.plan.row_blocks)
    starts = [(epoch * core.plan.row_blocks + a) * per_block for epoch in range(2)]
    return [terms_of[start : start + per_block] for start in starts]


def query_slots(core: Core[ForwardPlan], a: int) -> list[Tensor]:
    """Query tiles of row block `a` in L1, by epoch."""
    return [core.on.query[epoch * core.plan.row_blocks + a] for epoch in range(2)]


def load_sample(core: Core[ForwardPlan], item: Item, a: int, search: Search) -> None:
    """Load keys of the sample of row block `a`: groups spread over what it sees, or one tile."""
    near = core.plan.near_segments
    skip = core.plan.segment_start(near) // 16
    with core.tik.if_scope(item["strided", a] > 0):
        groups, slot = (item["sample", a], item["stride", a]), _sample_keys(core, a)
        load.load_sample(core, slot, search.base, *groups, range(near, len(core.plan.segments)))
        if score_terms.is_dynamic(core.problem):
            terms = _sample_terms(core, a)[skip * FRACTAL :]
            score_terms.load_groups(core, terms, item.planes(), *groups, core.plan.columns - skip)
    if not core.plan.shared_sample:  # there the tile is the first one of the item
        with core.tik.else_scope():
            load_tile(core, item, a, item["sample", a], search)


def load_tile(core: Core[ForwardPlan], item: Item, a: int, tile: Number, search: Search) -> None:
    """Move key tile number `tile` to the place of the sample of row block `a`."""
    load.load_key(core, _sample_keys(core, a), search.base, tile, item.keys)
    score_terms.load_key_terms(core, _sample_terms(core, a), item.planes(), tile)
    visibility.load_keys(core, item, visibility.sample_slot(core), tile)


def _sample_keys(core: Core[ForwardPlan], a: int) -> list[Address]:
    """Return places of the segments of the sample of row block `a`."""
    count, place = len(core.plan.segments), _place(core, a)
    return [(tensor, 0) for tensor in core.on.sample_key[place * count : (place + 1) * count]]


def _sample_terms(core: Core[ForwardPlan], a: int) -> Tensor:
    ring = RING * core.plan.streams
    return core.on.key_terms[ring + _place(core, a) if score_terms.is_dynamic(core.problem) else 0]


def _place(core: Core[ForwardPlan], a: int) -> int:
    """Return the place of the sample of row block `a` on chip."""
    return 0 if core.plan.shared_sample else a


def _tile_maximum(core: Core[ForwardPlan], item: Item, a: int, epoch: Number, tile: Number, search: Search) -> None:
    """Compute tile_max = max(tile_max, scores of one tile minus the reference so far), per row."""
    plan, problem, tik = core.plan, core.problem, core.tik
    queries = [(query, variants) for query, variants in zip(query_slots(core, a), query_terms(core, a))]
    for query, variants in each_epoch(core, queries, epoch):
        query_operand(core, item, a, tile, query, variants)
    number, distance = search.number, search.distance
    if search.numbered:
        visibility.fetch(core, number, functools.partial(_ids_to_l0, core, a, epoch, search))
    if search.slopes is not None:
        item.distance_number(distance, a, tile)
        alibi.fetch_distance(core, distance)
    if problem.mask == "per_score":
        _fetch_sampled(core, "mask", "hidden", item, "mask_plane", a, tile, search)
    if problem.call.bias == "per_score":
        _fetch_sampled(core, "bias", "bias", item, "bias_plane", a, tile, search)
    if problem.call.rules.softcap or problem.call.bias == "per_score":
        _single_maximum(core, item, a, search)
        return
    spans = []
    for segment, width in enumerate(plan.segments):
        slot = _sample_slot(core, a, segment)
        _sample_scores(core, item, a, segment, slot, search)
        at, elements = plan.segment_start(segment) * plan.rows, width * plan.rows
        view = _segment(core, segment)
        core.from_l0c(view, core.on.scores[slot], elements // FRACTAL)
        if search.slopes is not None:
            with tik.if_scope(distance > 0):
                core.with_scalar("vec_axpy", view, core.on.distance[0][at:], search.slopes.coarse, elements)
        if problem.mask == "per_score":
            mask.lower_explicit(core, view, at, elements)
        if search.numbered:
            with tik.if_scope(number > 0):
                mask.lower_visible(core, view, at, elements, CEILING / problem.post_scale if plan.half_scores else 0.0)
        spans.append((view, width // 16))
    _fold(core, a, spans)


def _ids_to_l0(core: Core[ForwardPlan], a: int, epoch: Number, search: Search) -> None:
    """Load segment ids for the sample, or at attempt 1 for a tile."""
    with core.tik.if_scope(search.attempt == 0):
        visibility.to_l0(core, a, epoch, a)
    with core.tik.else_scope():
        visibility.to_l0(core, a, epoch, visibility.sample_slot(core))


def _segment(core: Core[ForwardPlan], segment: int) -> Tensor:
    """Return the place of a segment of float16 scores. Two segments stand half a round of the banks apart."""
    gap, scores = 2 * HALF_ROUND * segment, core.on.score
    if core.plan.long_pieces:
        return scores[segment].reinterpret_cast_to("float16")[gap:]
    return scores[0].reinterpret_cast_to("float16")[core.plan.segment_start(segment) * core.plan.rows + gap :]


def _sample_slot(core: Core[ForwardPlan], a: int, segment: int) -> int:
    """Return the slot of scores. The Cube goes on with the next row block while Vector takes this block's scores."""
    return (a * len(core.plan.segments) + segment) % core.plan.score_slots


def _sample_scores(core: Core[ForwardPlan], item: Item, a: int, segment: int, slot: int, search: Search) -> None:
    """Compute scores of a segment of the sample, or at attempt 1 of a tile."""

    def place(keys: list[Address], terms: Tensor) -> None:
        load.key_to_l0(core, keys, segment)
        score_terms.key_terms_to_l0(core, terms, segment)

    if not core.plan.shared_sample:
        place(_sample_keys(core, a), _sample_terms(core, a))
    else:
        # The first tile of the item is on its way for the loop anyway.
        listed, dynamic = core.problem.listed, score_terms.is_dynamic(core.problem)
        spread = [] if listed or segment < core.plan.near_segments else [item["strided", a] == 0]
        stream = a if listed else 0
        with core.when(search.attempt == 0, *spread):
            place(load.key_slot(core, 0, search.ways[stream]), core.on.key_terms[stream if dynamic else 0])
        with core.tik.else_scope():
            place(_sample_keys(core, a), _sample_terms(core, a))
    scores(core, slot, segment)


def _single_maximum(core: Core[ForwardPlan], item: Item, a: int, search: Search) -> None:
    """Do the same in float32, with a soft cap or a bias per score. A great bias leaves float16 no digits for scores."""
    plan, problem, tik = core.plan, core.problem, core.tik
    score, largest, column = core.on.score[0], core.on.scratch[0], plan.rows * 16
    half, capped = core.on.inverse[0].reinterpret_cast_to("float16"), problem.call.rules.softcap > 0
    for segment in range(len(plan.segments)):
        slot = _sample_slot(core, a, segment)
        _sample_scores(core, item, a, segment, slot, search)
        start, elements = plan.segment_start(segment) * plan.rows, plan.segments[segment] * plan.rows
        if capped:
            linear = core.on.linear[slot % len(core.on.linear)]
            softcap.take(core, score, core.on.scores[slot], linear, start, 0, elements)
        else:
            core.from_l0c(score[start + HALF_ROUND], core.on.scores[slot], elements // FRACTAL)
    core.fill(largest, LOWEST * problem.post_scale, column)
    for index, (first, columns) in enumerate(plan.pieces):
        at, elements, work = first * column, columns * column, core.on.probability_piece[index]
        part = score[at:]
        if capped:
            softcap.squash(core, part, core.operand_shift, elements)
            softcap.add_terms(core, part, at, elements)
        else:
            core.with_scalar("vec_muls", part, part[HALF_ROUND:], problem.post_scale, elements)
        if problem.call.bias == "per_score":
            core.add_half(part, core.on.bias[0][at:], 1.0, elements)
        if search.slopes is not None:
            with tik.if_scope(search.distance > 0):
                for slope in search.slopes.correction:
                    core.add_half(part, core.on.distance[0][at:], slope, elements)
        if problem.mask == "per_score":
            mask.lower_explicit_single(core, part, work, at, elements)
        if search.numbered:
            with tik.if_scope(search.number > 0):
                mask.lower_visible_single(core, part, work, at, elements)
        for place in range(0, elements, column):
            core.binary("vec_max", largest, largest, part[place:], column)
    core.with_scalar("vec_muls", largest, largest, 1.0 / problem.post_scale, column)
    core.to_half(half, largest, column)
    _over_columns(core, a, half)


def _fetch_sampled(
    core: Core[ForwardPlan], name: str, buffer: str, item: Item, plane: str, a: int, tile: Number, search: Search
) -> None:
    """Mask or bias for the keys of a reference tile: a strided sample picks the same fractal columns."""

    def emit(have: int) -> None:
        for column in range(core.plan.columns):
            group = item[plane] * (core.seq_k // 16) + item["sample", a] + item["stride", a] * column
            source = core.wide(group, core.seq_q * 16) + item["start", a] * 16
            target = core.on.copies(buffer)[0][column * core.plan.rows * 16]
            core.tik.data_move(target, core.gm[name][source], 0, 1, padded(have), 0, 0)

    with core.when(search.attempt == 0, item["strided", a] > 0):
        tails.by_rows(core, item["rows", a], emit)
    with core.tik.else_scope():
        mask.fetch_plane(core, name, buffer, item[plane], tile, item["start", a], item["rows", a])


def query_operand(
    core: Core[ForwardPlan], item: Item, a: int, tile: Number, query: Tensor, variants: list[Tensor]
) -> None:
    """Load the left operand with the terms for the tile's side of the queries."""
    if len(variants) == 1:
        load.query_to_l0(core, query, variants[0])
        return
    with core.tik.if_scope(tile < item["after", a]):
        load.query_to_l0(core, query, variants[0])
    with core.tik.else_scope():
        load.query_to_l0(core, query, variants[1])


def scores(core: Core[ForwardPlan], slot: int, segment: int) -> None:
    """Compute a slot of scores in L0C: one segment of query . key + terms. With a soft cap the terms have a slot.

    The operands must be in L0A and L0B.
    """
    plan, on = core.plan, core.on
    width, operand, terms = plan.segments[segment], load.key_operand(core, segment), on.l0_key_terms[0]
    core.tik.mmad(on.scores[slot], on.l0_query[0], operand, plan.rows, plan.head_dim, width, 0)
    if not core.problem.call.rules.softcap:
        core.tik.mmad(on.scores[slot], on.l0_query_terms[0], terms, plan.rows, 16, width, 1)
    elif score_terms.is_dynamic(core.problem) or segment == 0:
        columns = softcap.terms_width(core.problem, width)
        core.tik.mmad(on.linear[slot % len(on.linear)], on.l0_query_terms[0], terms, plan.rows, 16, columns, 0)


def _fold(core: Core[ForwardPlan], a: int, spans: list[tuple[Tensor, int]]) -> None:
    """Move the maximum over the fractal columns of all segments into tile_max."""
    column, usual = core.plan.rows * 16, [columns for _, columns in spans] == [4, 4]
    (first, columns), *others = spans
    if usual:
        # Every step reads from one place and writes to another; sources stand half a round of the banks apart.
        second, half = others[0][0], 2 * HALF_ROUND
        quarter, (low, high) = core.on.score[0].reinterpret_cast_to("float16"), core.on.probability_piece[:2]
        if core.plan.long_pieces:  # the probabilities are in the same layer of the banks
            low = core.on.score[2].reinterpret_cast_to("float16")
            high = low[2 * column :]
        high = high[half:]
        core.binary("vec_max", low, first, second, 2 * column)
        core.binary("vec_max", high, first[2 * column :], second[2 * column :], 2 * column)
        core.binary("vec_max", quarter, low, high, column)
        core.binary("vec_max", quarter[column + half :], low[column:], high[column:], column)
        core.binary("vec_max", low, quarter, quarter[column + half :], column)
        _over_columns(core, a, low)
        return
    for view, more in others:
        core.binary("vec_max", first, first, view, min(columns, more) * column)
    while columns > 1:
        half = columns // 2
        core.binary("vec_max", first, first, first[(columns - half) * column :], half * column)
        columns -= half
    _over_columns(core, a, first)


def _over_columns(core: Core[ForwardPlan], a: int, values: Tensor) -> None:
    """Compute tile_max = max(tile_max, maximum over the columns of one fractal column), per row."""
    rows, found, largest = core.plan.rows, core.on.coarseness[0], core.on.tile_max[0][a * 128 :]
    core.tik.vcgmax(128, found, values, rows // 8, 1, 1, 8)
    core.binary("vec_max", largest, largest, found, rows)


def _take(core: Core[ForwardPlan], sweep: Number, epoch: Number, search: Search) -> None:
    """Move the row maxima into place `sweep` and, in units of final scores, into next_reference."""
    plan, problem, tik = core.plan, core.problem, core.tik
    value, extra, numbers = core.on.tile_max[0], core.on.coarseness[0], plan.row_blocks * 128
    # Rows without a visible key have 0 here, whatever lies in the lowered scores.
    core.with_scalar("vec_adds", extra, value, ABOVE_LOWEST, numbers)
    core.with_row("vec_max", extra, extra, core.on.zeros[0], numbers)
    core.with_row("vec_min", extra, extra, core.on.half_ones[0], numbers)
    core.binary("vec_mul", value, value, extra, numbers)
    if search.sample_misses:
        with tik.if_scope(sweep == 0):
            # Below any score: if such a row sees a key after all, it saturates, and the check finds the row block.
            core.with_scalar("vec_adds", extra, extra, -1.0, numbers)
            core.with_scalar("vec_muls", extra, extra, -UNSEEN_REFERENCE[plan.half_scores], numbers)
            core.binary("vec_add", value, value, extra, numbers)
    unit: Factor = problem.post_scale  # the score that 1 in L0C stands for
    if search.score_bound is not None:
        unit = search.score_bound.unit
        with core.when(search.attempt == 0, search.score_bound.cut == 0):
            search.score_bound.lift(value, extra)
    if _is_bounded(core):
        core.with_row("vec_max", value, value, core.on.least_reference[0], numbers)
    core.unary("vec_abs", extra, value, numbers)
    coarse = COARSE / problem.post_scale if problem.post_scale >= 16 else COARSE
    core.with_scalar("vec_adds", extra, extra, -coarse, numbers)
    core.with_row("vec_max", extra, extra, core.on.zeros[0], numbers)
    core.with_scalar("vec_muls", extra, extra, COARSE_SLACK, numbers)
    core.binary("vec_sub", value, value, extra, numbers)
    if shift(problem.call.seq_k):
        core.with_scalar("vec_adds", value, value, shift(problem.call.seq_k) / problem.post_scale, numbers)
    single = core.on.scratch[0]
    core.to_single(single, value, numbers)
    core.with_scalar("vec_axpy", core.on.next_reference[0], single, unit, numbers)
    negative = core.on.negated_reference[0]
    core.with_scalar("vec_muls", negative, value, -1.0, numbers)
    blocks = range(plan.row_blocks)
    for variants in each_epoch(core, list(zip(*(query_terms(core, a) for a in blocks))), epoch):
        for a in blocks:
            for variant in variants[a]:
                score_terms.write(core, variant, sweep, negative[a * 128 :])


class QuerySlopes(alibi.Slopes[ForwardPlan]):
    """Query terms of computed ALiBi, to the query terms in L1."""

    def _write(self, a: int, epoch: Number, place: int, values: Tensor) -> None:
        core = self.core
        slots = query_terms(core, a)
        if len(slots[0]) > 1:
            core.with_scalar("vec_muls", core.on.negated_term[0], values, -1.0, 128)
        for variants in each_epoch(core, slots, epoch):
            score_terms.write(core, variants[0], place, values)
            if len(variants) > 1:
                score_terms.write(core, variants[1], place, core.on.negated_term[0])
