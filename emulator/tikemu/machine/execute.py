"""Running a program: blocks in order, cores in parallel."""
from __future__ import annotations

import heapq
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from .. import ir
from ..dtypes import size_of
from ..errors import TikError, TikParamError, TikSyncError, TikUndefinedError, TikWarning
from ..result import Result, collect
from ..timing.trace import Trace
from .alloc import Limits, plan
from .compile import Compiled, Compiler
from .expressions import HELPERS, Expressions, name_of
from .memories import GlobalTensor, fed_array, input_scalar
from .needs import Needs
from .options import Options
from .progress import Progress
from .runtime import Runtime
from .strict import require_output_defined


def run(program: ir.Program, inputs: Mapping[str, Any], *, numerics: bool = True, timing: bool = True,
        options: Options | None = None) -> Result:
    """Execute a built program.

    Args:
        program: the program.
        inputs: a NumPy array (or a number for an InputScalar) by the name of each input. Outputs and workspaces may be
            fed too and then start with that content. Without numerics, arrays that decide nothing may be left out.
        numerics: compute the results. Without, only what decides the course of the program is computed.
        timing: estimate the time.
        options: see :class:`Options`.

    Returns:
        Outputs by name, and what was measured.

    Raises:
        TikParamError: an input is missing, unknown, or of another dtype or size.
        TikError: the program breaks a rule while it runs; the message ends with the user's line.
    """
    options = options or Options()
    if options.strict and program.findings:
        finding = program.findings[0]
        raise finding.error(finding.message, finding.location)
    limits = Limits.of(program.soc, options.strict, options.ub_limit)
    scalars, arrays = _feeds(program, inputs, numerics)
    gm = _global_tensors(program, scalars, arrays, options.strict and numerics)
    runtime = Runtime(program, plan(program, limits), options, numerics, timing, gm, _block_count(program, scalars))
    progress = Progress(options.progress, program.name)
    compiler = Compiler(runtime, Needs(program, numerics), progress)
    compiler.names.update({name_of(variable): scalars[variable.name] for variable in scalar_inputs(program)})
    # Saturation and infinities are part of the arithmetic.
    with np.errstate(all="ignore"):
        compiled = compiler.compile()
        cores = _Cores(runtime, compiled, progress)
        try:
            cores.run()
        except TikError as error:
            raise compiled.locate(error) from None
        finally:
            progress.close()
    outputs = {}
    for view in program.outputs:
        tensor = gm[view.tensor.uid]
        if runtime.checks:
            _check_output(tensor)
        outputs[view.tensor.name] = tensor.array.copy()
    return collect(runtime, compiled, cores.times, cores.trace, outputs)


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
            runtime.clock.reset(start)

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
            self._begin(block, start)
            self._watch(core)
            runtime.core.reset()
            self.compiled.main()
            if runtime.timing:
                self.times[core] = runtime.clock.finish
            heapq.heappush(free, (self.times[core], core))
            block += 1

    def _run_together(self) -> None:
        """Blocks as coroutines: at a barrier each waits until all have arrived (D4b)."""
        runtime = self.runtime
        waiting: list[tuple[Iterator, Any]] = []
        block = 0
        while block < (runtime.block_count or 1):
            self.progress.block(block, runtime.block_count or 1)
            self._begin(block, 0.0)
            self._watch(block)
            runtime.core.reset()
            thread = self.compiled.main()
            self._advance(thread, waiting, block)
            block += 1
        count = block
        if count > runtime.soc.core_count and any(thread is not None for thread, _ in waiting):
            warnings.warn(TikWarning(f"block_barrier with {count} blocks on {runtime.soc.core_count} cores: blocks "
                                     "that wait for a core never arrive on a device"), stacklevel=4)
        while any(thread is not None for thread, _ in waiting):
            if not all(thread is not None for thread, _ in waiting):
                finished = [number for number, (thread, _) in enumerate(waiting) if thread is None]
                raise TikSyncError(f"block_barrier: block {finished[0]} has ended while others wait; all blocks must "
                                   "call it equally often")
            now = max(self.times) if runtime.timing else 0.0
            if runtime.block_races is not None:
                runtime.block_races.barrier()
            arrived, waiting = waiting, []
            for number, (thread, contents) in enumerate(arrived):
                self._begin(number, now)
                self._watch(number)
                runtime.core.restore(contents)
                self._advance(thread, waiting, number)

    def _advance(self, thread: Iterator, waiting: list[tuple[Any, Any]], block: int) -> None:
        """Run a block up to its next barrier or its end."""
        runtime = self.runtime
        running = next(thread, self) is not self
        waiting.append((thread, runtime.core.snapshot()) if running else (None, None))
        if block == len(self.times):
            self.times.append(0.0)
        if runtime.timing:
            self.times[block] = runtime.clock.finish


