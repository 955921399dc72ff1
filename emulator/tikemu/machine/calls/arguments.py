"""Arguments of a call that are known only at run time: the key of its operations, and templates of operands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...errors import TikBoundsError
from ...isa.micro_op import Operand
from ...program import ir
from ...program.dtypes import is_float, size_of
from ..expressions import Expressions
from ..runtime import TensorPlace


class RuntimeArguments:
    """The run-time values among the arguments of a call, as source texts: together the key of its operations."""

    def __init__(self, expressions: Expressions) -> None:
        self.expressions = expressions
        self.sources: list[str] = []

    def add(self, value: Any) -> int | float | KeyField:
        """Return a number, or the place of a run-time value in the key."""
        if ir.is_immediate(value):
            return value
        text = self.expressions.wrapped(value)
        if not is_float(text.dtype):
            return self.source(text.source)
        return self.source(f"_key({text.source})")  # 0.0 and -0.0 are equal as keys

    def source(self, source: str) -> KeyField:
        if source not in self.sources:
            self.sources.append(source)
        return KeyField(self.sources.index(source))


class KeyField:
    """Place of a run-time value in the key."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


def float_key(value: float) -> float | str:
    """Return a float as part of a key: the two zeros differ."""
    return value if value else repr(value)


def key_value(entry: Any, key: tuple) -> Any:
    """Return a number, or the run-time value that stands in its place of the key."""
    if not isinstance(entry, KeyField):
        return entry
    value = key[entry.index]
    return float(value) if isinstance(value, str) else value


class OperandTemplate:
    """A tensor operand whose offset, copy and extents may be run-time values.

    Args:
        place: where the tensor lives.
        view: the operand as recorded.
        run_time: receives the run-time values.
        copy: source text of the copy's number, or "" if there is one copy.
        anywhere: it may start outside the tensor, but inside the memory.
    """

    def __init__(
        self, place: TensorPlace, view: ir.View, run_time: RuntimeArguments, copy: str, anywhere: bool
    ) -> None:
        self.place, self.view = place, view
        self.itemsize = size_of(view.dtype)
        self.static = ir.is_immediate(view.offset)
        self.anywhere = anywhere
        self.offset: Any = run_time.add(view.offset)
        self.copy: Any = run_time.source(copy) if copy else 0
        self.shape: tuple[Any, ...] = tuple([run_time.add(extent) for extent in view.shape])
        self.strides: tuple[Any, ...] = tuple([run_time.add(extent) for extent in view.strides])
        self.run_time_shape = any(isinstance(extent, KeyField) for extent in self.shape)
        self.run_time_extents = self.run_time_shape or any(isinstance(step, KeyField) for step in self.strides)
        if not self.run_time_extents:
            self.shape, self.strides = tuple(map(int, self.shape)), tuple(map(int, self.strides))

    @property
    def moves(self) -> bool:
        """Return whether the offset is a run-time value."""
        return isinstance(self.offset, KeyField)

    @property
    def copied(self) -> bool:
        """Return whether the tensor has several copies."""
        return isinstance(self.copy, KeyField)

    def extent(self, operand: Operand) -> int:
        """Return how many bytes of the view must lie inside the tensor. An instruction may touch fewer."""
        if not self.run_time_shape:
            return 0
        return (1 + sum((n - 1) * step for n, step in zip(operand.shape, operand.strides))) * self.itemsize

    def operand(self, key: tuple) -> Operand:
        """Return the operand for the run-time values ``key``.

        Raises:
            TikBoundsError: it starts outside the tensor, or a run-time extent leads beyond its end. (It may start
                directly behind the tensor, for an instruction with repeat 0. The bytes that other instructions touch
                are checked later.)
        """
        place = self.place
        start = place.address + key_value(self.copy, key) * place.stride
        end = start + place.size
        address = start + key_value(self.offset, key) * self.itemsize
        name = self.view.tensor.name
        # A move may start in the padding behind a GM tensor (D33a).
        anywhere = self.anywhere or place.memory.kind == "GM" and address > end
        if not start <= address <= end and not (anywhere and 0 <= address <= len(place.memory.data)):
            raise TikBoundsError(
                f"tensor {name!r} is accessed at element {(address - start) // self.itemsize}, but it "
                f"has {place.size // self.itemsize}"
            )
        shape, strides = self.shape, self.strides
        if self.run_time_extents:
            shape = tuple([int(key_value(extent, key)) for extent in shape])
            strides = tuple([int(key_value(extent, key)) for extent in strides])
        if self.run_time_shape:
            needed = address - start + (1 + sum((n - 1) * step for n, step in zip(shape, strides))) * self.itemsize
            if needed > place.size and self.view.tensor.max_mem_size is not None:
                raise beyond_reserve(self.view.tensor, needed)
            if needed > place.size:
                raise TikBoundsError(
                    f"a slice of tensor {name!r} ends at element {needed // self.itemsize}, but it "
                    f"has {place.size // self.itemsize}"
                )
        return Operand(place.memory, address, start, end, self.view.dtype, shape, strides, name, self.static)


def resolve(entry: Any, key: tuple) -> Any:
    """Return an argument with its run-time values."""
    if isinstance(entry, OperandTemplate):
        return entry.operand(key)
    if isinstance(entry, KeyField):
        return key_value(entry, key)
    if isinstance(entry, list):
        return [resolve(item, key) for item in entry]
    if isinstance(entry, dict):
        return {name: resolve(item, key) for name, item in entry.items()}
    return entry


def places(entry: Any) -> set[int]:
    """Return the places in the key of an argument's values. The offsets of its operands are left out."""
    if isinstance(entry, KeyField):
        return {entry.index}
    if isinstance(entry, OperandTemplate):
        parts: Iterable[Any] = (entry.copy, *entry.shape, *entry.strides)
    elif isinstance(entry, (list, dict)):
        parts = entry.values() if isinstance(entry, dict) else entry
    else:
        return set()
    return set().union(*map(places, parts))


def beyond_reserve(tensor: ir.TensorInfo, needed: int) -> TikBoundsError:
    """Return the debugger's error about a tensor that grows beyond its reserve."""
    return TikBoundsError(
        f"The space required exceeds max_mem_size: tensor {tensor.name!r} needs {needed} bytes, max_mem_size is "
        f"{tensor.max_mem_size}"
    )
