"""A bench for single instructions: tensors in the memories of one core, one call at a time, through check and bind."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tikemu import Options, default_options, soc
from tikemu.errors import TikBoundsError, TikWarning
from tikemu.findings import CLASSES
from tikemu.isa import registry
from tikemu.isa.call import BindContext, CoreState
from tikemu.isa.micro_op import Access, MicroOp, Operand
from tikemu.isa.region import Memory, Region
from tikemu.program import ir

from emulator.tests.support.naive_instructions import INSTRUCTIONS
from emulator.tests.support.naive_values import STATUS, Bytes, Pointer

SOC = soc.ASCEND_910A
SCOPES = {"GM": "global", **{kind: f"local.{kind}" for kind in ("UB", "L1", "L0A", "L0B", "L0C")}}
#: An access outside of its tensor is an error, whatever else is questionable.
BOUNDS = Options(strict=True, leave_out=tuple({*CLASSES} - {"bounds", "padding"}))
ALIGNMENT = {"UB": 32, "L1": 512, "L0A": 512, "L0B": 512, "L0C": 1024}


class Judgement:
    """Options of default or strict mode, and what was told under them.

    Attributes:
        options: of the mode.
        said: messages of questionable use, in default mode.
    """

    def __init__(self, strict: bool) -> None:
        self.options = Options(strict=strict)
        self.said: list[str] = []

    def report(self, kind: str, error: Any, message: str) -> None:
        """Raise an error in strict mode, otherwise warn."""
        if self.options.raises(kind):
            raise error(message)
        self.said.append(message)
        warnings.warn(message, TikWarning, stacklevel=2)


def fault(error: Any, message: str) -> None:
    """Raise the error of an instruction, as the runtime does."""
    raise error(message)


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return strides in elements."""
    return tuple(int(np.prod(shape[axis + 1 :])) for axis in range(len(shape)))


def recorded(dtype: str, memory: str, name: str = "t", shape: tuple[int, ...] = (4096,)) -> ir.View:
    """Return a tensor as the front end records it, for checks at the call."""
    info = ir.TensorInfo(name, dtype, shape, SCOPES[memory], 0, ir.Location("user.py", 1))
    return ir.View(info, dtype, 0, shape, row_major(shape))


def call_views(dst_dtype: str, src_dtype: str, target: str, source: str) -> tuple[ir.View, ir.View]:
    """Return destination and source of a call as recorded tensors."""
    return recorded(dst_dtype, target, "dst"), recorded(src_dtype, source, "src")


def check(api: str, *args: Any, strict: bool = False, **kwargs: Any) -> list[str]:
    """Run the checks of a recorded call, and return the warnings."""
    spec = registry.specs()[api]
    judgement = Judgement(strict)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TikWarning)
        spec.check(spec.arguments(*args, **kwargs), SOC, judgement.options, judgement.report)
    return judgement.said


def refuses(error: type[Exception], match: str | None, api: str, /, *args: Any, **kwargs: Any) -> None:
    """Check that a recorded call raises ``error`` with a message that ``match`` matches."""
    with pytest.raises(error, match=match):
        check(api, *args, **kwargs)


