"""Running a program: blocks in order, cores in parallel."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from .. import ir
from ..dtypes import size_of
from ..errors import TikError, TikSyncError, TikUndefinedError
from ..options import Options
from ..result import Result
from ..timing.trace import Trace
from .alloc import Limits, plan
from .collect import collect
from .compile import Compiled, Compiler
from .expressions import name_of
from .inputs import Contents, block_count, contents, feeds, scalar_inputs
from .memories import GlobalTensor
from .needs import Needs
from .progress import Progress
from .runtime import Runtime
from .strict import undefined_output

#: Sessions whose global memory is larger are not kept for the next run.
_KEEP_BYTES = 256 << 20
#: With no more blocks, remembering what one did is not worth while.
FEW_BLOCKS = 4


def run(
    program: ir.Program,
    inputs: Mapping[str, Any],
    *,
    numerics: bool = True,
    timing: bool = True,
    options: Options | None = None,
    write_back: bool = False,
) -> Result:
    """Execute a built program.

    Args:
        program: the program.
        inputs: a NumPy array (or a number for an InputScalar) by the name of each input. Outputs and workspaces may be
            fed too and then start with that content. Without numerics, arrays that decide nothing may be left out.
        numerics: compute the results. Without, only what decides the course of the program is computed.
        timing: estimate the time.
        options: see :class:`Options`.
        write_back: leave the final contents of global memory in the arrays of ``inputs`` that can be written.

    Returns:
        Outputs by name, and what was measured.

    Raises:
        TikParamError: an input is missing, unknown, or of another dtype or size.
        TikError: the program breaks a rule while it runs; the message ends with the user's line.
    """
    options = options or Options()
    for finding in program.findings:
        if options.raises(finding.kind):
            raise finding.exception()
    scalars, arrays = feeds(program, inputs, numerics)
    tensors = contents(program, scalars, arrays)
    blocks = block_count(program, scalars)
    key = options, numerics, timing, blocks, tuple(tensor.shape for tensor in tensors)
    # Whoever takes a session owns it until it is put back; taking it is one step, so threads cannot share it.
    session = vars(program).pop("_session", None)
    # Saturation and infinities are part of the arithmetic.
    with np.errstate(all="ignore"):
        if session is None or session.key != key:
            session = Session(key, program, tensors)
        result = session.run(scalars, tensors)
    if write_back:
        for tensor in session.gm.values():
            fed = arrays.get(tensor.info.name)
            if isinstance(fed, np.ndarray) and fed.flags.writeable:
                fed[...] = tensor.array.reshape(fed.shape)
    if session.reusable:
        vars(program)["_session"] = session
    return result


class Session:
    """A program compiled for one kind of run, with its memories; runs as often as wanted.

    Args:
        key: options, numerics, timing, number of blocks, shapes of the GM tensors.
        program: the program.
        tensors: its GM tensors.
    """

    def __init__(self, key: tuple, program: ir.Program, tensors: list[Contents]) -> None:
        self.key, self.program = key, program
        options, numerics, timing, blocks, _ = key
        if options.constants:
            program = dataclasses.replace(program, soc=program.soc.with_constants(dict(options.constants)))
        marks = options.checks("undefined") and numerics
        self.gm = {info.uid: GlobalTensor(info, shape, marks) for info, shape, _ in tensors}
        limits = Limits.of(program.soc, options.raises("memory"), options.ub_limit)
        placed = plan(program, limits, options.placement)
        self.runtime = Runtime(program, placed, options, numerics, timing, self.gm, blocks)
        self.progress = Progress(options.progress, program.name)
        self.compiled = Compiler(self.runtime, Needs(program, numerics), self.progress).compile()
        self.runtime.moment = self.compiled.moment
        for finding in program.findings:
            if options.checks(finding.kind):
                self.runtime.found(finding)

    @property
    def reusable(self) -> bool:
        """Whether another run may use the prepared operations: none of them has complained, and memory is not short."""
        size = sum(tensor.size for tensor in self.gm.values())
        said = self.runtime.warned or self.runtime.findings
        return self.key[0].reuse and not said and self.key[3] is not None and size <= _KEEP_BYTES

    def run(self, scalars: Mapping[str, Any], tensors: list[Contents]) -> Result:
        """One run with these inputs."""
        for info, _, fed in tensors:
            self.gm[info.uid].fill(fed)
        self.compiled.names.update(
            {name_of(variable): scalars[variable.name] for variable in scalar_inputs(self.program)}
        )
        self.runtime.restart()
        self.progress.restart()
        cores = _Cores(self.runtime, self.compiled, self.progress)
        try:
            cores.run()
        except TikError as error:
            located = self.compiled.locate(error)
            located.findings = tuple(self.runtime.findings.values())
            raise located from None
        finally:
            self.progress.close()
        outputs = {}
        for view in self.program.outputs:
            tensor = self.gm[view.tensor.uid]
            if self.runtime.marks:
                message = undefined_output(tensor.memory, tensor.size, size_of(tensor.info.dtype))
                if message:
                    self.runtime.report(tensor.info.location, "undefined", TikUndefinedError, message)
            outputs[view.tensor.name] = tensor.array.copy()
        return collect(self.runtime, self.compiled, cores.times, cores.trace, outputs)


# ---------------------------------------------------------------------------------------------------- blocks and cores
class _Cores:
    """Distributes blocks over the cores: each block goes to the core that is free first."""

    def __init__(self, runtime: Runtime, compiled: Compiled, progress: Progress) -> None:
        self.runtime, self.compiled, self.progress = runtime, compiled, progress
        self.times: list[float] = []
        options = runtime.options
        self.trace: Trace | None = None
        if options.trace and runtime.timing:
            self.trace = Trace(options.max_trace_cores, options.max_trace_events)

    def run(self) -> None:
        """Execute all blocks."""
        if self.compiled.barriers:
            self._run_together()
        else:
            self._run_in_turn()

    def _begin(self, block: int, start: float) -> None:
        runtime = self.runtime
        runtime.block = block
        if runtime.block_races is not None:
            runtime.block_races.block = block
        if runtime.timing:
            runtime.clock.begin_block(start, runtime.block_count is None or runtime.block_count > FEW_BLOCKS)

    def _watch(self, core: int) -> None:
        if self.trace is not None:
            self.runtime.clock.trace = self.trace.open(core)

    def _run_in_turn(self) -> None:
        runtime, block = self.runtime, 0
        free: list[tuple[float, int]] = []
        while block < (runtime.block_count or 1):
            count = runtime.block_count or 1
            self.progress.block(block, count)
            if len(self.times) < min(count, runtime.soc.core_count):
                start, core = 0.0, len(self.times)
                self.times.append(0.0)
            else:
                start, core = heapq.heappop(free)
            self._watch(core)
            self._begin(block, start)
            runtime.core.reset()
            self.compiled.main()
            if runtime.timing:
                self.times[core] = runtime.clock.end_block()
            heapq.heappush(free, (self.times[core], core))
            block += 1

    def _run_together(self) -> None:
        """Blocks as coroutines: at a barrier each waits until all have arrived (D4b)."""
        runtime = self.runtime
        waiting: list[tuple[Iterator, Any]] = []
        block = 0
        while block < (runtime.block_count or 1):
            self.progress.block(block, runtime.block_count or 1)
            self._watch(block)
            self._begin(block, 0.0)
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
            runtime.report(_barrier(runtime.program), "synchronisation", TikSyncError, message)
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
                self._begin(number, now)
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


def _barrier(program: ir.Program) -> ir.Location:
    """The line of the first ``block_barrier``."""
    calls = (entry for entry in ir.statements(program.body) if isinstance(entry, ir.Instruction))
    return next(call.location for call in calls if call.spec.name == "block_barrier")
