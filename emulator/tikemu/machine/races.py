"""Access that nothing orders: between blocks, and inside unsynchronised scopes (strict mode)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..isa.region import Memory, Region
from ..soc import PIPES
from ..timing.simulator import PIPE_INDEX

_NOBODY = 0
_PLAIN, _ATOMIC = 1, 2


class BlockRaces:
    """Global memory accessed by different blocks without a barrier between them (D4d).

    For each byte it is known which block wrote it, whether there were plain writes and atomic ones, and which block
    read it. Blocks may write the same data to the same place, and may add to it atomically. They may not do both.

    Args:
        block_count: number of blocks; None if it is not known yet.
    """

    def __init__(self, block_count: int | None) -> None:
        self.block = 0
        self._dtype: Any = np.uint16 if block_count is not None and block_count < 65534 else np.uint32
        self._several = np.iinfo(self._dtype).max
        self._bytes: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}

    def barrier(self) -> None:
        """Order all earlier accesses: all blocks have arrived."""
        self._bytes.clear()

    def _marks(self, memory: Memory) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        marks = self._bytes.get(id(memory))
        if marks is None:
            size = len(memory.data)
            marks = np.zeros(size, self._dtype), np.zeros(size, np.uint8), np.zeros(size, self._dtype)
            self._bytes[id(memory)] = marks
        return marks

    def read(self, region: Region, who: str) -> str | None:
        """Note that the current block reads ``region``; return the access it clashes with."""
        me, clash = self.block + 1, None
        writer, _, reader = self._marks(region.memory)
        for written, seen in zip(region.views(writer), region.views(reader)):
            foreign = (written != _NOBODY) & (written != me)
            if foreign.any():
                clash = self._clash(region, who, "reads", "wrote", written[foreign][0])
            seen[...] = np.where((seen == _NOBODY) | (seen == me), me, self._several)
        return clash

    def write(self, region: Region, before: list[np.ndarray], atomic: bool, who: str) -> str | None:
        """Record a write of ``region`` by the current block; return its clashes. ``before`` holds the bytes before it,
        one array per piece.
        """
        me, message = self.block + 1, None
        writer, kind, reader = self._marks(region.memory)
        pieces = zip(
            region.views(writer), region.views(kind), region.views(reader), region.views(region.memory.data), before
        )
        for written, how, seen, data, old in pieces:
            changed = True if atomic else data != old
            foreign = (written != _NOBODY) & (written != me)
            allowed = (how == _ATOMIC) if atomic else (how == _PLAIN) & ~changed
            clash = foreign & ~allowed
            if clash.any():
                message = self._clash(region, who, "writes", "wrote", written[clash][0])
            clash = (seen != _NOBODY) & (seen != me) & changed
            if clash.any():
                message = self._clash(region, who, "writes", "read", seen[clash][0])
            written[...] = np.where(foreign, self._several, me)
            how |= _ATOMIC if atomic else _PLAIN
        return message

    def _clash(self, region: Region, who: str, now: str, then: str, other: Any) -> str:
        whom = "other blocks" if other == self._several else f"block {int(other) - 1}"
        return (
            f"{who}: block {self.block} {now} bytes of GM tensor {region.memory.name!r} (within "
            f"[{region.start}, {region.end})) that {whom} {then}, with no barrier between them; blocks "
            "have no order"
        )


class PipeRaces:
    """Accesses of different pipes inside a ``new_stmt_scope(disable_sync=True)``, ordered only by explicit flags and
    barriers: vector clocks over the pipes."""

    def __init__(self) -> None:
        self.enter()

    def enter(self) -> None:
        """Begin a scope; accesses before it are ordered."""
        size = len(PIPES)
        self._clocks = [[0] * size for _ in PIPES]
        self._tokens: dict[tuple[int, int, int], list[list[int]]] = {}
        self._seen: dict[int, dict[tuple, tuple[Region, int, bool, int, str]]] = {}

    def barrier(self, pipe: str) -> None:
        """Drain all pipes (``pipe_barrier``). The barrier of one pipe orders nothing between pipes."""
        if pipe not in PIPE_INDEX:
            latest = [max(column) for column in zip(*self._clocks)]
            self._clocks = [list(latest) for _ in PIPES]

    def flag(self, kind: str, source: str, destination: str, event: int) -> None:
        """Follow ``set_flag`` and ``wait_flag``."""
        key = PIPE_INDEX[source], PIPE_INDEX[destination], event
        tokens = self._tokens.setdefault(key, [])
        if kind == "set":
            tokens.append(list(self._clocks[key[0]]))
        elif tokens:
            token = tokens.pop(0)
            self._clocks[key[1]] = [max(pair) for pair in zip(self._clocks[key[1]], token)]

    def access(self, pipe: str, regions: list[tuple[Region, bool]], who: str) -> str | None:
        """Note that ``who`` accesses ``regions`` (region, is a write) on ``pipe``.

        Returns:
            A message if another pipe accesses the same bytes, one of the two writes, and nothing orders them.
        """
        clash = None
        index = PIPE_INDEX[pipe]
        clock = self._clocks[index]
        if index != PIPE_INDEX["S"]:
            # The scalar unit has issued the instruction, so its earlier accesses are complete.
            clock[:] = [max(pair) for pair in zip(clock, self._clocks[PIPE_INDEX["S"]])]
        clock[index] += 1
        for region, write in regions:
            seen = self._seen.setdefault(id(region.memory), {})
            for other, source, other_write, stamp, name in seen.values():
                if source != index and (write or other_write) and clock[source] < stamp and region.overlaps(other):
                    clash = (
                        f"{who} on PIPE_{pipe} {'writes' if write else 'reads'} bytes [{region.start}, {region.end}) "
                        f"of {region.memory.name} that {name} on PIPE_{PIPES[source]} "
                        f"{'writes' if other_write else 'reads'}; inside disable_sync=True nothing orders the two "
                        "(set_flag and wait_flag, or pipe_barrier, would)"
                    )
            seen[region.pieces, index, write] = region, index, write, clock[index], who
        return clash
