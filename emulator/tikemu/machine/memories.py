"""The memories a running kernel sees: private on-chip buffers of a core, and one global memory per GM tensor."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from ..isa.call import CoreState
from ..isa.region import Memory
from ..program import ir
from ..program.dtypes import size_of
from ..soc import ON_CHIP, SocProfile

#: Strict mode leaves 0xDEAD in bytes that nothing has written (D3c).
POISON_BYTES = np.array([0xDEAD], "<u2").view(np.uint8)
#: A segment of global memory holds the size rounded up to blocks and one block more (``aclrtMalloc``).
_GM_BLOCK = 32


def poison(memory: Memory, start: int, end: int) -> None:
    """Fill bytes with the poison pattern and mark them undefined."""
    even = end - (end - start) % len(POISON_BYTES)
    memory.data[start:even].view(np.uint16)[:] = POISON_BYTES.view(np.uint16)
    memory.data[even:end] = POISON_BYTES[: end - even]
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
        """Give a freshly defined tensor its contents."""
        memory = self.memories[kind]
        if self.strict:
            poison(memory, start, end)
        else:
            memory.data[start:end] = 0

    def snapshot(self) -> tuple[dict[str, tuple], CoreState]:
        """Return a copy of all contents in use."""
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
            memory.data[: len(data)] = data
            if defined is not None:
                memory.defined[: len(defined)] = defined
        _assign(self.core, core)


def _assign(target: CoreState, source: CoreState) -> None:
    """Copy registers; arrays are copied into the array that prepared operations refer to."""
    for field in dataclasses.fields(CoreState):
        old, new = getattr(target, field.name), getattr(source, field.name)
        if isinstance(old, np.ndarray):
            old[...] = 0 if new is None else new
        else:
            setattr(target, field.name, new.copy() if isinstance(new, np.ndarray) else new)


class GlobalTensor:
    """One GM tensor and its memory.

    Args:
        info: its definition.
        shape: its extents as numbers.
        strict: track defined bytes.
    """

    def __init__(self, info: ir.TensorInfo, shape: tuple[int, ...], strict: bool) -> None:
        self.info, self.shape = info, shape
        self.size = math.prod(shape) * size_of(info.dtype)
        self.memory = Memory("GM", info.name, (-(-self.size // _GM_BLOCK) + 1) * _GM_BLOCK, strict)

    def fill(self, fed: np.ndarray | None) -> None:
        """Set the contents at the start of a run. Without ``fed`` they are zeros, in strict mode undefined (D3c)."""
        if fed is not None:
            self.memory.data[: self.size] = np.ascontiguousarray(fed).reshape(-1).view(np.uint8)
            self.memory.data[self.size :] = 0
        elif self.memory.defined is not None and not self.info.is_atomic_add:
            poison(self.memory, 0, len(self.memory.data))
            return
        else:
            self.memory.data[:] = 0
        if self.memory.defined is not None:
            self.memory.defined[: self.size] = 1
            self.memory.defined[self.size :] = 0

    @property
    def array(self) -> np.ndarray:
        """Return the contents, as declared (a view)."""
        return self.memory.data[: self.size].view(self.info.dtype).reshape(self.shape)
