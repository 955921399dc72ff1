"""Compute the keys a query row sees and the key tiles a query tile visits.

All rules of position (causal, token window, block window) together are one interval per query row, [lo, hi) in key
indices. An explicit mask only hides keys inside it. The native and the TIK kernels mirror the formulas of `Band.keys`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

ALIGNMENTS = ("top_left", "bottom_right")
UNLIMITED = -1
ALL_BLOCKS = 65536  # this many blocks, or more, are all of them, however long the sequence


def query_offset(alignment: str, seq_q: int, seq_k: int) -> int:
    """Return the key position of query row 0. It is negative if queries are bottom-right aligned and more than keys."""
    return seq_k - seq_q if alignment == "bottom_right" else 0


class TileVisit(NamedTuple):
    """One tile to visit. `partial` is False if every row of the pair of tiles sees every key of it."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs
    partial: bool


@dataclass(frozen=True)
class Band:
    """Positional visibility of a whole call, in integers only.

    Query row i stands at key position p = i + offset, see `query_offset`. Every rule is written in p, and all
    divisions round towards minus infinity (p may be negative):

        keys          0 <= j < seq_k
        causal        j <= p
        window        p - left <= j <= p + right                        (each side -1 = unlimited)
        prefix        j < prefix is visible whatever p is; only with causal and without windows
        block window  p // block - prev_blocks <= j // block <= p // block + next_blocks   (each ALL_BLOCKS = unlimited)

    lo and hi never decrease from one row to the next, and the intervals of neighbouring rows touch or overlap.
    """

    seq_q: int
    seq_k: int
    offset: int = 0
    causal: bool = False
    left: int = UNLIMITED
    right: int = UNLIMITED
    prev_blocks: int = ALL_BLOCKS
    next_blocks: int = ALL_BLOCKS
    block: int = 128
    prefix: int = 0

    def keys(self, row: int) -> tuple[int, int]:
        """Return the interval [lo, hi) of query `row`'s visible keys; lo == hi if none."""
        position = row + self.offset
        tile = position // self.block
        lo = 0 if self.prev_blocks >= ALL_BLOCKS else max(0, (tile - self.prev_blocks) * self.block)
        hi = self.seq_k
        if self.next_blocks < ALL_BLOCKS:
            hi = min(hi, (tile + self.next_blocks + 1) * self.block)
        if self.causal:
            hi = min(hi, position + 1)
        if self.left >= 0:
            lo = max(lo, position - self.left)
        if self.right >= 0:
            hi = min(hi, position + self.right + 1)
        lo, hi = min(lo, self.seq_k), max(hi, self.prefix)
        return lo, max(lo, hi)

    def union(self, first: int, last: int) -> tuple[int, int]:
        """Return the interval of keys that some row of first..last (both included) sees."""
        lo = self.keys(first)[0]
        return lo, max(lo, self.keys(last)[1])

    def common(self, first: int, last: int) -> tuple[int, int]:
        """Return the interval of keys that all rows first..last (both included) see."""
        lo = self.keys(last)[0]
        return lo, max(lo, self.keys(first)[1])

    def key_tiles(self, query_tile: int, tile_q: int, tile_k: int) -> list[TileVisit]:
        """Return the key tiles that a tile of queries visits, in ascending order.

        The last tile of either side may be short; it counts as full when all its existing pairs are visible.
        """
        first = query_tile * tile_q
        last = min(first + tile_q, self.seq_q) - 1
        lo, hi = self.union(first, last)
        if lo >= hi:
            return []
        all_lo, all_hi = self.common(first, last)
        visits = []
        for index in range(lo // tile_k, (hi - 1) // tile_k + 1):
            start, stop = index * tile_k, min((index + 1) * tile_k, self.seq_k)
            visits.append(TileVisit(index, not (all_lo <= start and stop <= all_hi)))
        return visits

    def rows_that_see(self, start: int, stop: int) -> tuple[int, int]:
        """Return the rows [first, end) that see a key of [start, stop). There are none if first >= end."""
        # These are the rows with hi > start and lo < stop: one interval, because both bounds are monotone.
        return (
            _first_row(self.seq_q, lambda row: self.keys(row)[1] > start),
            _first_row(self.seq_q, lambda row: self.keys(row)[0] >= stop),
        )

    def pairs(self) -> int:
        """Return the number of visible (query, key) pairs. The work of a run is proportional to it."""
        return sum(hi - lo for lo, hi in self.rows())

    def rows(self) -> Iterator[tuple[int, int]]:
        """Yield `keys(row)` of every row in turn."""
        return (self.keys(row) for row in range(self.seq_q))

    def unlimited(self) -> bool:
        """Return True if every query sees every key, so that no positional test is needed."""
        return self.common(0, self.seq_q - 1) == (0, self.seq_k)

    def dense(self):
        """Return a boolean NumPy array (seq_q, seq_k), True = visible. For references and tests: O(seq_q * seq_k)
        memory.
        """
        import numpy as np

        bounds = np.array(list(self.rows()), dtype=np.int64).reshape(self.seq_q, 2)
        column = np.arange(self.seq_k)[None, :]
        return (column >= bounds[:, :1]) & (column < bounds[:, 1:])


def _first_row(rows: int, holds) -> int:
    """Return the smallest row in [0, rows] that meets a monotone condition. Return `rows` if none does."""
    low, high = 0, rows
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
