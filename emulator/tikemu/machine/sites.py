"""What stands behind one statement of the compiled program.

An :class:`InstructionSite` turns the run-time arguments of a call into prepared operations, once per distinct set of
values. Element accesses of the scalar unit and definitions of tensors have sites of their own.
"""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from .. import ir
from ..dtypes import is_float, size_of
from ..errors import TikBoundsError, TikError
from ..isa.call import BindContext
from ..isa.micro_op import Access, Operand
from ..isa.region import Region
from .expressions import Expressions, Text
from .memories import element_range
from .moving import KEPT, Mover
from .runtime import BoundOp, Runtime, TensorPlace
from .strict import mark, require_defined

#: Prepared sets of arguments kept per statement.
CACHE = 4096

Ops = tuple[BoundOp, ...]


class Site:
    """Something that prepares operations or footprints and keeps them."""

    def forget(self) -> None:
        """Drop what is prepared; what it has counted is kept."""

    def restart(self) -> None:
        """A new run begins: counts start at 0."""


class Leaves:
    """The run-time values among the arguments of a statement, as source texts: the key of the cache."""

    def __init__(self, expressions: Expressions) -> None:
        self.expressions = expressions
        self.sources: list[str] = []
        self.floats: set[int] = set()  # places of float values

    def add(self, value: Any) -> int | float | Leaf:
        """A number, or the place of a run-time value in the key."""
        text = self.expressions.wrapped(value)
        if ir.is_immediate(value):
            return value
        if not is_float(text.dtype):
            return self.source(text.source)
        leaf = self.source(f"_key({text.source})")  # 0.0 and -0.0 are equal as keys
        self.floats.add(leaf.index)
        return leaf

    def source(self, source: str) -> Leaf:
        if source not in self.sources:
            self.sources.append(source)
        return Leaf(self.sources.index(source))


