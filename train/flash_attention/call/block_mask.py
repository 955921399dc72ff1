"""BlockMask: which tiles of queries see which tiles of keys."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from flash_attention.call.checks import check_int
from flash_attention.call.tiling import BLOCK_MASK_TILES, tiles_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_ALIVE: weakref.WeakValueDictionary[int, BlockMask] = weakref.WeakValueDictionary()


def known(key: str) -> BlockMask:
    """Return a mask by its `BlockMask.key`. Some mask that is equal must be alive."""
    # Not values(): it iterates, and another thread may make a mask meanwhile.
    alive = (reference() for reference in _ALIVE.valuerefs())
    return next(mask for mask in alive if mask is not None and mask.key == key)


class BlockMask:
    """A block mask: tiles of queries by tiles of keys, each visible or hidden.

    It is frozen, and can be hashed and compared. Inside a visible tile the other rules of a call decide (causal,
    windows, masks, segments), so all of them may stand beside it. The last tile of either side may be short.

    Args:
        tiles: integers or booleans, (query tiles, key tiles) or (batch or 1, heads or 1, query tiles, key tiles). Not
            0 = visible.
        tile: tokens of a tile: 64, 128 or 256.

    Attributes:
        tiles: uint8 (batch or 1, heads or 1, query tiles, key tiles), 1 = visible. `Tensor(mask.tiles)` is the argument
            `block_mask` of a compiled function.
        tile: tokens of a tile.

    Raises:
        TypeError, ValueError: an argument is not allowed.

    Examples:
        >>> from flash_attention import BlockMask
        >>> mask = BlockMask.local_global(1024, window=1, global_tiles=1)
        >>> print(mask.tiles.shape, mask.density())
        (1, 1, 8, 8) 0.53125
    """

    __slots__ = ("__weakref__", "_key", "tile", "tiles")

    tiles: np.ndarray
    tile: int
    _key: str

    def __init__(self, tiles: Any, tile: int = 128):
        array = np.asarray(tiles)
        if array.dtype.kind not in "biu":
            raise TypeError(f"tiles: got dtype {array.dtype}, allowed are integers and bool")
        if array.ndim not in (2, 4) or 0 in array.shape:
            raise ValueError(
                f"tiles: got shape {array.shape}, allowed are (query tiles, key tiles) and (batch or 1, heads or 1, "
                "query tiles, key tiles)"
            )
        check_tile(tile)
        array = (array != 0).astype(np.uint8).reshape((1, 1, *array.shape)[-4:])
        array.flags.writeable = False
        object.__setattr__(self, "tiles", array)
        object.__setattr__(self, "tile", int(tile))
        object.__setattr__(self, "_key", "")
        _ALIVE[id(self)] = self

    @property
    def key(self) -> str:
        """Return what equal masks have in common, and no others. A graph passes it on where it takes no object."""
        if not self._key:
            content = f"{self.tile} {self.tiles.shape}".encode() + self.tiles.tobytes()
            object.__setattr__(self, "_key", hashlib.sha256(content).hexdigest())
        return self._key

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name}: a BlockMask is frozen; make another one")

    __delattr__ = __setattr__  # type: ignore[assignment]

    def __reduce__(self):
        return BlockMask, (self.tiles, self.tile)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BlockMask):
            return NotImplemented
        return self.tile == other.tile and np.array_equal(self.tiles, other.tiles)

    def __hash__(self) -> int:
        return hash((self.tile, self.tiles.shape, self.tiles.tobytes()))

    def __repr__(self) -> str:
        return f"BlockMask(tiles of shape {self.tiles.shape}, tile={self.tile}, density={self.density():.3g})"

    def __and__(self, other: BlockMask) -> BlockMask:
        return self._with(other, np.logical_and)

    def __or__(self, other: BlockMask) -> BlockMask:
        return self._with(other, np.logical_or)

    def _with(self, other: BlockMask, combine: Callable) -> BlockMask:
        if not isinstance(other, BlockMask):
            return NotImplemented
        if self.tile != other.tile:
            raise ValueError(f"BlockMask: got tiles of {self.tile} and {other.tile} tokens, allowed are equal ones")
        try:
            return BlockMask(combine(self.tiles, other.tiles), self.tile)
        except ValueError:
            raise ValueError(
                f"BlockMask: got shapes {self.tiles.shape} and {other.tiles.shape}, allowed are shapes that broadcast"
            ) from None

    def density(self) -> float:
        """Return the share of tiles that are visible."""
        return float(self.tiles.mean())

    def dense(self, seq_q: int, seq_k: int) -> np.ndarray:
        """Return a boolean (batch or 1, heads or 1, seq_q, seq_k), True = visible. It is for references and small
        sizes.
        """
        for name, length, tiles in zip(("seq_q", "seq_k"), (seq_q, seq_k), self.tiles.shape[2:]):
            check_int(name, length, 0, tiles * self.tile)
        return dense(self.tiles, self.tile, seq_q, seq_k) != 0

    def plot(self, axes: Axes | None = None, batch: int = 0, head: int = 0) -> Axes:
        """Draw the tiles of one batch item and head with matplotlib.

        Args:
            axes: to draw into. Default: None, new ones.
            batch: the batch item.
            head: the head.
        """
        if axes is None:
            from matplotlib import pyplot

            axes = pyplot.gca()
        items, heads = self.tiles.shape[:2]
        check_int("batch", batch, 0, items - 1)
        check_int("head", head, 0, heads - 1)
        axes.imshow(self.tiles[batch, head], cmap="Blues", vmin=0, vmax=1.5, interpolation="nearest")
        axes.set_xlabel(f"tiles of {self.tile} keys")
        axes.set_ylabel(f"tiles of {self.tile} queries")
        return axes

    @classmethod
    def from_rule(
        cls, rule: Callable, seq_q: int, seq_k: int | None = None, *, batch: int = 1, heads: int = 1, tile: int = 128
    ) -> BlockMask:
        """Make a mask from a function of indices.

        Args:
            rule: rule(batch, head, query_tile, key_tile), of int64 arrays that broadcast, gives booleans. Tiles count
                from 0.
            seq_q: queries.
            seq_k: keys. Default: None, as many as queries.
            batch: items of the batch, 1 if they share the mask.
            heads: query heads, 1 if they share the mask.
            tile: tokens of a tile.
        """
        rows, columns = _sides(seq_q, seq_k, tile)
        check_int("batch", batch, 1)
        check_int("heads", heads, 1)
        shape = batch, heads, rows, columns
        seen = np.asarray(rule(*np.ogrid[:batch, :heads, :rows, :columns]))
        try:
            return cls(np.broadcast_to(seen, shape), tile)
        except ValueError:
            raise ValueError(f"rule: got shape {seen.shape}, allowed are shapes that broadcast to {shape}") from None

    @classmethod
    def local_global(
        cls, seq_q: int, seq_k: int | None = None, *, window: int = 1, global_tiles: int = 1, tile: int = 128
    ) -> BlockMask:
        """Make a window of neighbours and global tiles, as Longformer has them.

        Args:
            seq_q: queries.
            seq_k: keys. Default: None, as many as queries.
            window: tiles that a tile of queries sees before and after its own.
            global_tiles: the first tiles, which see all keys and which all queries see.
            tile: tokens of a tile.
        """
        _check_counts(window=window, global_tiles=global_tiles)
        return cls.from_rule(
            lambda _b, _h, row, column: (abs(row - column) <= window) | (row < global_tiles) | (column < global_tiles),
            *(seq_q, seq_k),
            tile=tile,
        )

    @classmethod
    def strided(
        cls, seq_q: int, seq_k: int | None = None, *, stride: int, window: int = 1, tile: int = 128
    ) -> BlockMask:
        """Make a window of neighbours and a stride of tiles, as Sparse Transformer does.

        Args:
            seq_q: queries.
            seq_k: keys. Default: None, as many as queries.
            stride: the last of every so many tiles of keys is visible to all queries.
            window: tiles that a tile of queries sees before and after its own.
            tile: tokens of a tile.
        """
        _check_counts(window=window)
        check_int("stride", stride, 1)
        return cls.from_rule(
            lambda _b, _h, row, column: (abs(row - column) <= window) | ((column + 1) % stride == 0),
            *(seq_q, seq_k),
            tile=tile,
        )

    @classmethod
    def bigbird(
        cls,
        seq_q: int,
        seq_k: int | None = None,
        *,
        seed: int,
        window: int = 1,
        global_tiles: int = 1,
        random_tiles: int = 2,
        heads: int = 1,
        tile: int = 128,
    ) -> BlockMask:
        """Make a window of neighbours, global tiles and random tiles, as BigBird has them.

        Args:
            seq_q: queries.
            seq_k: keys. Default: None, as many as queries.
            seed: of the random tiles, an integer >= 0.
            window: tiles that a tile of queries sees before and after its own.
            global_tiles: the first tiles, which see all keys and which all queries see.
            random_tiles: further tiles that each tile of queries sees, as far as there are any.
            heads: query heads with random tiles of their own; 1: all share them.
            tile: tokens of a tile.
        """
        check_int("seed", seed, 0)
        check_int("random_tiles", random_tiles, 0)
        check_int("heads", heads, 1)
        regular = cls.local_global(seq_q, seq_k, window=window, global_tiles=global_tiles, tile=tile)
        shape = heads, *regular.tiles.shape[2:]
        # Visible tiles come last in this order, so that the first ones are all new.
        order = np.random.default_rng(seed).random(shape) + regular.tiles[0]
        rank = np.argsort(np.argsort(order, axis=-1), axis=-1)
        return regular | cls((rank < random_tiles)[None], tile)

    @classmethod
    def sink_window(
        cls, seq_q: int, seq_k: int | None = None, *, sink_tiles: int = 1, window: int = 1, tile: int = 128
    ) -> BlockMask:
        """Make first tiles for all queries and a window, as streaming models do.

        Queries are aligned with the last keys. Give `causal=True, causal_alignment="bottom_right"` beside it.

        Args:
            seq_q: queries.
            seq_k: keys, at least as many. Default: None, as many as queries.
            sink_tiles: the first tiles of keys.
            window: tiles of keys before the tile of a query's own position.
            tile: tokens of a tile.
        """
        _check_counts(window=window, sink_tiles=sink_tiles)
        keys = seq_q if seq_k is None else seq_k
        _sides(seq_q, seq_k, tile)
        if keys < seq_q:
            raise ValueError(f"seq_k: got {keys}, allowed are at least as many as the {seq_q} queries")

        def rule(_b, _h, row, column):
            first = (row * tile + keys - seq_q) // tile
            last = (np.minimum(row * tile + tile, seq_q) - 1 + keys - seq_q) // tile
            return (column < sink_tiles) | ((column >= first - window) & (column <= last))

        return cls.from_rule(rule, seq_q, seq_k, tile=tile)

    @classmethod
    def documents(cls, lengths: Any, *, tile: int = 128) -> BlockMask:
        """Make a mask of documents, one behind the other, that see themselves only.

        Args:
            lengths: tokens of each document, multiples of `tile`; the last one may have any length. For other lengths
                give `segment_ids`, which need no block mask.
            tile: tokens of a tile.
        """
        check_tile(tile)
        array = np.asarray(lengths)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise TypeError(f"lengths: got {lengths!r}, allowed are integers, one for each document")
        lengths = array.tolist()
        for place, length in enumerate(lengths):
            check_int(f"lengths[{place}]", length, 1)
            if length % tile and place + 1 < len(lengths):
                raise ValueError(
                    f"lengths[{place}]: got {length}, allowed are multiples of {tile}; give segment_ids for documents "
                    "that share a tile"
                )
        if not len(lengths):
            raise ValueError("lengths: got none, allowed is at least one document")
        numbers = np.repeat(np.arange(len(lengths)), [tiles_of(length, tile) for length in lengths])
        return cls(numbers[:, None] == numbers, tile)

    @classmethod
    def from_lists(
        cls,
        kv_num_blocks: Any,
        kv_indices: Any,
        full_kv_num_blocks: Any = None,
        full_kv_indices: Any = None,
        *,
        tile: int = 128,
    ) -> BlockMask:
        """Make a mask from the lists that torch's FlexAttention keeps in its BlockMask.

        Partial and full tiles are visible alike. What hides scores inside partial tiles is a rule of the call.

        Args:
            kv_num_blocks: ints (batch or 1, heads or 1, query tiles): how many partial tiles of keys a tile sees.
            kv_indices: ints (batch or 1, heads or 1, query tiles, key tiles): these, in the first places.
            full_kv_num_blocks: likewise of full tiles. Default: None, there are none.
            full_kv_indices: likewise. Default: None.
            tile: tokens of a tile, FlexAttention's BLOCK_SIZE.
        """
        seen = _of_lists("kv_num_blocks", "kv_indices", kv_num_blocks, kv_indices)
        if (full_kv_num_blocks is None) != (full_kv_indices is None):
            raise ValueError("full_kv_num_blocks, full_kv_indices: got one of them, allowed are both or none")
        if full_kv_indices is not None:
            seen = seen | _of_lists("full_kv_num_blocks", "full_kv_indices", full_kv_num_blocks, full_kv_indices)
        return cls(seen, tile)

    def to_lists(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return (kv_num_blocks, kv_indices, full_kv_num_blocks, full_kv_indices) as FlexAttention has them, int32.

        All visible tiles are full. Behind a list stand the other tiles, in their order.
        """
        counts = self.tiles.sum(-1, dtype=np.int32)
        indices = np.argsort(1 - self.tiles.astype(np.int8), axis=-1, kind="stable").astype(np.int32)
        none = np.broadcast_to(np.arange(self.tiles.shape[-1], dtype=np.int32), indices.shape).copy()
        return np.zeros_like(counts), none, counts, indices


