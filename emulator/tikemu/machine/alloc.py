"""Place tensors with a stack allocator per memory (tik/README.md D3a, D3b, D1).

Tensors get addresses in the order of their definition and are released when the statement scope that defined them
ends. A tensor defined inside a multi-buffered loop (``thread_num = n``) has n copies. L1OUT and L0C are one memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from ..errors import TikAlignError, TikMemoryError, TikParamError
from ..program import ir
from ..program.dtypes import size_of
from ..soc import ON_CHIP

_SCOPE_NAMES = {
    "UB": "scope_ubuf",
    "L1": "scope_cbuf",
    "L0A": "scope_ca",
    "L0B": "scope_cb",
    "L0C": "scope_cc and scope_cbuf_out",
}


@dataclass(frozen=True)
class Placement:
    """Addresses of one on-chip tensor.

    Attributes:
        address: of copy 0, bytes.
        size: bytes of one copy, without padding.
        stride: bytes from one copy to the next.
        copies: number of copies.
        selectors: (loop variable, copies) of the multi-buffered loops around the definition, outermost first.
    """

    address: int
    size: int
    stride: int
    copies: int
    selectors: tuple[tuple[ir.Variable, int], ...]

    @property
    def end(self) -> int:
        """Return the end of the last copy."""
        return self.address + (self.copies - 1) * self.stride + self.size


@dataclass
class Plan:
    """Result of the allocation.

    Attributes:
        placements: by ``TensorInfo.uid``, on-chip tensors only.
        peak: largest number of bytes in use at once, per memory.
        free: by ``id`` of an instruction statement: bytes per memory that the live tensors leave to it.
    """

    placements: dict[int, Placement] = field(default_factory=dict)
    peak: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ON_CHIP, 0))
    free: dict[int, dict[str, int]] = field(default_factory=dict)


def alignment(tensor: ir.TensorInfo) -> int:
    """Return the alignment of a tensor's start address in bytes (core.md 2.2)."""
    if tensor.memory == "UB":
        return 32
    if tensor.memory == "L0C":
        return 1024 if size_of(tensor.dtype) == 4 else 512
    return 512


def tensor_bytes(tensor: ir.TensorInfo) -> int:
    """Return the bytes that a tensor occupies.

    They follow from its shape, or from ``max_mem_size`` if the shape is known only at run time.

    Raises:
        TikParamError: the shape is not known and no ``max_mem_size`` is given.
    """
    extents: tuple[Any, ...] = tensor.shape
    if all(ir.is_immediate(extent) for extent in extents):
        return math.prod([int(extent) for extent in extents]) * size_of(tensor.dtype)
    if tensor.max_mem_size is None:
        raise TikParamError(
            f"tensor {tensor.name!r} has a run-time shape, so max_mem_size must be given", tensor.location
        )
    return int(tensor.max_mem_size)


def plan(program: ir.Program, reduced: bool = False, order: str = "definition") -> Plan:
    """Place every on-chip tensor of ``program``.

    Args:
        program: the recorded program.
        reduced: without the part of the Unified Buffer that some releases keep for themselves (D1).
        order: "definition", or "first use" for tensors defined one after another in the same scope.

    Raises:
        TikMemoryError: the live tensors of a memory exceed its capacity.
        TikAlignError: ``start_addr`` is not a multiple of the alignment.
    """
    capacity = {memory: program.soc.capacity(memory) for memory in ON_CHIP}
    if reduced:
        capacity["UB"] = program.soc.ub_planned
    uses = _first_uses(program.body) if order == "first use" else None
    try:
        return _Allocator(capacity, True, uses).run(program.body)
    except TikMemoryError:
        # A loop with thread_num=1 inherits the multi-buffering of an outer loop only if memory suffices.
        return _Allocator(capacity, False, uses).run(program.body)


def _first_uses(body: ir.Body) -> dict[int, int]:
    """Return the position of the first statement that uses a tensor, by ``TensorInfo.uid``."""
    uses: dict[int, int] = {}
    for position, statement in enumerate(ir.statements(body)):
        if not isinstance(statement, ir.Define):
            for leaf in ir.leaves(statement):
                if isinstance(leaf, ir.TensorInfo):
                    uses.setdefault(leaf.uid, position)
    return uses