# ---------------------------------------------------------------------------------------------------- inputs
def scalar_inputs(program: ir.Program) -> list[ir.Variable]:
    """The InputScalars of a program."""
    return [node for node in program.inputs if isinstance(node, ir.Variable)]


def _feeds(program: ir.Program, inputs: Mapping[str, Any], numerics: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Scalars and arrays by name, with unknown and missing names refused."""
    scalar_names = {variable.name: variable for variable in scalar_inputs(program)}
    required = [node.tensor.name for node in program.inputs if isinstance(node, ir.View)]
    optional = [view.tensor.name for view in program.outputs] + [tensor.name for tensor in program.workspaces]
    known = [*scalar_names, *required, *optional]
    for name in inputs:
        if name not in known:
            raise TikParamError(f"{name!r} is no input of kernel {program.name!r}; inputs are: {', '.join(known)}")
    for name in [*scalar_names, *(required if numerics else ())]:
        if name not in inputs:
            raise TikParamError(f"input {name!r} of kernel {program.name!r} is missing")
    scalars = {name: input_scalar(variable, inputs[name]) for name, variable in scalar_names.items()}
    return scalars, {name: value for name, value in inputs.items() if name not in scalar_names}


def _global_tensors(program: ir.Program, scalars: Mapping[str, Any], arrays: Mapping[str, Any],
                    strict: bool) -> dict[int, GlobalTensor]:
    """Memories of all GM tensors that the program takes or uses."""
    tensors = [node.tensor for node in (*program.inputs, *program.outputs) if isinstance(node, ir.View)]
    found: dict[int, GlobalTensor] = {}
    for info in [*tensors, *program.workspaces]:
        if info.uid in found:
            continue
        shape = _extents(info, scalars, program)
        fed = None
        if info.name in arrays:
            fed, warning = fed_array(info, shape, arrays[info.name])
            if warning:
                warnings.warn(TikWarning(warning), stacklevel=4)
        elif info.init_value is not None:
            fed = np.broadcast_to(np.asarray(info.init_value, info.dtype), shape)
        found[info.uid] = GlobalTensor(info, shape, fed, strict)
    return found


def _extents(info: ir.TensorInfo, scalars: Mapping[str, Any], program: ir.Program) -> tuple[int, ...]:
    """The shape of a GM tensor as numbers; run-time extents may hold InputScalars."""
    if all(ir.is_immediate(extent) for extent in info.shape):
        return tuple(int(extent) for extent in info.shape)
    try:
        return tuple(_evaluate(extent, scalars, program) for extent in info.shape)
    except NameError:
        raise TikParamError(f"the shape of GM tensor {info.name!r} depends on a Scalar; only InputScalars can size "
                            "global memory", info.location) from None


def _evaluate(value: Any, scalars: Mapping[str, Any], program: ir.Program) -> int:
    names = {name_of(variable): scalars[variable.name] for variable in scalar_inputs(program)}
    return int(eval(Expressions().wrapped(value).source, dict(HELPERS), names))


def _block_count(program: ir.Program, scalars: Mapping[str, Any]) -> int | None:
    """Blocks of the multi-core loop; None if only the running program knows."""
    for statement in ir.statements(program.body):
        if isinstance(statement, ir.For) and not (ir.is_immediate(statement.block_num) and statement.block_num == 1):
            try:
                return _evaluate(statement.block_num, scalars, program)
            except NameError:
                return None
    return 1


def _check_output(tensor: GlobalTensor) -> None:
    try:
        require_output_defined(tensor.memory, tensor.size, size_of(tensor.info.dtype))
    except TikUndefinedError as error:
        raise error.at(tensor.info.location) from None