def touched(region: Region) -> np.ndarray:
    """Return the numbers of the bytes of a region."""
    return np.flatnonzero(region.bitmap(0, region.end))


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor on the bench, or a view of it.

    Attributes:
        base, nbytes: address and size of the tensor in its memory.
        offset, strides: of the view, in elements.
    """

    info: ir.TensorInfo
    memory: Memory
    base: int
    nbytes: int
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def at(self, offset: int, shape: Sequence[int] | None = None, strides: tuple[int, ...] = ()) -> Tensor:
        """Return a window that starts ``offset`` elements further; by default flat, up to the end."""
        shape = (int(np.prod(self.shape)) - offset,) if shape is None else tuple(shape)
        return replace(self, offset=self.offset + offset, shape=shape, strides=strides or row_major(shape))

    def __getitem__(self, index: int | slice) -> Tensor:
        """Return one element, or a range of a flat tensor."""
        if isinstance(index, int):
            return self.at(index, (1,))
        start, stop, _ = index.indices(self.shape[0])
        return self.at(start, (stop - start,))

    def view(self, run_time: bool) -> ir.View:
        """Return the operand as a recorded program holds it; offset and shape perhaps as variables."""
        number = ir.Variable("n", "int32", "scalar", 0)
        offset, shape = (number, (number,) * len(self.shape)) if run_time else (self.offset, self.shape)
        return ir.View(self.info, self.dtype, offset, shape, self.strides)

    @property
    def address(self) -> int:
        """Return the address of the first element, in bytes."""
        return self.base + self.offset * np.dtype(self.dtype).itemsize

    def operand(self) -> Operand:
        """Return the operand as the runtime hands it to an instruction."""
        end = self.base + self.nbytes
        return Operand(self.memory, self.address, self.base, end, self.dtype, self.shape, self.strides, self.info.name)

    def _array(self) -> np.ndarray:
        size = np.dtype(self.dtype).itemsize
        return self.memory.view(self.dtype, self.address, self.shape, tuple(size * stride for stride in self.strides))

    def _bits(self) -> np.ndarray:
        size = np.dtype(self.dtype).itemsize
        strides = (*(size * stride for stride in self.strides), 1)
        return np.ndarray((*self.shape, size), np.uint8, self.memory.defined, self.address, strides)

    @property
    def values(self) -> np.ndarray:
        """Return a copy of the elements."""
        return self._array().copy()

    @property
    def defined(self) -> np.ndarray:
        """Return for each element whether all its bytes are defined."""
        return self._bits().all(axis=-1)

    def store(self, values: Any) -> None:
        """Set the elements, which are then defined."""
        self._array()[...] = np.asarray(values, self.dtype).reshape(self.shape)
        if self.memory.defined is not None:
            self._bits()[...] = 1


class Runtime:
    """Mark an argument as known only at run time."""

    def __init__(self, value: Any, dtype: str = "int32") -> None:
        self.value, self.variable = value, ir.Variable("s", dtype, "scalar", 0)


class Bench:
    """Memories of one core and global tensors, and the calls made on them.

    Args:
        strict: mode of the calls; None takes the options in force.
    """

    def __init__(self, strict: bool | None = None) -> None:
        self.strict = strict = default_options().strict if strict is None else strict
        self.memories = {kind: Memory(kind, kind, SOC.capacity(kind), strict) for kind in ALIGNMENT}
        self.top = dict.fromkeys(ALIGNMENT, 0)
        self.core = CoreState()
        self.naive = SimpleNamespace(register=0, atomic=False)
        self.uid = 0

    def tensor(self, kind: str, dtype: str, shape: int | Sequence[int], values: Any = None, name: str = "t") -> Tensor:
        """Allocate a tensor; ``values`` are stored and count as defined."""
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if kind == "GM":
            memory, base = Memory("GM", name, -(-size // 32) * 32, self.strict), 0
        else:
            memory, base, unit = self.memories[kind], self.top[kind], ALIGNMENT[kind]
            self.top[kind] = base + -(-size // unit) * unit
            assert base + size <= SOC.capacity(kind), f"{kind} of the bench is full"
        self.uid += 1
        info = ir.TensorInfo(name, dtype, shape, SCOPES[kind], self.uid, ir.Location("bench", 1))
        tensor = Tensor(info, memory, base, size, dtype, 0, shape, row_major(shape))
        if values is not None:
            tensor.store(values)
        return tensor

    def ub(self, values: np.ndarray, name: str = "") -> Tensor:
        """Return an array as flat tensor in the Unified Buffer, the bit patterns kept."""
        tensor = self.tensor("UB", values.dtype.name, values.size, name=name or f"t{self.uid + 1}")
        tensor.store(values)
        return tensor

    def bind(
        self,
        api: str,
        *args: Any,
        free_bytes: Mapping[str, int] | None = None,
        options: Options | None = None,
        **kwargs: Any,
    ) -> tuple[MicroOp, ...]:
        """Check a call as the front end does, then bind it as the machine does."""
        spec = registry.specs()[api]
        given = spec.arguments(*args, **kwargs)
        judgement = Judgement(self.strict)
        judgement.options = options or judgement.options
        spec.check(_map(given, _recorded), SOC, judgement.options, judgement.report)
        static: list[bool] = []
        _map(given, lambda value: static.append(not isinstance(value, Runtime)))
        self.uid += 1
        context = BindContext(
            SOC, judgement.options, self.core, judgement.report, fault, all(static), self.uid, free_bytes or {}
        )
        return spec.bind(context, _map(given, _resolved))

    def call(self, api: str, *args: Any, **kwargs: Any) -> Any:
        """Execute one instruction. Returns a compare-mask handle if the instruction does."""
        operations = self.bind(api, *args, **kwargs)
        for operation in operations:
            self.execute(operation)
        return self._result(api, operations)

    def _result(self, api: str, operations: tuple[MicroOp, ...]) -> Any:
        return ir.CmpMask(self.uid) if registry.specs()[api].returns == "cmpmask" else operations

    def refuses(self, error: type[Exception], match: str | None, api: str, /, *args: Any, **kwargs: Any) -> None:
        """Check that a call raises ``error`` with a message that ``match`` matches."""
        with pytest.raises(error, match=match):
            self.call(api, *args, **kwargs)

    def warns(self, match: str, api: str, /, *args: Any, **kwargs: Any) -> Any:
        """Execute one instruction and check that it warns as ``match`` says. Returns what :meth:`call` does."""
        with pytest.warns(TikWarning, match=match):
            return self.call(api, *args, **kwargs)

    def agree(self, api: str, *args: Any, **kwargs: Any) -> Any:
        """Execute one instruction and compare it with the naive interpreter: defined bytes of the memories, bytes that
        it says to read and to write, overflow status. Returns what :meth:`call` does.
        """
        expected: dict[Memory, Bytes] = {}

        def pointer(value: Any) -> Any:
            value = value.value if isinstance(value, Runtime) else value
            if not isinstance(value, Tensor):
                return value
            if value.memory not in expected:
                used = self.top.get(value.memory.kind, len(value.memory.data)) + 4096
                expected[value.memory] = Bytes(value.memory.data[:used], value.memory.kind)
            return Pointer(expected[value.memory], value.address, value.dtype)

        STATUS.saturated = False
        INSTRUCTIONS[api](self.naive, _map(registry.specs()[api].arguments(*args, **kwargs), pointer))
        operations = self.bind(api, *args, **kwargs)
        for operation in operations:
            self.execute(operation)
        status = [getattr(operation.run, "status", None) for operation in operations]
        assert STATUS.saturated == any(one is not None and one.overflow for one in status)
        for memory, data in expected.items():
            read, written, undefined = (
                _marks(memory, len(data), [access for operation in operations for access in getattr(operation, kind)])
                for kind in ("reads", "writes", "undefined")
            )
            wrong = np.flatnonzero((np.frombuffer(data, np.uint8) != memory.data[: len(data)]) & ~undefined)
            assert wrong.size == 0, f"{wrong.size} bytes of {memory.name} differ, first at {wrong[0]}"
            assert np.array_equal(np.frombuffer(data.read, bool), read)
            assert np.array_equal(np.frombuffer(data.written, bool), written & ~undefined)
        self._refuses_shorter_tensors(api, expected, *args, **kwargs)
        return self._result(api, operations)

    def _refuses_shorter_tensors(self, api: str, touched: Mapping[Memory, Bytes], *args: Any, **kwargs: Any) -> None:
        """Check that every tensor needs the last byte that the instruction touches of it."""
        tensors = {(one.memory, one.base): one for one in _tensors((args, kwargs))}
        for (memory, base), tensor in tensors.items():
            marks = touched[memory].read, touched[memory].written
            end = max(mark.rfind(1, base, base + tensor.nbytes) for mark in marks)
            if end < 0:
                continue

            def shortened(value: Any, at: tuple[Memory, int] = (memory, base), size: int = end - base) -> Any:
                hit = isinstance(value, Tensor) and (value.memory, value.base) == at
                return replace(value, nbytes=size) if hit else value

            with pytest.raises(TikBoundsError):
                self.bind(api, *_map(args, shortened), options=BOUNDS, **_map(kwargs, shortened))

    def execute(self, op: MicroOp) -> None:
        """Run one micro-operation; strict: check and update the defined bits."""
        if self.strict and op.run_defined is None:
            for item in op.reads:
                for bits in item.region.views(item.operand.memory.defined):
                    assert bits.all(), f"{op.name} reads undefined bytes of {item.operand.name}"
        if op.run is not None:
            with np.errstate(all="ignore"):
                op.run()
        if not self.strict:
            return
        if op.run_defined is not None:
            op.run_defined()
            return
        for accesses, value in ((op.writes, 1), (op.undefined, 0)):
            for item in accesses:
                for bits in item.region.views(item.operand.memory.defined):
                    bits[...] = value


def three_tensors(dtype: str = "float16", strict: bool | None = None, count: int = 1024) -> tuple[Bench, Any, Any, Any]:
    """Return a bench with three tensors of ones in the Unified Buffer."""
    bench = Bench(strict)
    return (bench, *(bench.ub(np.ones(count, dtype), name) for name in ("x", "y", "z")))


def _marks(memory: Memory, size: int, accesses: Sequence[Access]) -> np.ndarray:
    """Return True for each of the first bytes of a memory that accesses touch."""
    marks = np.zeros(size, bool)
    for item in accesses:
        if item.operand.memory is memory:
            for view in item.region.views(marks.view(np.uint8)):
                view[...] = 1
    return marks


def _tensors(value: Any) -> list[Tensor]:
    """Return the tensors among values."""
    found: list[Tensor] = []
    _map(value, lambda item: found.append(item) if isinstance(item, Tensor) else None)
    return found


def _map(value: Any, function: Any) -> Any:
    """Return the value, or every value inside dicts and sequences, through a function."""
    if isinstance(value, dict):
        return {name: _map(item, function) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_map(item, function) for item in value]
    return function(value)


def _recorded(value: Any) -> Any:
    """Return an operand as a recorded program holds it."""
    if isinstance(value, Runtime):
        return value.value.view(run_time=True) if isinstance(value.value, Tensor) else value.variable
    return value.view(run_time=False) if isinstance(value, Tensor) else value


def _resolved(value: Any) -> Any:
    """Return an operand as the runtime hands it to an instruction."""
    if isinstance(value, Runtime) and isinstance(value.value, Tensor):
        return replace(value.value.operand(), static=False)
    value = value.value if isinstance(value, Runtime) else value
    return value.operand() if isinstance(value, Tensor) else value
