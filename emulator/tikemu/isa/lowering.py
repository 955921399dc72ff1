"""Lower a composite API to instructions: calls of other entries, and scratch memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from ..errors import TikError, TikMemoryError
from ..program.dtypes import size_of
from . import registry
from .call import BindContext, Call, CoreState
from .micro_op import MicroOp, Operand
from .region import Memory

MAX_REPEAT = 255

# Scratch memory of composite APIs, per core. It is no part of the user's allocation: composites never keep data in it.
_scratch: WeakKeyDictionary[CoreState, dict[str, Memory]] = WeakKeyDictionary()


class Lowering:
    """Collect the micro-operations of one composite call.

    Args:
        call: the call of the composite API. Messages of its instructions have its name.
    """

    def __init__(self, call: Call) -> None:
        self.call = call
        self.ops: list[MicroOp] = []
        context = call.context
        self._context: BindContext = replace(context, fault=self._fault, report=self._report)
        self._tops: dict[str, int] = {}

    def _fault(self, error: type, message: str) -> None:
        self.call.context.fault(error, f"{self.call.api}: {message}")

    def _report(self, kind: str, error: type[TikError], message: str) -> None:
        self.call.context.report(kind, error, f"{self.call.api}: {message}")

    def emit(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Append an instruction of the table."""
        spec = registry.specs()[name]
        values = {param.name: param.default for param in spec.params}
        values.update(zip(values, args), **kwargs)
        self.append(name, *spec.bind(self._context, values))

    def append(self, name: str, *ops: MicroOp) -> None:
        """Append micro-operations, reported as ``api.name``."""
        for op in ops:
            op.name = f"{self.call.api}.{name}"
            op.operands, op.moved = (), None  # the call has other operands
            self.ops.append(op)

    def free(self, kind: str) -> int:
        """Return the bytes of a memory that live tensors leave, or all if unknown."""
        return self.call.context.free_bytes.get(kind, self.call.soc.capacity(kind))

    def scratch(self, kind: str, dtype: str, elements: int) -> Operand:
        """Return memory for this call only.

        Raises:
            TikMemoryError: the user's tensors leave too little of the memory (default mode: a warning).
        """
        call, size = self.call, elements * size_of(dtype)
        start = self._tops.get(kind, 0)
        end = self._tops[kind] = -(-(start + size) // 1024) * 1024
        if start + size > self.free(kind):
            call.questionable(
                "memory",
                f"needs {start + size} bytes of {kind} for itself, but the live tensors leave {self.free(kind)}",
                TikMemoryError,
            )
        memories = _scratch.setdefault(call.core, {})
        memory = memories.get(kind)
        if memory is None:
            memory = memories[kind] = Memory(kind, f"{kind} scratch", 2 * call.soc.capacity(kind), True)
        return Operand(memory, start, start, end, dtype, (elements,), (1,), f"scratch of {call.api}")


def window(operand: Operand, offset: int, elements: int = 1) -> Operand:
    """Return a flat window ``offset`` bytes into an operand."""
    return replace(operand, address=operand.address + offset, shape=(elements,), strides=(1,))


def chunks(elements: int, lanes: int) -> Iterator[tuple[int, int, int]]:
    """Cut a contiguous region into vector instructions (vector.md 4.3): (first element, mask, repeats)."""
    full, tail = divmod(elements, lanes)
    for first in range(0, full, MAX_REPEAT):
        yield first * lanes, lanes, min(MAX_REPEAT, full - first)
    if tail:
        yield full * lanes, tail, 1
