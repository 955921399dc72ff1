"""Launches: built-in operators in NumPy, operators in TIK in tikemu."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Callable

import numpy as np
import tikemu
from tikemu.program import ir

from ..operator_call import OperatorCall, arguments_of, shape_of, tensors
from .collectives import Call, as_kernel
from .errors import KernelError, QueueEmpty
from .formats import dtype_of, store, to_plain
from .memory import Address, Memory
from .numerics import STATUS, convert, notice_overflow
from .operators import AICPU, TABLE, Operator
from .report import AI_CORE, AI_CPU, COMMUNICATION, Report

OPTIONS = tikemu.Options(strict=True, progress=False)
#: Several processes execute the blocks of a kernel if its tensors have this many bytes.
LARGE = 1 << 18
#: CANN's kernel that clears tensors before others add to them.
CLEAN = "atomic_addr_clean"


class Launcher:
    """Kernels by number, and what each launch does to memory."""

    def __init__(self, memory: Memory, report: Report | None, processes: int = 1) -> None:
        self.memory, self.report, self.processes = memory, report, processes
        self.begins: Callable[[OperatorCall], None] = lambda kernel: None  # called as a kernel begins
        self.kernels: dict[int, OperatorCall] = {}
        self.seconds: dict[str, float] = {}  # of kernels in TIK, as estimated at their first launch

    def launch(self, number: int, blocks: int, addresses: Sequence[Address]) -> None:
        """Run a kernel.

        Raises:
            KernelError: it cannot run, or did something that a card would not survive or not notice.
        """
        kernel = self.kernels[number]
        if kernel.program is not None:
            self._run_tik(kernel, kernel.program, addresses)
        elif kernel.function == CLEAN:
            sizes = kernel.attributes["automic_add_mem_size"]  # CANN's spelling
            for index, (address, size) in enumerate(zip(addresses, sizes)):
                self.memory.view(address, np.dtype(np.uint8), (size,), f"kernel {kernel.name}, tensor {index}")[...] = 0
        else:
            self._run_built_in(kernel, addresses, TABLE)
        self.note(kernel, AI_CORE, blocks)

    def launch_aicpu(self, kernel: OperatorCall, addresses: Sequence[Address]) -> None:
        """Run a kernel on the AI CPU.

        Raises:
            KernelError: a shape of it is open, which only contents tell; or as `launch`.
        """
        if any(size < 0 for one in tensors(kernel.inputs + kernel.outputs) for size in one["shape"]):
            raise KernelError(f"kernel {kernel.name} has open shapes, which the virtual card does not take")
        self._run_built_in(kernel, addresses, AICPU)
        self.note(kernel, AI_CPU, 1)

    def launch_operator(self, kernel: OperatorCall, addresses: Sequence[Address], constants: dict[int, bytes]) -> None:
        """Run an operator that MindSpore asked for by name; some inputs come with the request."""
        table, unit = TABLE, AI_CORE
        if kernel.function not in TABLE and kernel.type in AICPU:
            kernel.function, table, unit = kernel.type, AICPU, AI_CPU
        self._run_built_in(kernel, addresses, table, constants)
        self.note(kernel, unit, 1)

    def note_collective(self, call: Call) -> None:
        """Add a line for a collective, once its result is there."""
        if self.report:
            self.report.note(as_kernel(call), COMMUNICATION, 1)

    def note(self, kernel: OperatorCall, unit: str, blocks: int) -> None:
        """Add a line for a launch."""
        if self.report:
            self.report.note(kernel, unit, blocks, self.seconds.get(kernel.name))

    # ------------------------------------------------------------------------------------------------------- built in
    def _run_built_in(
        self,
        kernel: OperatorCall,
        addresses: Sequence[Address],
        table: dict[str, Operator],
        constants: Mapping[int, bytes] = MappingProxyType({}),
    ) -> None:
        """Run a built-in operator."""
        self.begins(kernel)
        given, wanted = tensors(kernel.inputs), tensors(kernel.outputs)
        if len(addresses) < len(given) + len(wanted):
            count = len(given) + len(wanted)
            raise KernelError(f"kernel {kernel.name} ({kernel.type}): {count} tensors, {len(addresses)} addresses")
        count = len(given)

        def stored_at(place: int, description: dict[str, Any], side: str, number: int) -> np.ndarray:
            name = f"kernel {kernel.name} ({kernel.type}), {side} {number}"
            return self.memory.view(addresses[place], dtype_of(description), tuple(description["shape"]), name)

        stored = [
            np.frombuffer(constants[index], dtype_of(one)).reshape(one["shape"])
            if index in constants
            else stored_at(index, one, "input", index)
            for index, one in enumerate(given)
        ]
        arrays = compute(kernel, stored, table)
        for index, (array, description) in enumerate(zip(arrays, wanted)):
            target = stored_at(count + index, description, "output", index)
            try:
                store(convert(array, target.dtype), target, description)
            except ValueError as error:
                raise KernelError(
                    f"kernel {kernel.name} ({kernel.type}) gave {list(array.shape)} for output {index}, "
                    f"{_shown([description])} of {description['ori_shape']}: {error}"
                ) from error

    # ------------------------------------------------------------------------------------------------------------ TIK
    def _run_tik(self, kernel: OperatorCall, program: ir.Program, addresses: Sequence[Address]) -> None:
        arguments = arguments_of(program)
        inputs, outputs = arguments[: len(program.inputs)], arguments[len(program.inputs) :]
        known = [*arguments, *program.workspaces]
        if len(addresses) != len(known):
            raise KernelError(f"kernel {kernel.name}: {len(known)} tensors, {len(addresses)} addresses")
        feeds, targets, spans, size = {}, {}, [], 0
        for tensor, address in zip(known, addresses):
            name = f"kernel {kernel.name} ({kernel.type}), tensor {tensor.name}"
            array = self.memory.view(address, np.dtype(tensor.dtype), shape_of(tensor), name)
            start, end = address.offset, address.offset + array.nbytes
            size += array.nbytes
            if tensor in inputs:
                spans.append((start, end))
            # A tensor starts undefined if it is no input, was not cleared, and does not overlap an input.
            if tensor.is_atomic_add or any(first < end and start < last for first, last in spans):
                feeds[tensor.name] = array
            if tensor in outputs:
                targets[tensor.name] = array
        results = self.run_program(kernel, program, feeds, size)
        for name, array in targets.items():
            array[...] = results[name].reshape(array.shape)

    def run_program(
        self, kernel: OperatorCall, program: ir.Program, feeds: dict[str, np.ndarray], size: int
    ) -> dict[str, np.ndarray]:
        """Run a kernel in TIK on tensors by name. `size` is the bytes of tensors and results together."""
        self.begins(kernel)
        timing = self.report is not None and kernel.name not in self.seconds
        options = dataclasses.replace(OPTIONS, processes=self.processes if size >= LARGE else 1)
        try:
            result = tikemu.run(program, feeds, timing=timing, options=options)
        except tikemu.TikError as error:
            raise KernelError(f"kernel {kernel.name} ({kernel.type}): {type(error).__name__}: {error}") from error
        if result.seconds is not None:
            self.seconds[kernel.name] = result.seconds
        STATUS.is_set |= bool(result.overflow)
        return result.outputs


def compute(kernel: OperatorCall, stored: Sequence[np.ndarray], table: dict[str, Operator]) -> list[np.ndarray]:
    """Return the results of a built-in operator on its inputs as they are stored.

    Raises:
        KernelError: there is no such operator, or it cannot work on these.
        QueueEmpty: it has to wait for data.
    """
    operator = table.get(kernel.function)
    if operator is None:
        raise KernelError(
            f"the virtual card has no operator {kernel.function} (type {kernel.type}); it was to work on "
            f"{_shown(kernel.inputs)} with {kernel.attributes} and give {_shown(kernel.outputs)}"
        )
    given = tensors(kernel.inputs)
    try:
        filling = getattr(operator, "with_filling", False)
        plain = iter([to_plain(array, one, filling) for array, one in zip(stored, given)])
        results = operator(kernel, *(_take(parameter, plain) for parameter in kernel.inputs))
    except QueueEmpty:
        raise
    except Exception as error:
        raise KernelError(
            f"kernel {kernel.name} ({kernel.type}) failed on {_shown(kernel.inputs)} with {kernel.attributes}: "
            f"{type(error).__name__}: {error}"
        ) from error
    arrays = [np.asarray(result) for result in (results if isinstance(results, (list, tuple)) else (results,))]
    wanted = len(tensors(kernel.outputs))
    if len(arrays) < wanted:
        raise KernelError(f"kernel {kernel.name} ({kernel.type}) gave {len(arrays)} of {wanted} outputs")
    notice_overflow(arrays, stored)
    return arrays


def _take(parameter: Any, arrays: Iterator[np.ndarray]) -> Any:
    """Return the arrays of one parameter: an array, None, or a list."""
    if parameter is None:
        return None
    if isinstance(parameter, (list, tuple)):
        return [next(arrays) for _ in parameter]
    return next(arrays)


def _shown(parameters: list[Any]) -> str:
    """Return tensors as text."""
    return ", ".join(f"{one['dtype']}{list(one['shape'])} {one['format']}" for one in tensors(parameters)) or "nothing"