def check_tile(tile: object) -> None:
    """Raise an error unless a block mask may have tiles of so many tokens."""
    check_int("tile", tile, 1)
    if tile not in BLOCK_MASK_TILES:
        raise ValueError(f"tile: got {tile}, allowed are {', '.join(map(str, BLOCK_MASK_TILES))}")


def dense(tiles: np.ndarray, tile: int, seq_q: int, seq_k: int) -> np.ndarray:
    """Return the tiles' numbers for each (query, key): (..., seq_q, seq_k)."""
    return tiles[..., np.arange(seq_q)[:, None] // tile, np.arange(seq_k) // tile]


def _sides(seq_q: int, seq_k: int | None, tile: int) -> tuple[int, int]:
    """Return the numbers of tiles of queries and of keys."""
    check_int("seq_q", seq_q, 1)
    if seq_k is not None:
        check_int("seq_k", seq_k, 1)
    check_tile(tile)
    return tiles_of(seq_q, tile), tiles_of(seq_q if seq_k is None else seq_k, tile)


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        check_int(name, count, 0)


def _of_lists(counts_name: str, indices_name: str, counts: Any, indices: Any) -> np.ndarray:
    counts, indices = np.asarray(counts), np.asarray(indices)
    for name, array, rank in ((counts_name, counts, 3), (indices_name, indices, 4)):
        if array.dtype.kind not in "iu":
            raise TypeError(f"{name}: got dtype {array.dtype}, allowed are integers")
        if array.ndim != rank or array.shape[:3] != indices.shape[:3]:
            raise ValueError(
                f"{name}: got shape {array.shape}, allowed are (batch, heads, query tiles) of counts beside "
                f"(batch, heads, query tiles, key tiles) of indices, here {indices.shape}"
            )
    width = indices.shape[-1]
    listed = np.arange(width) < counts[..., None]
    for name, array, most in ((counts_name, counts, width), (indices_name, indices[listed], width - 1)):
        if array.size and (array.min() < 0 or array.max() > most):
            raise ValueError(f"{name}: got {array.min()} to {array.max()}, allowed are 0 to {most}")
    seen = np.zeros(indices.shape, np.uint8)
    seen[(*np.nonzero(listed)[:3], indices[listed])] = 1
    return seen