class _Allocator:
    def __init__(self, capacity: dict[str, int], inherit: bool, uses: dict[int, int] | None) -> None:
        self.capacity = capacity
        self.inherit = inherit
        self.uses = uses
        self.top = dict.fromkeys(ON_CHIP, 0)
        self.live: list[tuple[ir.TensorInfo, Placement]] = []
        self.plan = Plan()

    def run(self, body: ir.Body) -> Plan:
        self.body(body, ())
        return self.plan

    def body(self, body: ir.Body, selectors: tuple[tuple[ir.Variable, int], ...]) -> None:
        top, count = dict(self.top), len(self.live)
        free: dict[str, int] | None = None
        for statement in self.ordered(body.statements):
            if isinstance(statement, ir.Define):
                if statement.tensor.memory != "GM":
                    self.define(statement, selectors)
                    free = None
            elif isinstance(statement, ir.Instruction):
                if free is None:
                    free = {memory: size - self.top[memory] for memory, size in self.capacity.items()}
                self.plan.free[id(statement)] = free
            elif isinstance(statement, ir.For):
                self.body(statement.body, self.inside(statement, selectors))
            else:
                for inner in ir.bodies(statement):
                    self.body(inner, selectors)
        self.top = top
        del self.live[count:]

    def ordered(self, statements: Iterable[ir.Statement]) -> Iterator[ir.Statement]:
        """Yield the statements, with neighbouring definitions in the order of first use if that counts."""
        if self.uses is None:
            yield from statements
            return
        for defines, group in groupby(statements, lambda statement: isinstance(statement, ir.Define)):
            found = list(group)
            yield from sorted(found, key=self.first_use) if defines else found

    def first_use(self, definition: Any) -> int:
        """Return the position of the first use of the tensor that is defined."""
        return self.uses.get(definition.tensor.uid, 0)

    def inside(self, loop: ir.For, outer: tuple[tuple[ir.Variable, int], ...]) -> tuple[tuple[ir.Variable, int], ...]:
        copies = copies_of(loop)
        if copies > 1:
            return (*outer, (loop.variable, copies))
        return outer if self.inherit and loop.thread_num != 0 else ()

    def define(self, statement: ir.Define, selectors: tuple[tuple[ir.Variable, int], ...]) -> None:
        tensor = statement.tensor
        memory, unit = tensor.memory, alignment(tensor)
        size = tensor_bytes(tensor)
        address = _round_up(self.top[memory], unit)
        if tensor.start_addr is not None:
            address = int(tensor.start_addr)
            if address % unit:
                raise TikAlignError(
                    f"start_addr of tensor {tensor.name!r} must be a multiple of {unit}, got {address}",
                    statement.location,
                )
        stride = _round_up(size, unit)
        placement = Placement(address, size, stride, math.prod(count for _, count in selectors), selectors)
        self.live.append((tensor, placement))
        top = max(self.top[memory], address + placement.copies * stride)
        if top > self.capacity[memory]:
            raise TikMemoryError(self.overflow(memory, top), statement.location)
        self.top[memory] = top
        self.plan.peak[memory] = max(self.plan.peak[memory], top)
        self.plan.placements[tensor.uid] = placement

    def overflow(self, memory: str, top: int) -> str:
        names = []
        for tensor, placement in self.live:
            if tensor.memory == memory:
                times = f"{placement.copies} x " if placement.copies > 1 else ""
                names.append(f"{tensor.name} {times}{placement.size}")
        shown = ", ".join(names[-12:])
        more = f"{len(names) - 12} earlier ones, " if len(names) > 12 else ""
        return (
            f"the live tensors in {_SCOPE_NAMES[memory]} need {top} bytes, which exceeds the total size of the "
            f"corresponding buffer, {self.capacity[memory]} bytes ({more}{shown})"
        )


def copies_of(loop: ir.For) -> int:
    """Return the copies a loop makes of tensors in its body. With ``tik_break`` there are none (core.md 3.1)."""
    return 1 if loop.thread_num < 2 or has_break(loop.body) else loop.thread_num


def has_break(body: ir.Body) -> bool:
    """Return whether ``tik_break`` leaves the loop that ``body`` belongs to."""
    for statement in body.statements:
        if isinstance(statement, ir.Break):
            return True
        if not isinstance(statement, ir.For) and any(has_break(inner) for inner in ir.bodies(statement)):
            return True
    return False


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
