"""Positions in the stream of key tiles at run time: which tile of which sequence and head is next.

Scalars all of them; the lengths of the sequences are read from the Unified Buffer. The formulas are those of
`work.tiles_of` and of the parts that work.py describes.
"""

from __future__ import annotations

from typing import Callable

from flash_attention.kernels.tik.core import Core
from flash_attention.kernels.tik.decode import work
from flash_attention.kernels.tik.decode.plan import DecodePlan
from flash_attention.kernels.tik.language import Number, RunTime, Scalar


class Sequences:
    """The sequence in hand, as run-time scalars.

    Attributes:
        length: keys.
        base: position of query 0.
        first, tiles: the key tiles that its queries see.
    """

    def __init__(self, core: Core[DecodePlan], name: str):
        self.core = core
        self.visible = work.VisibleKeys.of(core.problem, core.plan)
        self.paged = "context_lens" in core.gm
        names = ("length", "base", "first", "tiles", "start", "end")
        base, first, tiles = work.tiles_of(core.problem, core.plan, core.problem.seq_k)
        self.constant_tiles = tiles  # of a contiguous cache
        values = (0,) * len(names) if self.paged else (core.problem.seq_k, base, first, tiles, 0, 0)
        self.length, self.base, self.first, self.tiles, self._start, self._end = (
            core.scalar("int32", f"{name}_{field}", value) for field, value in zip(names, values)
        )
        if self.paged:
            lengths = core.on.lengths[0]
            core.tik.data_move(lengths, core.gm["context_lens"], 0, 1, lengths.shape[0] // 8, 0, 0)

    def load(self, batch: Number) -> None:
        """Takes sequence number `batch` in hand. Those of a contiguous cache are all alike."""
        if not self.paged:
            return
        tik, problem, keys = self.core.tik, self.core.problem, self.core.plan.keys
        least, _, _, most = self.visible.limits
        self.length.set_as(self.core.on.lengths[0][batch])
        bottom = problem.rules.causal_alignment == "bottom_right"
        self.base.set_as(self.length - problem.seq_q if bottom else 0)
        self._start.set_as(self.base + least)
        with tik.if_scope(self._start < 0):
            self._start.set_as(0)
        self._end.set_as(self.base + (most + 1))
        with tik.if_scope(self._end > self.length):
            self._end.set_as(self.length)
        self.first.set_as(0)
        self.tiles.set_as(0)
        with tik.if_scope(self._end > self._start):
            self.first.set_as(self._start // keys)
            self.tiles.set_as((self._end + (keys - 1)) // keys - self.first)

    def totals(self, empty: Callable[[Number], None] | None = None) -> tuple[Scalar, Scalar]:
        """Tiles of all sequences and heads, and cores that have some: new scalars.

        Args:
            empty: records what happens for the number of a sequence without tiles.
        """
        core = self.core
        total = core.scalar("int32", "total", 0)
        if not self.paged:
            total.set_as(self.tiles * (core.problem.batch * per_sequence(core)))
        if self.paged or self.constant_tiles == 0:
            with core.tik.for_range(0, core.problem.batch, name="counted") as batch:
                self.load(batch)
                total.set_as(total + self.tiles * per_sequence(core))
                if empty is not None:
                    with core.tik.if_scope(self.tiles == 0):
                        empty(batch)
        cores = core.scalar("int32", "busy_cores", core.problem.cores)
        with core.tik.if_scope(total < cores):
            cores.set_as(total)
        return total, cores

    def seek(self, tile: RunTime, batch: Scalar, pair: Scalar, inside: Scalar) -> None:
        """Finds a tile of the stream: sets its sequence, the first pair of that, and the tile's number inside it."""
        core, tik = self.core, self.core.tik
        if not self.paged:
            batch.set_as(tile // (self.tiles * per_sequence(core)))
            pair.set_as(batch * per_sequence(core))
            inside.set_as(tile % (self.tiles * per_sequence(core)))
            return
        found = core.scalar("int32", "found", 0)
        inside.set_as(tile)
        pair.set_as(0)
        with tik.for_range(0, core.problem.batch, name="sought") as index, tik.if_scope(found == 0):
            self.load(index)
            with tik.if_scope(inside < self.tiles * per_sequence(core)):
                found.set_as(1)
                batch.set_as(index)
            with tik.else_scope():
                inside.set_as(inside - self.tiles * per_sequence(core))
                pair.set_as(pair + per_sequence(core))


def per_sequence(core: Core[DecodePlan]) -> int:
    """Pairs of a sequence: row blocks of its key/value heads."""
    return core.problem.kv_heads * core.plan.row_blocks


class Stream:
    """The tiles of this core, one after the other: the one to load.

    Attributes:
        left: tiles to come, this one included.
        batch, head, block, pair: what the tile belongs to; head is the key/value head.
        tile: number of the tile among those of its pair.
        fresh: 1 if it is the first one of its pair on this core.
        slot: where the sums of the pair go.
    """

    def __init__(self, core: Core[DecodePlan], index: Number, fill: Callable[[Number], None]):
        """`fill(slot)` records that a slot gets sums of nothing: every one has to be written, for someone reads all."""
        self.core = core
        self.sequence = Sequences(core, "stream")
        names = ("left", "batch", "head", "block", "pair", "tile", "fresh", "slot")
        self.left, self.batch, self.head, self.block, self.pair, self.tile, self.fresh, self.slot = (
            core.scalar("int32", f"stream_{field}", 0) for field in names
        )
        tik, sequence = core.tik, self.sequence

        def empty(batch: Number) -> None:
            mine = tik.if_scope(batch % core.problem.cores == index)
            with mine, tik.for_range(0, per_sequence(core), name="empty") as pair:
                fill(core.problem.cores + batch * per_sequence(core) + pair)

        total, cores = sequence.totals(empty)
        begin, inside = core.scalar("int32", "begin"), core.scalar("int32", "inside")
        with tik.if_scope(index < cores):
            begin.set_as(index * total // cores)
            self.left.set_as((index + 1) * total // cores - begin)
        self.slot.set_as(core.problem.cores)
        with tik.if_scope(self.left > 0):
            sequence.seek(begin, self.batch, self.pair, inside)
            self.tile.set_as(inside % sequence.tiles)
            inside.set_as(inside // sequence.tiles)
            self.pair.set_as(self.pair + inside)
            self.head.set_as(inside // core.plan.row_blocks)
            self.block.set_as(inside % core.plan.row_blocks)
            self.fresh.set_as(1)
            self.slot.set_as(core.problem.cores + self.pair)
            with tik.if_scope(self.tile > 0):
                self.slot.set_as(index)
        with tik.if_scope(self.slot >= core.problem.cores):
            fill(index)

    @property
    def start(self) -> RunTime:
        """First key of the tile."""
        return (self.sequence.first + self.tile) * self.core.plan.keys

    def advance(self) -> None:
        """Goes on to the next tile."""
        core, tik, sequence = self.core, self.core.tik, self.sequence
        self.left.set_as(self.left - 1)
        self.fresh.set_as(0)
        self.tile.set_as(self.tile + 1)
        with core.when(self.left > 0, self.tile == sequence.tiles):
            self.fresh.set_as(1)
            self.tile.set_as(0)
            self.pair.set_as(self.pair + 1)
            self.block.set_as(self.block + 1)
            with tik.if_scope(self.block == core.plan.row_blocks):
                self.block.set_as(0)
                self.head.set_as(self.head + 1)
                with tik.if_scope(self.head == core.problem.kv_heads):
                    self.head.set_as(0)
                    self._next_sequence()
            self.slot.set_as(core.problem.cores + self.pair)

    def _next_sequence(self) -> None:
        """The next one that has tiles; there is one."""
        core, tik = self.core, self.core.tik
        self.batch.set_as(self.batch + 1)
        self.sequence.load(self.batch)
        if not self.sequence.paged:
            return
        with tik.for_range(0, core.problem.batch, name="skipped"), tik.if_scope(self.sequence.tiles == 0):
            self.batch.set_as(self.batch + 1)
            self.pair.set_as(self.pair + per_sequence(core))
            self.sequence.load(self.batch)


class Current:
    """The tile in work, which is the one that was loaded before.

    Attributes:
        active: 1 if there is one.
        slot: where the sums of its pair go.
        start, base, length: first key of the tile, position of query 0, keys of the sequence.
        fresh, last: 1 if it is the first or the last tile of its pair on this core.
    """

    def __init__(self, core: Core[DecodePlan]):
        names = ("active", "slot", "start", "base", "length", "fresh", "last")
        self.active, self.slot, self.start, self.base, self.length, self.fresh, self.last = (
            core.scalar("int32", f"current_{field}", 0) for field in names
        )
        self.tik = core.tik

    def take(self, stream: Stream) -> None:
        """The tile that the stream stands at."""
        tik = self.tik
        self.active.set_as(0)
        with tik.if_scope(stream.left > 0):
            self.active.set_as(1)
            self.slot.set_as(stream.slot)
            self.start.set_as(stream.start)
            self.base.set_as(stream.sequence.base)
            self.length.set_as(stream.sequence.length)
            self.fresh.set_as(stream.fresh)
            self.last.set_as(0)
            with tik.if_scope(stream.left == 1):
                self.last.set_as(1)
            with tik.if_scope(stream.tile + 1 == stream.sequence.tiles):
                self.last.set_as(1)

    def shift(self, target: Scalar, position: Number) -> Scalar:
        """A key position counted from the tile's first key, in the scalar `target`."""
        target.set_as(position - self.start)
        return target
