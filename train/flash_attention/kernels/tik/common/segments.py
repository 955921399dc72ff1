"""Segment ids and prefixes: which tiles they hide, and products of the Cube that are negative where keys are hidden.

An id is digits. The sum of (digit of the query - digit of the key) squared is 0 for equal ids and at least 1 for
others. Multiplied out it is a sum of products of a number of the query and a number of the key, which fit in one block
of 16 (`queries`, `keys`). All are whole numbers, so the sum is exact. An id below 0 adds 1 on its side: it differs from
every id.

Tiles without a common id are never visited. Inside tiles of one id there is nothing to hide.

A prefix ends inside one tile of keys, and positions in that tile say which keys it and causality show, see
`_positions`. They take the two products that ids leave. Beside ids a square counts for more than any position, so that
one product tells keys that both show from all others.

Functions that take `xp` are as in `varlen`.
"""

from __future__ import annotations

import math
from typing import Any, Callable

import numpy as np

from flash_attention.kernels.tik.common import mask, tile_lists
from flash_attention.kernels.tik.common.score_terms import TERMS
from flash_attention.kernels.tik.hardware import BYTES, FRACTAL, Buffer, usage
from flash_attention.kernels.tik.problem import KernelProblem, padded
from flash_attention.kernels.tik.recorder import Core
from flash_attention.kernels.tik.tik_types import BlockPlan, Number, Scalar, Tensor, TilePlan
from flash_attention.kernels.tik.varlen import Array

TILE = 128  # tokens of the tiles, unless the caller's block mask has others
WHOLE, PARTIAL = 1, 2  # states of a visible tile
NO_ID = 2**31 - 1  # in the place of negative ids, for the smallest id of a tile
DIGITS, BASE = 12, 8  # of an id: half of them for the whole UNITs in it, half for the rest
UNIT = 65536
SLACK = 64  # more than the rounding of an id to float32, through which a device may divide
NEAR, FAR = 128, 512  # unit of the beginning of a prefix's tile, and the largest position from there on
MOST = 512  # more than the squares of an id's digits add up to
OUTWEIGHS = 1024  # positions that a square of ids counts for
HIDES = 64.0  # lowers a float16 exponent until it leaves no probability


def stored_tokens(tokens: int, tile: int) -> int:
    """Return for how many tokens there are numbers: whole tiles, which the last token repeats."""
    return padded(tokens, max(tile, TILE))


def factors(problem: KernelProblem, stage: str) -> tuple[np.ndarray, np.ndarray]:
    """Return factors of a stage for numbers of queries and keys, float16 (1, TERMS, 1).

    The forward kernel takes the sums in float16. Times the post-scale they are at most -32 for hidden keys, which
    leaves no probability, and no less than -64 * MOST. Beside prefixes sums of ids are larger, see `_unit`. The
    backward kernel adds sums of ids to float32 scores, at most -2**22. With a soft cap or prefixes it shows keys as the
    forward kernel does: sums before the cap would hide nothing, and sums of positions are not 0 for visible keys.
    """
    unit, of_ids = _unit(problem), problem.call.segments
    square = unit * (OUTWEIGHS if problem.prefixed else 1)
    digits, squares = (2 * square, 1.0), (-square, 1.0)
    if stage != "forward" and not problem.prefixed and not problem.call.rules.softcap:
        digits, squares = (2.0**11, 2.0**12), (-(2.0**7), 2.0**15)
    result = np.zeros((2, 1, TERMS, 1), np.float16)
    for side, digit, ends, position in zip(result, digits, (squares, squares[::-1]), (unit, 1.0)):
        side[0, :DIGITS] = digit if of_ids else 0
        side[0, DIGITS : DIGITS + 2, 0] = ends if of_ids else 0
        side[0, DIGITS + 2 :] = position
    return result[0], result[1]


def _unit(problem: KernelProblem) -> float:
    """Return what a square or position of 1 counts in float16 sums. Sums are multiples of it.

    With ids and prefixes it only keeps the largest sums in float16. Vector makes them large enough to hide keys.
    """
    if _levels(problem):
        return 1 / 16
    return 2.0 ** math.ceil(math.log2(32 / problem.post_scale))


