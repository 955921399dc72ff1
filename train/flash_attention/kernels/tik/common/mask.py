"""Visibility of single scores: tiles of ones and zeros by position, explicit masks, and what they do to scores.

The forward multiplies a hidden probability by zero, which is exact because none saturates, and lowers hidden scores
before a maximum. If its scores are float16, tiles by position hold the limits of the exponents instead, so that
hiding costs Vector nothing. The backward lowers hidden scores before the exponential, because no row reference holds
them down. It does so by a product of the Cube if it can (backward/kernel.py), else by the functions here.
"""

from __future__ import annotations

import math

from flash_attention.kernels.tik.common.tails import by_keys, by_rows
from flash_attention.kernels.tik.problem import padded
from flash_attention.kernels.tik.recorder import Core
from flash_attention.kernels.tik.tik_types import Number, Tensor, TilePlan

LOWEST = -65504.0


def fetch_visible(core: Core[TilePlan], number: Number) -> None:
    """Move visibility tile `number` (from 1 on) from L1 to the Unified Buffer. Skipped at run time for 0.

    The tile starts at index `number` of the first axis of the tiles, whatever that axis counts.
    """
    if core.band:
        core.band.fetch(number)
        return
    area, step = core.plan.rows * core.plan.keys, math.prod(core.gm["tiles"].shape[1:])
    visible, tiles = core.on.visible[0], core.on.tiles[0]
    with core.tik.if_scope(number > 0):
        core.tik.data_move(visible, tiles[(number - 1) * step], 0, 1, area // 16, 0, 0)


def fetch_plane(
    core: Core[TilePlan], name: str, buffer: str, plane: Number, tile: Number, start: Number, rows: Number
) -> None:
    """Fetch a tile of a mask or bias, FRACTAL_NZ (planes, seq_k / 16, seq_q, 16).

    Past the stored rows and keys the buffer keeps older values; those scores are never used.
    """
    target = core.on.copies(buffer)[0]

    def emit(have: int, columns: int) -> None:
        # Piece by piece, so that a piece can come as soon as Vector is done with the one before in its place.
        for first in range(0, columns, 2):
            column = plane * (core.seq_k // 16) + tile * core.plan.columns + first
            source = core.wide(column, core.seq_q * 16) + start * 16
            place, count = (target, first * core.plan.rows * 16), min(2, columns - first)
            core.move(place, (core.gm[name], source), count, have, core.seq_q - have, core.plan.rows - have)

    by_rows(core, rows, lambda have: by_keys(core, tile, lambda keys: emit(padded(have), padded(keys) // 16)))


def hide_visible(core: Core[TilePlan], half: Tensor, at: int, elements: int) -> None:
    """Multiply half, which holds elements at.. of a tile, by the visibility tile."""
    core.binary("vec_mul", half, half, core.on.visible[0][at:], elements)


def hide_explicit(core: Core[TilePlan], half: Tensor, at: int, elements: int) -> None:
    """Compute half -= half * hidden for elements at.. of a tile: zero if the explicit mask is 1."""
    product = core.on.scratch[0].reinterpret_cast_to("float16")
    core.binary("vec_mul", product, half, core.on.hidden[0][at:], elements)
    core.binary("vec_sub", half, half, product, elements)


def lower_visible(core: Core[TilePlan], score: Tensor, at: int, elements: int, limit: float) -> None:
    """Lower hidden float16 scores to LOWEST before a maximum.

    Args:
        limit: as visible tiles hold it, or 0 if they hold 1 and 0.
    """
    _lower(core, score, core.on.visible[0][at:], -LOWEST, elements, limit)


def lower_explicit(core: Core[TilePlan], score: Tensor, at: int, elements: int) -> None:
    """Lower scores hidden by the explicit mask to LOWEST before a maximum."""
    _lower(core, score, core.on.hidden[0][at:], LOWEST, elements, 0.0)


def _lower(core: Core[TilePlan], score: Tensor, tile: Tensor, factor: float, elements: int, one: float) -> None:
    """Compute score = min(score, limit). The limit is factor for ones in `tile` and -factor for zeros.

    If `one` is not 0, it stands for ones, and negative numbers for zeros.
    """
    to_one = 2.0 ** -math.floor(math.log2(one)) if one else 0.0  # times ones it is 1 or more
    size = min(part.size for part in core.buffers if part.name == "probability_piece")
    for first in range(0, elements, size):
        count, limit, ones = min(size, elements - first), core.on.probability_piece[first // size % 2], tile[first:]
        if one:
            core.with_row("vec_max", limit, ones, core.on.zeros[0], count)
            core.with_scalar("vec_muls", limit, limit, to_one, count)
            core.with_row("vec_min", limit, limit, core.on.half_ones[0], count)
            ones = limit
        core.with_scalar("vec_adds", limit, ones, -0.5, count)
        core.with_scalar("vec_muls", limit, limit, factor, count)
        core.binary("vec_add", limit, limit, limit, count)
        core.binary("vec_min", score[first:], score[first:], limit, count)


def lower_visible_single(core: Core[TilePlan], score: Tensor, work: Tensor, at: int, elements: int) -> None:
    """Lower hidden float32 scores by 65504 squared; `work` is float16 of that size."""
    core.with_scalar("vec_adds", work, core.on.visible[0][at:], -1.0, elements)
    core.with_scalar("vec_muls", work, work, -LOWEST, elements)
    core.add_half(score, work, -LOWEST, elements)


def lower_explicit_single(core: Core[TilePlan], score: Tensor, work: Tensor, at: int, elements: int) -> None:
    """Lower float32 scores that the explicit mask hides by 65504 squared. `work` is float16 of that size."""
    core.with_scalar("vec_muls", work, core.on.hidden[0][at:], -LOWEST, elements)
    core.add_half(score, work, LOWEST, elements)
