"""Bank conflicts of the Unified Buffer.

256 KiB are 64 banks in 16 groups of 4; blocks of 32 bytes are interleaved over the groups: ``group =
(address / 32) % 16``, and the bank inside a group is the 64 KiB layer. Geometry: platform
file Ascend910A.ini; arbitration rules: Ascend C documentation of the A2 (proxy).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

BLOCK = 32
GROUPS = 16
LAYER = 65536


class Stream(NamedTuple):
    """The blocks that one operand of a vector instruction touches.

    ``address`` in bytes, ``blocks`` per repeat (usually 8), strides in blocks of 32 bytes.
    """

    address: int
    blocks: int = 8
    block_stride: int = 1
    repeat_stride: int = 8


def _rows(stream: Stream, repeats: int) -> np.ndarray:
    """Return the row numbers (address / 32): one line per repeat, one column per block."""
    line = stream.address // BLOCK + np.arange(stream.blocks) * stream.block_stride
    return line + np.arange(repeats)[:, None] * stream.repeat_stride


def _count(bins: np.ndarray, size: int) -> np.ndarray:
    """Count per repeat how often each bin occurs."""
    repeats = len(bins)
    flat = bins + np.arange(repeats)[:, None] * size
    return np.bincount(flat.ravel(), minlength=repeats * size).reshape(repeats, size)


def _unique_rows(rows: np.ndarray, stream: Stream) -> np.ndarray:
    """Return the accesses; a block stride of 0 repeats one row, which is accessed once."""
    return rows[:, :1] if stream.block_stride == 0 else rows


@lru_cache(maxsize=4096)
def conflict_cycles(
    per_repeat: float, repeats: int, dst: Stream, sources: tuple[Stream, ...] = (), reads_add: bool = True
) -> float:
    """Return the cycles of a vector instruction with its bank conflicts.

    Each repeat takes the largest of these numbers:

    * ``per_repeat``,
    * the reads of all sources that meet in one group,
    * the writes that meet in one group,
    * the reads and writes of a bank, if a block of ``dst`` and the source block it is computed from lie in that bank.

    Args:
        per_repeat: cycles of a repeat without conflicts.
        repeats: number of repeats.
        dst: blocks written.
        sources: blocks read, one stream per source.
        reads_add: whether reads of all sources add to a write in their bank; else reads of one source do.

    Returns:
        Cycles of all repeats together.
    """
    if repeats <= 0:
        return 0.0
    dst_rows = _rows(dst, repeats)
    cycles = np.maximum(per_repeat, _count(_unique_rows(dst_rows, dst) % GROUPS, GROUPS).max(1))
    if sources:
        src_rows = [_rows(source, repeats) for source in sources]
        reads = np.concatenate([_unique_rows(rows, source) for rows, source in zip(src_rows, sources)], axis=1)
        cycles = np.maximum(cycles, _count(reads % GROUPS, GROUPS).max(1))
        cycles = np.maximum(cycles, _read_write(dst, dst_rows, src_rows, [reads] if reads_add else src_rows))
    return float(cycles.sum())


def _bank(rows: np.ndarray) -> np.ndarray:
    return rows % GROUPS + GROUPS * (rows // (LAYER // BLOCK) % 4)


def _read_write(dst: Stream, dst_rows: np.ndarray, src_rows: list[np.ndarray], reads: list[np.ndarray]) -> np.ndarray:
    """Count per repeat the accesses of the busiest bank of a read and write.

    The largest of ``reads`` counts, rows that are read one after another.
    """
    banks = 4 * GROUPS
    dst_bank = _bank(dst_rows)
    shared = np.zeros((len(dst_rows), banks), bool)
    for rows in src_rows:
        width = min(rows.shape[1], dst_rows.shape[1])
        repeat, block = np.nonzero(_bank(rows[:, :width]) == dst_bank[:, :width])
        shared[repeat, dst_bank[repeat, block]] = True
    if not shared.any():
        return np.zeros(len(dst_rows))
    accesses = _count(_bank(_unique_rows(dst_rows, dst)), banks)
    accesses = accesses + np.maximum.reduce([_count(_bank(rows), banks) for rows in reads])
    return np.where(shared, accesses, 0).max(1)