def numbers(xp: Any, problem: KernelProblem) -> Callable[..., tuple]:
    """Return make(prefix, queries, keys, block_mask) -> (states, numbers of queries, numbers of keys).

    The prefix is int32 (batch,), and left out if the problem is not prefixed. Queries and keys are ids, int32 (batch,
    tokens), and left out if it has none. The block mask is int32 of problem.block_mask_shape or smaller, or None.

    States are int32 of problem.block_mask_shape. Without a prefix see WHOLE, PARTIAL. With one they are 1 + the prefix,
    and negative if ids decide inside the tile. 0 is a hidden tile. Numbers are int32 (batch * stored_tokens / 16,
    TERMS, 16).
    """
    # Not what the problem lacks: all arrays are constants of a graph.
    position = _positions(xp, problem) if problem.prefixed else None
    ids = _ids(xp, problem) if problem.call.segments else None
    ones = xp.array(np.ones((1, *(problem.call.block_mask_shape or ())[1:])))

    def shown(states, block_mask):  # type: ignore[no-untyped-def]
        return states * (ones if block_mask is None else xp.as_int(block_mask != 0))

    def joined(of_ids, of_positions):  # type: ignore[no-untyped-def]
        return xp.stack(of_ids + of_positions)

    def of_prefix(prefix, block_mask=None):  # type: ignore[no-untyped-def]
        end, query, key = position(prefix)
        nothing = (query[0] * 0,) * (DIGITS + 2), (key[0] * 0,) * (DIGITS + 2)
        return shown(end + 1, block_mask), joined(nothing[0], query), joined(nothing[1], key)

    def of_ids(queries, keys, block_mask=None):  # type: ignore[no-untyped-def]
        meet, equal, query, key = ids(queries, keys)
        nothing = (query[0] * 0,) * 2, (key[0] * 0,) * 2
        states = meet * (PARTIAL - (PARTIAL - WHOLE) * equal)
        return shown(states, block_mask), joined(query, nothing[0]), joined(key, nothing[1])

    def of_both(prefix, queries, keys, block_mask=None):  # type: ignore[no-untyped-def]
        end, query, key = position(prefix)
        meet, equal, own, other = ids(queries, keys)
        states = (end + 1) * (meet * (equal - (1 - equal)))
        return shown(states, block_mask), joined(own, query), joined(other, key)

    if not problem.prefixed:
        return of_ids
    return of_both if problem.call.segments else of_prefix


