"""The row reference: what is subtracted from the scores of a row before the exponential.

Any reference gives the same result as long as no probability saturates in float16 and none that matters underflows. The
first attempt takes the row maximum over a sample of keys; the row total then shows whether a probability saturated, and
those row blocks are computed again with the maximum over all keys, swept until float16 holds it closely.
"""

from __future__ import annotations

import math

from flash_attention.kernels.tik.common import mask, tiles
from flash_attention.kernels.tik.common import score_terms as lanes
from flash_attention.kernels.tik.common.mask import LOWEST
from flash_attention.kernels.tik.core import HALF_ROUND, Core
from flash_attention.kernels.tik.forward.tiling import RING
from flash_attention.kernels.tik.forward.work_item import Item

EXACT_SWEEPS = len(lanes.REFERENCE)
# Beyond this a float16 score is coarse: the reference is lowered by more than its rounding, so that it does not pass
# the true maximum.
COARSE = 4096.0
COARSE_SLACK = 2.0**-9


def shift(seq_k: int) -> float:
    """Added to the reference so that a flat row of any length keeps its total in range of the check."""
    return max(0.0, math.log(seq_k / 32768))


def reference(core: Core, item: Item, a: int, attempt, epoch, scratch: dict) -> None:
    """Records the reference of row block `a`, to lanes REFERENCE of query_lanes[epoch] and to next_reference[a].

    Args:
        attempt: run-time 0 = sample (loaded before, see load_sample), 1 = all keys.
        epoch: run-time parity of the item.
        scratch: run-time scalars of the kernel: sweeps, sweep_tiles, number, distance, base, and slopes.
    """
    plan, tik = core.plan, core.tik
    core.fill(next_reference(core, a), 0.0, 128, 64)
    sweeps, count = scratch["sweeps"], scratch["sweep_tiles"]
    with tik.if_scope(attempt == 0):
        sweeps.set_as(1)
        count.set_as(1)
    with tik.else_scope():
        sweeps.set_as(EXACT_SWEEPS)
        count.set_as(item["last", a] - item["first", a] + 1)
    with tik.for_range(0, sweeps, name=f"sweep_{a}") as sweep:
        core.fill(core.on["row_max"][0], LOWEST, plan.rows * 16)
        with tik.for_range(0, count, name=f"sweep_tile_{a}") as step:
            tile, number = scratch["tile"], scratch["number"]
            with tik.if_scope(attempt == 0):
                tile.set_as(item["sample", a])
                if number is not None:
                    number.set_as(item["sample_tile", a])
            with tik.else_scope():
                tile.set_as(item["first", a] + step)
                if number is not None:
                    item.tile_number(number, a, tile)
            with tik.if_scope(attempt > 0):  # at attempt 0 the sample is there already
                load_tile(core, item, a, tile, scratch)
            _tile_maximum(core, item, a, epoch, tile, scratch)
        _take(core, a, sweep, epoch)


def clear(core: Core, a: int, epoch) -> None:
    """Records that row block `a` has no reference yet."""
    for variants in tiles.each_epoch(core, lane_slots(core, a), epoch):
        for variant in variants:
            for lane in lanes.REFERENCE:
                lanes.write(core, variant, lane, core.on["halves"][1])


def next_reference(core: Core, a: int):
    """float32 (128,): references of row block `a` of the item whose scores come next, in units of the final scores."""
    return core.on["vectors"][2 + a]


def current_reference(core: Core, a: int):
    """The same for the item whose scores are in the pipeline."""
    return core.on["vectors"][4 + a]


def lane_slots(core: Core, a: int) -> list:
    """Query lanes of row block `a`, by epoch: a list of variants, one or two (keys before and after the queries)."""
    lanes_of = core.on["query_lanes"]
    per_block = len(lanes_of) // (2 * core.plan.row_blocks)
    starts = [(epoch * core.plan.row_blocks + a) * per_block for epoch in range(2)]
    return [lanes_of[start : start + per_block] for start in starts]


def query_slots(core: Core, a: int) -> list:
    """Query tiles of row block `a` in L1, by epoch."""
    return [core.on["query"][epoch * core.plan.row_blocks + a] for epoch in range(2)]


