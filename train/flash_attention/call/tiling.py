"""Tiling strategies by name.

A strategy says how many queries, and how many keys, one tile holds. That tile is the unit of prev_block_num and
next_block_num, and the side of the compact causal mask. A kernel may split a tile further for its own memories.
"""

from __future__ import annotations

STRATEGIES = {
    "sparse": 128,  # the default: fills the Cube of an Ascend 910 at head_dim 64 and 128
    "sparse_64": 64,  # block windows twice as fine
    "sparse_256": 256,  # block windows twice as coarse
}
DEFAULT_STRATEGY = "sparse"
# The tokens that a tile of a block mask may have.
BLOCK_MASK_TILES = tuple(sorted(STRATEGIES.values()))
# Constructors of BlockMask that take a length alone, with the other arguments that they need.
PATTERNS: dict[str, dict] = {"local_global": {}, "strided": {"stride": 8}, "bigbird": {"seed": 0}, "sink_window": {}}


def tile_of(name: str) -> int:
    """Return the tokens of a tile of the strategy called `name`."""
    if not isinstance(name, str):
        raise TypeError(f"tiling_stgy_name: got {type(name).__name__} {name!r}, allowed is a string")
    if name not in STRATEGIES:
        raise ValueError(f"tiling_stgy_name: got {name!r}, allowed are {', '.join(STRATEGIES)}")
    return STRATEGIES[name]


def tiles_of(seq: int, tile: int) -> int:
    """Return the number of tiles that hold `seq` tokens. The last one may be short."""
    return -(-seq // tile)