def _ids(xp: Any, problem: KernelProblem) -> Callable[[Array, Array], tuple]:
    """Return make(queries, keys) -> (meet, equal, numbers of queries, numbers of keys).

    Numbers are tuples. `meet` is 0 for tiles without a common id, and `equal` is 1 for tiles of one id. Both are int32
    (batch, 1, query tiles, key tiles).
    """
    call = problem.call
    batch, tile = call.batch, call.block_mask_tile
    lengths = call.seq_q, call.seq_k
    tokens = [np.minimum(np.arange(stored_tokens(length, tile)), length - 1) for length in lengths]
    own, other = (xp.array(one.tolist()) for one in tokens)
    tiles = [-(-length // tile) for length in lengths]
    owned, visited = (
        xp.array(np.minimum(np.arange(count * tile), length - 1).tolist()) for count, length in zip(tiles, lengths)
    )

    def digits(ids):  # type: ignore[no-untyped-def]
        """Return the digits of ids from 0 on, as a tuple."""
        units = ids // UNIT
        result = ()
        for rest in (units, ids - units * UNIT + SLACK):
            for _ in range(DIGITS // 2 - 1):
                higher = rest // BASE
                result = result + (rest - higher * BASE,)
                rest = higher
            result = result + (rest,)
        return result

    def of_side(ids, places, second):  # type: ignore[no-untyped-def]
        ids = xp.reshape(xp.take(ids, places, 1), (-1, 16))
        negative = xp.as_int(ids < 0)
        of_id = digits(xp.maximum(ids, 0))
        squares, nothing = negative, negative * 0
        for digit in of_id:
            squares = squares + digit * digit
        one = nothing + 1
        ends = (one, squares) if second else (squares, one)
        return of_id + ends

    def ends(ids, places, count):  # type: ignore[no-untyped-def]
        """Return by tile: smallest and largest id, largest rest, whether it has one id."""
        ids = xp.reshape(xp.take(ids, places, 1), (batch * count, tile))
        rests = ids - ids // UNIT * UNIT
        low, high = xp.smallest(xp.where(ids < 0, ids * 0 + NO_ID, ids)), xp.largest(ids)
        alike = xp.logical_and(low == high, xp.smallest(rests) == xp.largest(rests))
        return low, high, xp.largest(rests), xp.as_int(xp.logical_and(alike, xp.smallest(ids) >= 0))

    def make(queries, keys):  # type: ignore[no-untyped-def]
        mine = ends(queries, owned, tiles[0])
        theirs = ends(keys, visited, tiles[1])
        low, high, rest, alike = [xp.reshape(one, (batch, 1, -1, 1)) for one in mine]
        first, last, end, same = [xp.reshape(one, (batch, 1, 1, -1)) for one in theirs]
        meet = xp.as_int(xp.logical_and(low <= last, first <= high))
        equal = xp.as_int(xp.logical_and(low == first, rest == end)) * alike * same
        return meet, equal, of_side(queries, own, False), of_side(keys, other, True)

    return make


def _positions(xp: Any, problem: KernelProblem) -> Callable[[Array], tuple]:
    """Return make(prefix) -> (prefix, two numbers of queries, two numbers of keys).

    The prefix is int32 (batch, 1, 1, 1), and no longer than the keys. It ends inside one tile of keys, so numbers count
    positions from the beginning of that tile. A number of a query less a number of a key is negative only for hidden
    keys, and for all of them in that tile. It is less than OUTWEIGHS.
    """
    call = problem.call
    size_q, size_k = (stored_tokens(length, call.block_mask_tile) for length in (call.seq_q, call.seq_k))
    query, key, length = np.arange(size_q)[None], np.arange(size_k)[None], call.seq_k
    position, places = xp.array(query + call.offset), xp.array(key)
    exists, stored = xp.array(query < call.seq_q), xp.array(key < call.seq_k)
    # Neither does a row behind the last query see a key, nor a query a key behind the last one.
    blind, unseen = xp.array(-3 * (query >= call.seq_q)), xp.array((FAR + 1) * (key >= call.seq_k))

    def make(prefix):  # type: ignore[no-untyped-def]
        end = xp.reshape(xp.minimum(xp.maximum(prefix, 0), length), (-1, 1))
        start = end // NEAR * NEAR
        of_query = xp.minimum(xp.maximum(position - start, -1), FAR)
        of_query = of_query * exists + blind
        of_key = xp.where(places < end, (places - start) * 0 - 2, xp.minimum(places - start, FAR))
        of_key = of_key * stored + unseen
        of_query, of_key = xp.reshape(of_query, (-1, 16)), xp.reshape(of_key, (-1, 16))
        ones = of_query * 0 + 1, of_key * 0 + 1
        return xp.reshape(end, (-1, 1, 1, 1)), (of_query, ones[0]), (ones[1], of_key * -1)

    return make


def addressable(problem: KernelProblem) -> bool:
    """Return if 32 bits hold the place of every number."""
    return all(math.prod(shape) < 2**31 for shape in shapes(problem).values())


def shapes(problem: KernelProblem) -> dict[str, tuple[int, int, int]]:
    """Return the shapes of the kernels' inputs by name: the numbers of queries and keys."""
    call = problem.call
    lengths = {"segment_queries": call.seq_q, "segment_keys": call.seq_k}
    tokens = {name: call.batch * stored_tokens(length, call.block_mask_tile) for name, length in lengths.items()}
    return {name: (count // 16, TERMS, 16) for name, count in tokens.items()}


def load(core: Core[BlockPlan], slot: Tensor, name: str, batch: Number, first: Number, tokens: int) -> None:
    """Load numbers of some tokens of a batch item, from `first` on, to L1."""
    of_item = core.gm[name].shape[0] // core.problem.call.batch * 16
    core.tik.data_move(slot, core.gm[name][batch * (of_item * TERMS) + first * TERMS], 0, 1, tokens, 0, 0)


def rows(problem: KernelProblem) -> int:
    """Return rows that limit sums on Vector. A step with a row moves the sums by half a round of the banks, twice."""
    return 1 + _levels(problem) if problem.compares else 0


def _levels(problem: KernelProblem) -> bool:
    """Return if negative sums become alike before they hide keys, see `_unit`."""
    return problem.prefixed and problem.call.segments


def initialise(core: Core[TilePlan]) -> None:
    """Write what tiles hold for hidden scores, if the kernel shows ids by `fetch_visible`."""
    for nothing, value in zip(core.on.copies("nothing"), (0.0, -_unit(core.problem))):
        core.fill(nothing, value, 128)


def sums(problem: KernelProblem, plan: BlockPlan, others: list[Buffer]) -> list[Buffer]:
    """Return the place of the sums for `fetch_visible`, if there are ids: for as many keys as L0C has room for."""
    if not problem.compares:
        return []
    room = (problem.capacity["L0C"] - usage(others)["L0C"]) // (plan.rows * 16 * BYTES["float32"])
    columns = plan.keys // 16
    most = max(n for n in range(1, columns + 1) if columns % n == 0 and n <= max(room, 1))
    return [Buffer("apart", "L0C", "float32", plan.rows * 16 * most)]


def fetch_visible(
    core: Core[TilePlan], number: Scalar, load: Callable[[], None], work: Tensor, limit: float | None
) -> None:
    """Run `mask.fetch_visible`. If ids or prefixes decide inside the tile, they hide more of it.

    Then `number` becomes the number of the visibility tile alone, or 1 if there is none.

    Args:
        load: records the loads of numbers to l0_segment_queries and l0_segment_keys.
        work: room for float16 of 16 keys.
        limit: as visible tiles hold it, if hidden scores are below it. None: 1 is visible and 0 is hidden.
    """
    tik, plan, visible = core.tik, core.plan, core.on.visible[0]
    partial = core.scalar("int32", "partial", number // tile_lists.PARTIAL)
    number.set_as(number % tile_lists.PARTIAL)
    with tik.if_scope(partial == 0):
        mask.fetch_visible(core, number)
    with tik.else_scope():
        load()
        _show_alike(core, limit)
        with tik.if_scope(number > 0):
            part, column = work.reinterpret_cast_to("float16"), plan.rows * 16
            with tik.for_range(0, plan.columns, name="column") as index:
                source = core.on.tiles[0][(number - 1) * math.prod(core.gm["tiles"].shape[1:]) + index * column]
                tik.data_move(part, source, 0, 1, plan.rows, 0, 0)
                target = visible[index * column]
                core.binary("vec_min", target, target, part, column)
        with tik.else_scope():
            number.set_as(1)


def _show_alike(core: Core[TilePlan], limit: float | None) -> None:
    """Write the visibility by numbers of tokens alone."""
    tik, on, rows, (squares, *_) = core.tik, core.on, core.plan.rows, core.on.apart
    columns, elements, shift = squares.shape[0] // (rows * 16), squares.shape[0], 2 * core.operand_shift
    unit = _unit(core.problem)
    with tik.for_range(0, core.plan.columns // columns, name="piece") as index:
        keys, (target, *sources) = (
            on.l0_segment_keys[0][index * (columns * FRACTAL)],
            [on.visible[0][index * elements + place * shift] for place in range(1 + 2 * len(on.nothing))],
        )
        tik.mmad(squares, on.l0_segment_queries[0], keys, rows, 16, columns * 16, 0)
        if _levels(core.problem):
            core.from_l0c(sources[3], squares, elements // FRACTAL)
            core.with_row("vec_min", sources[2], sources[3], on.nothing[0], elements)
            core.with_row("vec_max", sources[1], sources[2], on.nothing[1], elements)
            factor = 1 / unit if limit is None else HIDES / (unit * core.problem.post_scale)
            core.with_scalar("vec_muls", sources[0], sources[1], factor, elements)
            core.with_scalar("vec_adds", target, sources[0], 1.0 if limit is None else limit, elements)
        else:
            _limit(core, target, sources, squares, limit)


def _limit(core: Core[TilePlan], target: Tensor, sources: list[Tensor], squares: Tensor, limit: float | None) -> None:
    """Write the visibility by ids or by positions. Hidden keys have sums that are low enough, see `factors`."""
    elements, unit, nothing = squares.shape[0], _unit(core.problem), core.on.nothing[0]
    taken = sources[1 if limit is None else 0]
    core.from_l0c(taken, squares, elements // FRACTAL)
    if core.problem.prefixed:  # what is visible has any number from 0 on
        core.with_row("vec_min", taken, taken, nothing, elements)
    if limit is not None:
        core.with_scalar("vec_adds", target, sources[0], limit, elements)
        return
    if unit < 1:
        core.with_scalar("vec_muls", sources[1], sources[1], 1 / unit, elements)
    core.with_scalar("vec_adds", sources[0], sources[1], 1.0, elements)
    core.with_row("vec_max", target, sources[0], nothing, elements)
