"""The memories a running kernel sees: private on-chip buffers of a core, and one global memory per GM tensor."""
from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import ir
from ..dtypes import is_float, limits, size_of
from ..errors import TikBoundsError, TikParamError
from ..isa.region import Memory
from ..isa.spec import CoreState
from ..soc import SocProfile
from .alloc import ON_CHIP

#: What strict mode leaves in bytes that nothing has written (D3c): 0xDEAD.
POISON_BYTES = np.array([0xDEAD], "<u2").view(np.uint8)
#: A GM tensor declared this large (a dynamic shape's upper bound) takes the size of what is fed.
UNBOUNDED_ELEMENTS = (1 << 31) - 1
_GM_BLOCK = 32


def poison(memory: Memory, start: int, end: int) -> None:
    """Fill bytes with the poison pattern and mark them undefined."""
    memory.data[start:end] = np.resize(POISON_BYTES, end - start)
    memory.defined[start:end] = 0


class CoreMemories:
    """On-chip buffers and registers of the core that executes the current block.

    Blocks run one after another on the same arrays; a block that waits at a barrier keeps its contents in a snapshot.

    Args:
        soc: gives the capacities.
        used: bytes in use per memory; only they are cleared and kept.
        strict: track defined bytes, poison the others.
    """

    def __init__(self, soc: SocProfile, used: Mapping[str, int], strict: bool) -> None:
        self.strict = strict
        self.used = dict(used)
        self.memories = {kind: Memory(kind, kind, soc.capacity(kind), strict) for kind in ON_CHIP}
        self.core = CoreState()

    def __getitem__(self, kind: str) -> Memory:
        return self.memories[kind]

    def reset(self) -> None:
        """State at the start of a block: zeros, or poison in strict mode."""
        for kind, size in self.used.items():
            self.clear(kind, 0, size)
        _assign(self.core, CoreState())

    def clear(self, kind: str, start: int, end: int) -> None:
        """Contents of a freshly defined tensor."""
        memory = self.memories[kind]
        if self.strict:
            poison(memory, start, end)
        else:
            memory.data[start:end] = 0

    def snapshot(self) -> tuple[dict[str, tuple], CoreState]:
        """Copy of all contents in use."""
        contents = {}
        for kind, size in self.used.items():
            memory = self.memories[kind]
            contents[kind] = memory.data[:size].copy(), memory.defined[:size].copy() if self.strict else None
        core = CoreState()
        _assign(core, self.core)
        return contents, core

    def restore(self, saved: tuple[dict[str, tuple], CoreState]) -> None:
        """Bring back a snapshot."""
        contents, core = saved
        for kind, (data, defined) in contents.items():
            memory = self.memories[kind]
            memory.data[:len(data)] = data
            if defined is not None:
                memory.defined[:len(defined)] = defined
        _assign(self.core, core)


def _assign(target: CoreState, source: CoreState) -> None:
    """Copy registers; arrays are copied into the array that prepared operations refer to."""
    for field in dataclasses.fields(CoreState):
        old, new = getattr(target, field.name), getattr(source, field.name)
        if isinstance(old, np.ndarray):
            old[...] = 0 if new is None else new
        else:
            setattr(target, field.name, new.copy() if isinstance(new, np.ndarray) else new)


def input_scalar(variable: ir.Variable, value: Any) -> int | float:
    """Check the value of an InputScalar.

    Raises:
        TikParamError: it is no number, not of the scalar's type, or out of its range.
    """
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "iufb":
        raise TikParamError(f"InputScalar {variable.name!r} takes one {variable.dtype} number, got {value!r}")
    number = array.reshape(-1)[0].item()
    if is_float(variable.dtype):
        with np.errstate(over="ignore"):
            return float(np.dtype(variable.dtype).type(number))
    if isinstance(number, float):
        raise TikParamError(f"InputScalar {variable.name!r} is of {variable.dtype}, got the float {number!r}")
    low, high = limits(variable.dtype)
    if not low <= number <= high:
        raise TikParamError(f"InputScalar {variable.name!r} of {variable.dtype} must be in [{low}, {high}], "
                            f"got {number}")
    return int(number)


class GlobalTensor:
    """One GM tensor and its memory.

    Args:
        info: its definition.
        shape: its extents as numbers.
        fed: initial contents; None leaves it undefined (zeros in default mode).
        strict: track defined bytes.
    """

    def __init__(self, info: ir.TensorInfo, shape: tuple[int, ...], fed: np.ndarray | None, strict: bool) -> None:
        self.info = info
        self.shape = shape
        if math.prod(shape) >= UNBOUNDED_ELEMENTS:
            if fed is None:
                raise TikParamError(f"GM tensor {info.name!r} is declared with {math.prod(shape)} elements, so its "
                                    "real contents must be given among the inputs (for an output too)", info.location)
            self.shape = fed.shape
        self.size = math.prod(self.shape) * size_of(info.dtype)
        self.memory = Memory("GM", info.name, -(-self.size // _GM_BLOCK) * _GM_BLOCK, strict)
        if fed is not None:
            self.memory.data[:self.size] = np.ascontiguousarray(fed).reshape(-1).view(np.uint8)
        if strict:
            if fed is not None or info.is_atomic_add:
                self.memory.defined[:self.size] = 1
            else:
                poison(self.memory, 0, len(self.memory.data))

    @property
    def array(self) -> np.ndarray:
        """The contents, as declared (a view)."""
        return self.memory.data[:self.size].view(self.info.dtype).reshape(self.shape)


def fed_array(info: ir.TensorInfo, shape: tuple[int, ...], value: Any) -> tuple[np.ndarray, str | None]:
    """An input checked against its GM tensor (D30a).

    Returns:
        The array, and a warning where only its shape differs.

    Raises:
        TikParamError: another dtype or number of elements.
    """
    array = np.asarray(value)
    if array.dtype != np.dtype(info.dtype):
        raise TikParamError(f"tensor {info.name!r} is of {info.dtype}, got an array of {array.dtype}")
    count = math.prod(shape)
    if array.shape == shape or count >= UNBOUNDED_ELEMENTS:
        return array, None
    if array.size != count:
        raise TikParamError(f"tensor {info.name!r} has shape {shape} ({count} elements), got an array of shape "
                            f"{array.shape} ({array.size} elements)")
    return array.reshape(shape), f"tensor {info.name!r} has shape {shape}; the array of shape {array.shape} is reshaped"


def element_range(address: int, itemsize: int, start: int, end: int, name: str) -> None:
    """Check one element access of the scalar unit.

    Raises:
        TikBoundsError: it lies outside the tensor.
    """
    if address < start or address + itemsize > end:
        raise TikBoundsError(f"element {(address - start) // itemsize} of tensor {name!r} is accessed, which has "
                             f"{(end - start) // itemsize} elements of {itemsize} bytes")
