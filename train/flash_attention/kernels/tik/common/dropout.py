"""Dropout from packed keep decisions, one bit per score, expanded by vec_sel.

One vec_sel covers 8 queries x 16 keys. Its 128 selection bits are 8 pairs of bytes, which stand side by side in the
packed layout (layout.store_keep_bits). 128 scores cost one instruction and 2 cycles on Vector, so a tile of 128 x 128
takes 128 instructions. The row total is summed before dropout, so the tile goes to the Cube twice.
"""

from __future__ import annotations

from typing import Callable

from flash_attention.kernels.tik.common.table_row import TableRow
from flash_attention.kernels.tik.common.tails import by_keys, by_rows
from flash_attention.kernels.tik.problem import padded
from flash_attention.kernels.tik.recorder import Core
from flash_attention.kernels.tik.tik_types import Number, Tensor, TilePlan

GROUP = 128  # scores per instruction
STEP = 16  # bytes of bits per instruction; operands must start at multiples of 32


def fetch_keep(core: Core[TilePlan], item: TableRow, head: Number, tile: Number, start: Number, rows: Number) -> None:
    """Keep bits of a tile. They are stored twice, 16 bytes apart, so that every instruction has an aligned address."""
    if core.problem.sequences:
        with core.tik.if_scope(rows > 0):
            _fetch_of_sequence(core, item, head, tile, start)
        return
    height = core.plan.rows

    def emit(have: int, columns: int) -> None:
        source = core.wide(head * (core.seq_k // 16) + tile * core.plan.columns, core.seq_q * 2) + start * 2
        for copy, buffer in enumerate(core.on.keep):
            gaps = (core.seq_q - have) // 16, (height - have) // 16
            core.tik.data_move(buffer, core.gm["keep"][source + copy * STEP], 0, columns, have // 16, *gaps)

    by_rows(core, rows, lambda have: by_keys(core, tile, lambda keys: emit(padded(have), padded(keys) // 16)))


def _fetch_of_sequence(core: Core[TilePlan], item: TableRow, head: Number, tile: Number, start: Number) -> None:
    """Do the same for packed sequences, each of which has a pitch of its own."""
    plan, tik = core.plan, core.tik
    pitch = core.scalar("int32", "keep_pitch", item.keep_pitch())
    keys = core.scalar("int32", "keep_keys", item["keys"] - tile * plan.keys)
    with tik.if_scope(keys > plan.keys):
        keys.set_as(plan.keys)
    source = core.wide(head, core.problem.keep_blocks * 2 * STEP) + core.wide(item["keep"], 2 * STEP)
    source = source + core.wide(tile * plan.columns, 2) * pitch + start * 2
    with tik.if_scope(keys > 0):
        for copy, buffer in enumerate(core.on.keep):
            moved = buffer, core.gm["keep"][source + copy * STEP], 0, (keys + 15) // 16
            tik.data_move(*moved, plan.rows // 16, (pitch - plan.rows) // 16, 0)


def select(
    core: Core[TilePlan], target: Tensor, kept: Tensor, dropped: Callable[[int], Tensor], at: int, elements: int
) -> None:
    """Choose target = keep bit ? kept : dropped for `elements` from `at` of a tile on. Target and kept start there.

    dropped(first) holds what is dropped from element `first` of target on.
    """
    for first in range(0, elements, GROUP):
        index = (at + first) // GROUP
        bits = core.on.keep[index % 2][index // 2 * 2 * STEP]
        core.tik.vec_sel(GROUP, 0, target[first], bits, kept[first], dropped(first), 1, 8, 8, 8)
