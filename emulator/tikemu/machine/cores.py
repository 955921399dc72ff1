"""Blocks on the cores: in order, each on the core that is free first."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any

from ..errors import TikSyncError
from ..program import ir
from ..timing.trace import Trace
from .compile import Compiled
from .progress import Progress
from .runtime import Runtime

#: A trace keeps the events of this many cores, the first ones.
TRACED_CORES = 2
#: A run with at most so many blocks does not remember them: replaying would not pay.
FEW_BLOCKS = 4


def begin_block(runtime: Runtime, block: int, start: float) -> None:
    """Block ``block`` begins, or goes on behind a barrier, at ``start``."""
    runtime.block = block
    if runtime.block_races is not None:
        runtime.block_races.block = block
    if runtime.timing:
        runtime.clock.begin_block(start, runtime.block_count is None or runtime.block_count > FEW_BLOCKS)


class Cores:
    """Distribute blocks over the cores.

    Attributes:
        times: per core, when its blocks are complete.
        trace: events of the first cores; None if none are kept.
    """

    def __init__(self, runtime: Runtime, compiled: Compiled, progress: Progress) -> None:
        self.runtime, self.compiled, self.progress = runtime, compiled, progress
        self.times: list[float] = []
        self._free: list[tuple[float, int]] = []
        options = runtime.options
        self.trace: Trace | None = None
        if options.trace and runtime.timing:
            self.trace = Trace(TRACED_CORES, options.max_trace_events)

    def run(self) -> None:
        """Execute all blocks."""
        if self.compiled.barriers:
            self._run_together()
            return
        runtime, block = self.runtime, 0
        while block < (runtime.block_count or 1):
            count = runtime.block_count or 1
            self.progress.block(block, count)
            start, core = self.take(count)
            self._watch(core)
            begin_block(runtime, block, start)
            runtime.core.reset()
            self.compiled.main()
            self.give(core, runtime.clock.end_block() if runtime.timing else 0.0)
            block += 1

    def take(self, count: int) -> tuple[float, int]:
        """Return when the next of ``count`` blocks begins, and on which core."""
        if len(self.times) < min(count, self.runtime.soc.core_count):
            self.times.append(0.0)
            return 0.0, len(self.times) - 1
        return heapq.heappop(self._free)

    def give(self, core: int, end: float) -> None:
        """End the block on ``core`` at ``end``."""
        self.times[core] = end
        heapq.heappush(self._free, (end, core))

    def _watch(self, core: int) -> None:
        if self.trace is not None:
            self.runtime.clock.simulator.trace = self.trace.open(core)

    def _run_together(self) -> None:
        """Block as coroutines: at a barrier each waits until all have arrived (D4b)."""
        runtime = self.runtime
        waiting: list[tuple[Iterator, Any]] = []
        block = 0
        while block < (runtime.block_count or 1):
            self.progress.block(block, runtime.block_count or 1)
            self._watch(block)
            begin_block(runtime, block, 0.0)
            runtime.core.reset()
            thread = self.compiled.main()
            self._advance(thread, waiting, block)
            block += 1
        count = block
        if count > runtime.soc.core_count and any(thread is not None for thread, _ in waiting):
            message = (
                f"block_barrier with {count} blocks on {runtime.soc.core_count} cores: blocks that wait for a "
                "core never arrive on a device"
            )
            first = next(
                entry.location
                for entry in ir.statements(runtime.program.body)
                if isinstance(entry, ir.Instruction) and entry.spec.name == "block_barrier"
            )
            runtime.report(first, "synchronisation", TikSyncError, message)
        while any(thread is not None for thread, _ in waiting):
            if not all(thread is not None for thread, _ in waiting):
                finished = [number for number, (thread, _) in enumerate(waiting) if thread is None]
                raise TikSyncError(
                    f"block_barrier: block {finished[0]} has ended while others wait; all blocks must "
                    "call it equally often"
                )
            now = max(self.times) if runtime.timing else 0.0
            if runtime.block_races is not None:
                runtime.block_races.barrier()
            arrived, waiting = waiting, []
            for number, (thread, memory) in enumerate(arrived):
                self._watch(number)
                begin_block(runtime, number, now)
                runtime.core.restore(memory)
                self._advance(thread, waiting, number)

    def _advance(self, thread: Iterator, waiting: list[tuple[Any, Any]], block: int) -> None:
        """Run a block up to its next barrier or its end."""
        runtime = self.runtime
        running = next(thread, self) is not self
        waiting.append((thread, runtime.core.snapshot()) if running else (None, None))
        if block == len(self.times):
            self.times.append(0.0)
        if runtime.timing:
            self.times[block] = runtime.clock.end_block()