def load_sample(core: Core, item: Item, a: int, scratch: dict) -> None:
    """Keys of the sample of row block `a`: groups spread over what it sees, or one tile."""
    with core.tik.if_scope(item["strided", a] > 0):
        tiles.load_sample(core, core.on["sample_key"][a], scratch["base"], item["sample", a], item["stride", a])
        lanes.load_sample_lanes(core, _sample_lanes(core, a), item.planes(), item["sample", a], item["stride", a])
    with core.tik.else_scope():
        load_tile(core, item, a, item["sample", a], scratch)


def load_tile(core: Core, item: Item, a: int, tile, scratch: dict) -> None:
    """Key tile number `tile` to where the sample of row block `a` stands."""
    tiles.load_whole_key(core, core.on["sample_key"][a], scratch["base"], tile)
    lanes.load_key_lanes(core, _sample_lanes(core, a), item.planes(), tile)


def _sample_lanes(core: Core, a: int):
    return core.on["key_lanes"][RING + a if lanes.is_dynamic(core.problem) else 0]


def _tile_maximum(core: Core, item: Item, a: int, epoch, tile, scratch: dict) -> None:
    """row_max = max(row_max, scores of one tile minus the reference so far), per row and lane of a fractal."""
    plan, problem, tik = core.plan, core.problem, core.tik
    queries = [(query, variants) for query, variants in zip(query_slots(core, a), lane_slots(core, a))]
    for query, variants in tiles.each_epoch(core, queries, epoch):
        query_operand(core, item, a, tile, query, variants)
    slots = core.on["scores"]
    number, distance = scratch["number"], scratch["distance"]
    if number is not None:
        mask.fetch_visible(core, number)
    if distance is not None:
        item.distance_number(distance, a, tile)
        fetch_distance(core, distance)
    if problem.mask == "full":
        _fetch_sampled(core, "mask", "hidden", item, "mask_plane", a, tile, scratch)
    if problem.alibi == "bias":
        _fetch_sampled(core, "bias", "bias", item, "bias_plane", a, tile, scratch)
    score = core.on["score"][0].reinterpret_cast_to("float16")
    spans, gap = [], 0
    for segment, width in enumerate(plan.segments):
        target = slots[segment % len(slots)]
        operand = tiles.sample_to_l0(core, core.on["sample_key"][a], segment, segment % 2)
        scores(core, target, operand, _sample_lanes(core, a), segment)
        at, elements = plan.segment_start(segment) * plan.rows, width * plan.rows
        view = score[at + gap :]
        tik.tensor_mov(view, target, "m", 1, elements // 256, 0, 0)
        if problem.alibi == "bias":
            if problem.post_scale != 1.0:
                core.with_scalar("vec_muls", view, view, problem.post_scale, elements)
            core.binary("vec_add", view, view, core.on["bias"][0][at:], elements)
        if distance is not None:
            with tik.if_scope(distance > 0):
                core.with_scalar("vec_axpy", view, core.on["distance"][0][at:], scratch["coarse_slope"], elements)
        if problem.mask == "full":
            mask.lower_explicit(core, view, at, elements)
        if number is not None:
            with tik.if_scope(number > 0):
                mask.lower_visible(core, view, at, elements)
        spans.append((view, width // 16))
        gap += 2 * HALF_ROUND
    _fold(core, spans)


def _fetch_sampled(core: Core, name: str, buffer: str, item: Item, plane: str, a: int, tile, scratch: dict) -> None:
    """Mask or bias for the keys of a reference tile: a strided sample picks the same fractal columns."""
    with core.when(scratch["attempt"] == 0, item["strided", a] > 0):
        _fetch_columns(core, name, buffer, item, plane, a)
    with core.tik.else_scope():
        mask.fetch_plane(core, name, buffer, item[plane], tile, item["start", a], item["rows", a])


def _fetch_columns(core: Core, name: str, buffer: str, item: Item, plane: str, a: int) -> None:
    def record(have: int) -> None:
        for column in range(core.plan.columns):
            group = item[plane] * (core.seq_k // 16) + item["sample", a] + item["stride", a] * column
            source = core.wide(group, core.seq_q * 16) + item["start", a] * 16
            core.tik.data_move(
                core.on[buffer][0][column * core.plan.rows * 16], core.gm[name][source], 0, 1, have, 0, 0
            )

    tiles.by_rows(core, item["rows", a], record)


def fetch_distance(core: Core, number) -> None:
    """Distance tile `number` from L1 to the Unified Buffer. Skipped at run time for 0."""
    area = core.plan.rows * core.plan.keys
    with core.tik.if_scope(number > 0):
        core.tik.data_move(core.on["distance"][0], core.on["distances"][0][(number - 1) * area], 0, 1, area // 16, 0, 0)


def query_operand(core: Core, item: Item, a: int, tile, query, variants: list) -> None:
    """Left operand of the scores; with two variants of lanes, the one for the side of the queries the tile is on."""
    if len(variants) == 1:
        tiles.query_to_l0(core, query, variants[0])
        return
    with core.tik.if_scope(tile < item["after", a]):
        tiles.query_to_l0(core, query, variants[0])
    with core.tik.else_scope():
        tiles.query_to_l0(core, query, variants[1])


def scores(core: Core, target, operand, key_lanes, segment: int) -> None:
    """target (L0C) = one segment of query . key + lanes; the query operand must be in L0A, `operand` is in L0B."""
    plan = core.plan
    width = plan.segments[segment]
    by_key = lanes.key_lanes_for(core, key_lanes, segment)
    core.tik.mmad(target, core.on["l0_query"][0], operand, plan.rows, plan.head_dim, width, 0)
    core.tik.mmad(target, core.on["l0_query_lanes"][0], by_key, plan.rows, 16, width, 1)


def _fold(core: Core, spans: list) -> None:
    """Maximum over the fractal columns of all segments, into row_max."""
    column = core.plan.rows * 16
    (first, columns), *others = spans
    if len(others) == 1 and others[0][1] == columns and columns % 2 == 0:
        # The usual tile: every step reads from one buffer and writes to the other.
        second, half, folds = others[0][0], columns // 2 * column, core.on["half"]
        core.binary("vec_max", folds[0], first, second, half)
        core.binary("vec_max", folds[1], first[half:], second[half:], half)
        first, second, columns = folds[0], folds[1], columns // 2
        core.binary("vec_max", core.on["score"][0].reinterpret_cast_to("float16"), first, second, half)
        first = core.on["score"][0].reinterpret_cast_to("float16")
    else:
        for view, more in others:
            core.binary("vec_max", first, first, view, min(columns, more) * column)
    while columns > 1:
        half = columns // 2
        core.binary("vec_max", first, first, first[(columns - half) * column :], half * column)
        columns -= half
    core.binary("vec_max", core.on["row_max"][0], core.on["row_max"][0], first, column)


def _take(core: Core, a: int, sweep, epoch) -> None:
    """Moves the row maxima into lane `sweep` and into next_reference."""
    plan, problem, tik = core.plan, core.problem, core.tik
    value, extra = core.on["halves"][2], core.on["halves"][3]
    tik.vcgmax(128, value, core.on["row_max"][0], plan.rows // 8, 1, 1, 8)
    if problem.alibi == "bias" and problem.post_scale != 1.0:
        core.with_scalar("vec_muls", value, value, 1.0 / problem.post_scale, 128)
    core.unary("vec_abs", extra, value, 128)
    core.with_scalar("vec_adds", extra, extra, -COARSE, 128)
    core.with_row("vec_max", extra, extra, core.on["halves"][1], 128)
    core.with_scalar("vec_muls", extra, extra, COARSE_SLACK, 128)
    core.binary("vec_sub", value, value, extra, 128)
    if shift(problem.seq_k):
        core.with_scalar("vec_adds", value, value, shift(problem.seq_k), 128)
    single = core.on["vectors"][6]
    core.to_single(single, value, 128)
    core.with_scalar("vec_axpy", next_reference(core, a), single, problem.post_scale, 128, 64)
    negative = core.on["halves"][4 + a]
    core.with_scalar("vec_muls", negative, value, -1.0, 128)
    for variants in tiles.each_epoch(core, lane_slots(core, a), epoch):
        for variant in variants:
            lanes.write(core, variant, sweep, negative)
