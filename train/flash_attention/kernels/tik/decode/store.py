"""Stores of a core's sums of a row block, where merge.py finds them."""

from __future__ import annotations

from flash_attention.kernels.tik.decode.tiling import DecodePlan
from flash_attention.kernels.tik.recorder import Core
from flash_attention.kernels.tik.tik_types import Number


def fill(core: Core[DecodePlan], slot: Number) -> None:
    """Move sums, references and totals to a slot, see schedule.py."""
    for name, buffer in (("sums", "sum"), ("statistics", "statistics")):
        source = core.on.copies(buffer)[0]
        size = source.shape[0]
        core.tik.data_move(core.gm[name][core.wide(slot, size)], source, 0, 1, size // 8, 0, 0)