class Leaf:
    """Place of a run-time value in the key."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


def float_key(value: float) -> float | str:
    """A float as part of a key: the two zeros differ."""
    return value if value else repr(value)


def _value(entry: Any, key: tuple) -> Any:
    if not isinstance(entry, Leaf):
        return entry
    value = key[entry.index]
    return float(value) if isinstance(value, str) else value


class ViewTemplate:
    """A tensor operand whose offset, copy and extents may be run-time values.

    Args:
        place: where the tensor lives.
        view: the operand as recorded.
        leaves: receives the run-time values.
        copy: source text of the copy's number, or "" if there is one copy.
        moving: source text that stands for the offset in the key of a :class:`MovingSite`.
        anywhere: it may start outside the tensor, but inside the memory.
    """

    def __init__(
        self, place: TensorPlace, view: ir.View, leaves: Leaves, copy: str, moving: str = "", anywhere: bool = False
    ) -> None:
        self.place, self.view = place, view
        self.itemsize = size_of(view.dtype)
        self.static = ir.is_immediate(view.offset)
        self.moving, self.anywhere = bool(moving), anywhere
        self.offset = leaves.source(moving) if moving else leaves.add(view.offset)
        self.copy = leaves.source(copy) if copy else 0
        self.shape = tuple(leaves.add(extent) for extent in view.shape)
        self.strides = tuple(leaves.add(extent) for extent in view.strides)
        self.run_time_shape = any(isinstance(extent, Leaf) for extent in self.shape)

    @property
    def moves(self) -> bool:
        """Whether the offset is a run-time value."""
        return isinstance(self.offset, Leaf)

    @property
    def copied(self) -> bool:
        """Whether the tensor has several copies."""
        return isinstance(self.copy, Leaf)

    def extent(self, operand: Operand) -> int:
        """Bytes of the view that must lie inside the tensor, whatever an instruction touches."""
        if not self.run_time_shape:
            return 0
        return (1 + sum((n - 1) * step for n, step in zip(operand.shape, operand.strides))) * self.itemsize

    def operand(self, key: tuple, offset: int | None = None) -> Operand:
        """The operand for the run-time values ``key``; ``offset`` replaces the one in the key.

        Raises:
            TikBoundsError: it starts outside the tensor, or a run-time extent leads beyond its end. (Where it may start
                directly behind the tensor, an instruction with repeat 0 stands; others find out by what they touch.)
        """
        place = self.place
        start = place.address + _value(self.copy, key) * place.stride
        end = start + place.size
        address = start + (_value(self.offset, key) if offset is None else offset) * self.itemsize
        name = self.view.tensor.name
        # A move may start in the padding behind a GM tensor (D33a).
        anywhere = self.anywhere or place.memory.kind == "GM" and address > end
        if not start <= address <= end and not (anywhere and 0 <= address <= len(place.memory.data)):
            raise TikBoundsError(
                f"tensor {name!r} is accessed at element {(address - start) // self.itemsize}, but it "
                f"has {place.size // self.itemsize}"
            )
        shape = tuple(int(_value(extent, key)) for extent in self.shape)
        strides = tuple(int(_value(extent, key)) for extent in self.strides)
        if self.run_time_shape:
            needed = address - start + (1 + sum((n - 1) * step for n, step in zip(shape, strides))) * self.itemsize
            if needed > place.size and self.view.tensor.max_mem_size is not None:
                raise TikBoundsError(space_message(self.view.tensor, needed))
            if needed > place.size:
                raise TikBoundsError(
                    f"a slice of tensor {name!r} ends at element {needed // self.itemsize}, but it "
                    f"has {place.size // self.itemsize}"
                )
        return Operand(place.memory, address, start, end, self.view.dtype, shape, strides, name, self.static)


def space_message(tensor: ir.TensorInfo, needed: int) -> str:
    """What the debugger says of a tensor that grows beyond its reserve."""
    return (
        f"The space required exceeds max_mem_size: tensor {tensor.name!r} needs {needed} bytes, max_mem_size is "
        f"{tensor.max_mem_size}"
    )


class InstructionSite(Site):
    """One call of an instruction.

    Attributes:
        cache: prepared operations by key. The key is the tuple of the run-time values, or the value itself if there is
            one, or () if there is none.
        leaves: the run-time values.
        computed: its numerics are run.
        mover: uses prepared operations again at other addresses; None where that does not work.
    """

    def __init__(self, runtime: Runtime, statement: ir.Instruction, leaves: Leaves, arguments: dict[str, Any]) -> None:
        self.runtime, self.statement, self.arguments = runtime, statement, arguments
        self.leaves = leaves
        self.location = statement.location
        self.cache: dict[Any, Ops] = {}
        self.retired = Tally()
        self.code_bytes: int | None = None
        self.computed = True
        self.mover = self._mover()
        runtime.sites.append(self)

    def _mover(self) -> Mover | None:
        entries = list(self.arguments.values())
        views = [entry for entry in entries if isinstance(entry, ViewTemplate)]
        if self.runtime.options.sync == "optimistic" or self.runtime.options.l2:
            return None  # every address has a footprint, or lines, of its own
        if any(isinstance(entry, (list, dict)) and entry for entry in entries) or not any(view.moves for view in views):
            return None
        floats = {entry.index for entry in entries if isinstance(entry, Leaf)} & self.leaves.floats
        return Mover(self, views, floats.pop() if len(floats) == 1 else None)

    def bind(self, key: Any) -> Ops:
        """Prepare the call for a set of run-time values, and remember it."""
        values = key if len(self.leaves.sources) != 1 else (key,)
        if self.mover is not None and len(self.cache) >= KEPT:
            ops = self.mover.find(values)
            if ops is not None:
                if not self.computed and len(self.cache) < CACHE:
                    self.cache[key] = ops  # nothing is moved, so they serve this key as they are
                return ops
        ops = self.prepare(values)
        if len(self.cache) >= CACHE:
            self.forget()
        self.cache[key] = ops
        return ops

    def prepare(self, values: tuple, offset: int | None = None) -> Ops:
        """Check the call and build its operations."""
        runtime, location = self.runtime, self.location

        def fault(error: type[TikError], message: str) -> None:
            raise error(message, location)

        result = self.statement.result
        context = BindContext(
            runtime.soc,
            runtime.options.strict,
            runtime.core.core,
            lambda message: runtime.warn(message, location),
            fault,
            not self.leaves.sources,
            None if result is None else result.uid,
            runtime.options.bounds,
            {"free": runtime.plan.free[id(self.statement)]},
        )
        try:
            arguments = {name: _resolve(entry, values, offset) for name, entry in self.arguments.items()}
            micros = self.statement.spec.bind(context, arguments)
        except TikError as error:
            raise error.at(location) from None
        ops = tuple(runtime.prepare(micro, location) for micro in micros)
        if self.code_bytes is None:
            self.code_bytes = sum(micro.code_bytes for micro in micros)
        return ops

    def prepared(self) -> list[Ops]:
        """All operations that are kept, each once."""
        kept = [*self.cache.values(), *(self.mover.prepared() if self.mover is not None else ())]
        return list({id(ops): ops for ops in kept}.values())

    def forget(self) -> None:
        for ops in self.prepared():
            self.retire(ops)
        self.cache.clear()
        if self.mover is not None:
            self.mover.templates.clear()

    def retire(self, ops: Ops) -> None:
        """Keep what ``ops`` have counted so far."""
        if self.runtime.clock is not None:
            self.runtime.clock.settle()
        self.retired.add(ops)
        for op in ops:
            op.count, op.extra = 0, 0.0

    def restart(self) -> None:
        self.retired = Tally()
        for ops in self.prepared():
            for op in ops:
                op.count, op.extra = 0, 0.0

    def tally(self) -> Tally:
        """Everything that was executed here."""
        total = Tally()
        total.merge(self.retired)
        for ops in self.prepared():
            total.add(ops)
        return total


class MovingSite(InstructionSite):
    """A call with one operand in global memory at a run-time offset, in a run without numerics.

    Its time depends on the offset only through the alignment to the lines of the L2 buffer, so all offsets that are
    equal in this respect share the prepared operations; the key holds the offset modulo ``unit``.
    """

    def __init__(
        self, runtime: Runtime, statement: ir.Instruction, leaves: Leaves, arguments: dict[str, Any], view: ViewTemplate
    ) -> None:
        super().__init__(runtime, statement, leaves, arguments)
        self.mover = None
        self.view = view
        self.unit = int(runtime.soc.timing.gm_line) // view.itemsize
        self.limits: dict[Any, int] = {}

    def bind_at(self, key: Any, offset: int) -> Ops:
        """Prepare the call at ``offset`` elements, and remember up to which offset it stays inside the tensor."""
        ops = self.prepare(key if len(self.leaves.sources) != 1 else (key,), offset)
        reach = 0
        for op in ops:
            for access in (*op.micro.reads, *op.micro.writes):
                if access.operand.memory is self.view.place.memory:
                    reach = max(reach, access.region.end - access.operand.address)
        if len(self.cache) >= CACHE:
            self.forget()
        elif key in self.cache:
            self.retire(self.cache[key])
        self.cache[key] = ops
        self.limits[key] = (self.view.place.size - reach) // self.view.itemsize
        return ops

    def forget(self) -> None:
        super().forget()
        self.limits.clear()


class StaticGroup(Site):
    """Consecutive calls without run-time arguments."""

    def __init__(self, runtime: Runtime, sites: list[InstructionSite]) -> None:
        self.sites = sites
        self.ops: Ops | None = None
        runtime.sites.append(self)

    def first(self) -> Ops:
        """Prepare and run call after call, so that each is bound with the registers as the one before left them."""
        self.ops, prepared = (), []
        for site in self.sites:
            ops = site.cache.get(())
            if ops is None:
                ops = site.bind(())
            prepared += ops
            if site.computed:
                for op in ops:
                    try:
                        op.run()
                    except TikError as error:
                        raise error.at(op.location) from None
        # None: something has asked for everything to be prepared again meanwhile.
        if self.ops is not None:
            self.ops = tuple(prepared)
        return tuple(prepared)

    def forget(self) -> None:
        self.ops = None


class Tally:
    """Executions, cycles and bytes of prepared operations, by instruction name and pipe."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, int], list[float]] = {}
        self.read_bytes = self.written_bytes = 0
        self.macs = 0
        self.constants: set[str] = set()

    def add(self, ops: Ops) -> None:
        """Count what ``ops`` have executed."""
        for op in ops:
            if not op.count:
                continue
            entry = self.entries.setdefault((op.name, op.pipe), [0, 0.0])
            entry[0] += op.count
            entry[1] += op.busy
            self.macs += op.micro.macs * op.count
            self.constants.update(op.micro.constants)
            transfer = op.micro.transfer
            if transfer is not None:
                moved = transfer.bursts * transfer.burst_bytes * op.count
                if transfer.direction == "read":
                    self.read_bytes += moved
                else:
                    self.written_bytes += moved

    def merge(self, other: Tally) -> None:
        for key, (count, busy) in other.entries.items():
            entry = self.entries.setdefault(key, [0, 0.0])
            entry[0] += count
            entry[1] += busy
        self.read_bytes += other.read_bytes
        self.written_bytes += other.written_bytes
        self.macs += other.macs
        self.constants |= other.constants


