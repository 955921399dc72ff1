"""Running a program: the state that is kept from one run to the next."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Callable

import numpy as np

from ..errors import TikError, TikUndefinedError
from ..options import Options
from ..program import ir
from ..program.dtypes import size_of
from ..result import Result
from . import gc_pause
from .access_log import Journal
from .alloc import plan
from .backward_slice import Needs
from .collect import collect
from .compile import Compiler
from .cores import Cores
from .expressions import name_of
from .inputs import Contents, block_count, contents, feeds, scalar_inputs
from .memories import GlobalTensor
from .progress import Progress
from .runtime import Runtime
from .strict import undefined_output

#: Executes the blocks of a session that has begun. Returns whether it did; if not, the session is as it was.
Elsewhere = Callable[["Session", Cores, Mapping[str, Any], list[Contents]], bool]
#: A session with more global memory is not kept for the next run.
KEEP_BYTES = 256 << 20


def run(
    program: ir.Program,
    inputs: Mapping[str, Any],
    *,
    numerics: bool = True,
    timing: bool = True,
    options: Options | None = None,
    write_back: bool = False,
    elsewhere: Elsewhere | None = None,
) -> Result:
    """Execute a built program.

    Args:
        program: the program.
        inputs: a NumPy array (or a number for an InputScalar) by the name of each input. Outputs and workspaces may be
            fed too and then start with that content. Without numerics, arrays that decide nothing may be left out.
        numerics: compute the results. Without, only what decides the course of the program is computed.
        timing: estimate the time.
        options: see :class:`Options`.
        elsewhere: executes the blocks if it can.
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
    # A thread that takes the session owns it until it puts it back. Taking is one step, so threads cannot share it.
    session = vars(program).pop("_session", None)
    # Saturation and infinities are part of the arithmetic.
    with np.errstate(all="ignore"), gc_pause.patience():
        if session is None or session.key != key:
            session = Session(key, program, tensors)
        result = session.run(scalars, tensors, elsewhere)
    if write_back:
        for tensor in session.gm.values():
            fed = arrays.get(tensor.info.name)
            if isinstance(fed, np.ndarray) and fed.flags.writeable:
                fed[...] = tensor.array.reshape(fed.shape)
    if session.reusable:
        vars(program)["_session"] = session
    return result


class Session:
    """Hold a program compiled for one kind of run, with its memories.

    Args:
        key: options, numerics, timing, number of blocks, shapes of the GM tensors.
        program: the program.
        tensors: its GM tensors.
        journal: keep a journal of the accesses to global memory (see :class:`Journal`).
    """

    def __init__(self, key: tuple, program: ir.Program, tensors: list[Contents], journal: bool = False) -> None:
        self.key, self.program = key, program
        options, numerics, timing, blocks, _ = key
        if options.constants:
            program = dataclasses.replace(program, soc=program.soc.with_constants(dict(options.constants)))
        marks = options.checks("undefined") and numerics
        self.gm = {info.uid: GlobalTensor(info, shape, marks) for info, shape, _ in tensors}
        placed = plan(program, options.raises("memory"), options.placement)
        noted = Journal(self.gm) if journal else None
        self.runtime = Runtime(program, placed, options, numerics, timing, self.gm, blocks, noted)
        self.progress = Progress(options.progress, program.name)
        self.compiled = Compiler(self.runtime, Needs(program, numerics), self.progress).compile()
        self.runtime.moment = self.compiled.moment
        for finding in program.findings:
            if options.checks(finding.kind):
                self.runtime.found(finding)

    @property
    def size(self) -> int:
        """Return the size of global memory in bytes."""
        return sum(tensor.size for tensor in self.gm.values())

    @property
    def reusable(self) -> bool:
        """Return whether another run may use the prepared operations. None of them has complained, and memory is not
        short.
        """
        said = self.runtime.warned or self.runtime.findings
        return self.key[0].reuse and not said and self.key[3] is not None and self.size <= KEEP_BYTES

    def begin(self, scalars: Mapping[str, Any], tensors: list[Contents]) -> None:
        """Set the state before the first block."""
        for info, _, fed in tensors:
            self.gm[info.uid].fill(fed)
        self.compiled.names.update(
            {name_of(variable): scalars[variable.name] for variable in scalar_inputs(self.program)}
        )
        self.runtime.restart()
        self.progress.restart()

    def run(self, scalars: Mapping[str, Any], tensors: list[Contents], elsewhere: Elsewhere | None = None) -> Result:
        """Run the program once with these inputs."""
        cores = Cores(self.runtime, self.compiled, self.progress)
        try:
            self.begin(scalars, tensors)
            if elsewhere is None or not elsewhere(self, cores, scalars, tensors):
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
