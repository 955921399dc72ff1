"""Count the tiles of keys that the row blocks of a call visit."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from flash_attention.call.block_mask import BlockMask
from flash_attention.call.call import Call
from flash_attention.call.tiling import PATTERNS, tiles_of


@dataclass(frozen=True)
class Visits:
    """The tiles that row blocks visit, over all heads and items of the batch.

    Attributes:
        row_blocks: tiles of queries.
        tiles: all pairs of a row block and a tile of keys.
        full: visited tiles of which every pair of query and key is visible.
        partial: visited tiles in which causality or a window hides some pairs.
        pairs: visible pairs of query and key.
        tile: tokens of a tile.
    """

    row_blocks: int
    tiles: int
    full: int
    partial: int
    pairs: int
    tile: int

    @property
    def visited(self) -> int:
        """Return the number of visited tiles."""
        return self.full + self.partial

    @property
    def density(self) -> float:
        """Return the share of tiles that are visited."""
        return self.visited / self.tiles

    def __str__(self) -> str:
        return (
            f"{self.row_blocks} row blocks visit {self.visited} of {self.tiles} tiles of {self.tile} x {self.tile} "
            f"({self.full} full, {self.partial} partial), {self.density:.1%}"
        )


def pattern(name: str, seq: int, tile: int) -> BlockMask:
    """Return the block mask that a constructor in PATTERNS makes for a length."""
    return getattr(BlockMask, name)(seq, tile=tile, **PATTERNS[name])


def masked(call: Call, block_mask: BlockMask) -> Call:
    """Return the call with a block mask.

    Raises:
        TypeError: it is no BlockMask.
        ValueError: the mask does not fit the call's sizes; with the expected shape.
    """
    if not isinstance(block_mask, BlockMask):
        raise TypeError(f"block_mask: got {type(block_mask).__name__}, allowed is a BlockMask")
    return replace(call, block_mask_shape=block_mask.tiles.shape, block_mask_tile=block_mask.tile)


def visits(call: Call, block_mask: BlockMask | None = None) -> Visits:
    """Return the tiles that a call's row blocks visit, by position and block mask. Other inputs may hide more.

    Args:
        call: of known sizes.
        block_mask: of the call. Default: None, the tiles of its tiling strategy, all visible.
    """
    tile = call.rules.tile if block_mask is None else block_mask.tile
    shown = np.ones((1, 1, 1, 1), np.uint8) if block_mask is None else block_mask.tiles
    starts = np.arange(tiles_of(call.seq_k, tile)) * tile
    stops = np.minimum(starts + tile, call.seq_k)
    counts, sizes = [], []
    for first in range(0, call.seq_q, tile):
        rows = range(first, min(first + tile, call.seq_q))
        low, high = np.array([call.band.keys(row) for row in rows])[..., None].swapaxes(0, 1)
        counts.append(np.maximum(0, np.minimum(high, stops) - np.maximum(low, starts)).sum(0))
        sizes.append(len(rows) * (stops - starts))
    pairs, every = np.array(counts), np.array(sizes)
    repeats = call.batch * call.heads // (shown.shape[0] * shown.shape[1])

    def count(per_tile: np.ndarray) -> int:
        return int((shown * per_tile).sum(dtype=np.int64)) * repeats

    full = count(pairs == every)
    return Visits(
        row_blocks=call.batch * call.heads * len(pairs),
        tiles=call.batch * call.heads * pairs.size,
        full=full,
        partial=count(pairs > 0) - full,
        pairs=count(pairs),
        tile=tile,
    )