def _resolve(entry: Any, key: tuple, offset: int | None) -> Any:
    """An argument with its run-time values."""
    if isinstance(entry, ViewTemplate):
        return entry.operand(key, offset if entry.moving else None)
    if isinstance(entry, Leaf):
        return _value(entry, key)
    if isinstance(entry, list):
        return [_resolve(item, key, offset) for item in entry]
    if isinstance(entry, dict):
        return {name: _resolve(item, key, offset) for name, item in entry.items()}
    return entry


class ElementSite(Site):
    """One access of the scalar unit to an element of a tensor.

    Args:
        runtime: the run.
        view: the element (its first one counts).
        place: where the tensor lives.
        location: the user's line.
        synced: whether the automatic synchronisation works here.
        needed: whether the value matters (without numerics only values that decide the course of the program do).
    """

    def __init__(
        self, runtime: Runtime, view: ir.View, place: TensorPlace, location: ir.Location, synced: bool, needed: bool
    ) -> None:
        self.runtime, self.place, self.location = runtime, place, location
        self.dtype, self.name = view.dtype, view.tensor.name
        self.itemsize = size_of(view.dtype)
        self.static = ir.is_immediate(view.offset)
        self.synced, self.needed = synced, needed
        sync = runtime.options.sync
        self.whole = sync == "conservative" or sync == "auto" and not self.static  # the footprint is the tensor
        size = len(place.memory.data) // self.itemsize * self.itemsize
        self.array = place.memory.data[:size].view(view.dtype)
        self.footprints: dict[int, Any] = {}
        runtime.sites.append(self)

    def reader(self) -> Callable[[int, int], Any]:
        """``f(offset, copy)``: the element's value."""
        array, itemsize, needed = self.array, self.itemsize, self.needed
        locate = self._locate(write=False)

        def read(offset: int, copy: int) -> Any:
            address = locate(offset, copy)
            return array.item(address // itemsize) if needed else 0

        return read

    def writer(self) -> Callable[[int, int, Any], None]:
        """``f(offset, copy, value)``: store a value that the element's type represents."""
        array, itemsize, needed = self.array, self.itemsize, self.needed
        locate = self._locate(write=True)

        def write(offset: int, copy: int, value: Any) -> None:
            address = locate(offset, copy)
            if needed:
                array[address // itemsize] = value

        return write

    def forget(self) -> None:
        self.footprints.clear()

    def _locate(self, write: bool) -> Callable[[int, int], int]:
        """``f(offset, copy)``: the checked address; accounts for time, marks and races."""
        place, itemsize, name = self.place, self.itemsize, self.name
        runtime, clock, footprints, whole = self.runtime, self.runtime.clock, self.footprints, self.whole
        checked = runtime.checks or not self.synced
        if clock is not None:
            access = clock.scalar_write if write else clock.scalar_read

        def locate(offset: int, copy: int) -> int:
            start = place.address + copy * place.stride
            address = start + offset * itemsize
            if address < start or address + itemsize > start + place.size:
                element_range(address, itemsize, start, start + place.size, name)
            if checked:
                self._check(address, start, write)
            if clock is not None:
                footprint = footprints.get(start if whole else address)
                if footprint is None:
                    footprint = self._footprint(address, start)
                access(footprint)
            return address

        return locate

    def _footprint(self, address: int, start: int) -> Any:
        if len(self.footprints) >= CACHE:
            self.footprints.clear()
        region = Region.span(self.place.memory, address, self.itemsize)
        footprint = self.runtime.footprint(self.static, region, start, start + self.place.size)
        self.footprints[start if self.whole else address] = footprint
        return footprint

    def _check(self, address: int, start: int, write: bool) -> None:
        runtime = self.runtime
        region = Region.span(self.place.memory, address, self.itemsize)
        if runtime.pipe_races is not None and not self.synced:
            runtime.pipe_races.access("S", [(region, write)], f"the scalar access to tensor {self.name!r}")
        if not runtime.checks:
            return
        if write:
            mark(region, 1)
            return
        operand = Operand(self.place.memory, address, start, start + self.place.size, self.dtype, (1,), (1,), self.name)
        require_defined(Access(operand, region), "the scalar unit")


def define(runtime: Runtime, tensor: ir.TensorInfo) -> Callable[[int], None]:
    """``f(copy)``: fresh contents for a tensor whose definition is reached."""
    placement = runtime.plan.placements[tensor.uid]
    clear, kind, base, stride, size = (
        runtime.core.clear,
        tensor.memory,
        placement.address,
        placement.stride,
        placement.size,
    )

    def fresh(copy: int) -> None:
        start = base + copy * stride
        clear(kind, start, start + size)

    return fresh


def reserve(tensor: ir.TensorInfo) -> Callable[[int], None]:
    """``f(elements)``: checks the size of a tensor with a run-time shape when its definition is reached."""

    def check(elements: int) -> None:
        needed = elements * size_of(tensor.dtype)
        if needed > tensor.max_mem_size:
            raise TikBoundsError(space_message(tensor, needed))

    return check


class DebugPrint:
    """``tikdb.debug_print``: evaluates an expression over tensors and scalars, and prints it."""

    def __init__(
        self, runtime: Runtime, statement: ir.DebugPrint, tensors: dict[str, tuple[TensorPlace, ir.View]]
    ) -> None:
        self.runtime, self.statement, self.tensors = runtime, statement, tensors
        self.code = compile(statement.expression, "<debug_print>", "eval")

    def __call__(self, scalars: dict[str, Any], copies: dict[str, int]) -> None:
        names: dict[str, Any] = dict(scalars)
        for name, (place, view) in self.tensors.items():
            start = place.address + copies.get(name, 0) * place.stride
            array = place.memory.data[start : start + place.size].view(view.dtype)
            fixed = all(ir.is_immediate(extent) for extent in view.shape)
            names[name] = array.reshape(view.shape).copy() if fixed else array.copy()
        try:
            value = eval(self.code, {"np": np}, names)
        except (NameError, IndexError, TypeError, ValueError, ZeroDivisionError) as error:
            value = f"{type(error).__name__}: {error}"
        print(f"{self.statement.expression} = {value}")


def text_of_copy(selectors: tuple[tuple[ir.Variable, int], ...], expressions: Expressions) -> str:
    """Source text of the copy's number of a tensor inside multi-buffered loops; "" where there is one copy."""
    source = ""
    for variable, copies in selectors:
        text: Text = expressions.wrapped(variable)
        part = f"{text.source} % {copies}"
        source = part if not source else f"({source}) * {copies} + {part}"
    return f"({source})" if source else ""
