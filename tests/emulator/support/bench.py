"""A small bench for single instructions: tensors in memories, one call at a time, through check and bind."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from tikemu import soc
from tikemu.isa import registry
from tikemu.isa.call import BindContext, CoreState
from tikemu.isa.micro_op import MicroOp, Operand
from tikemu.isa.region import Memory
from tikemu.program import ir

from tests.emulator.support.judgement import Judgement, fault

SCOPES = {
    "UB": "local.UB",
    "L1": "local.L1",
    "L0A": "local.L0A",
    "L0B": "local.L0B",
    "L0C": "local.L0C",
    "GM": "global",
}
SOC = soc.ASCEND_910A


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor (or a part of it) on the bench."""

    info: ir.TensorInfo
    memory: Memory
    base: int
    nbytes: int
    dtype: str
    offset: int
    shape: tuple[int, ...]

    def __getitem__(self, index: int | slice) -> Tensor:
        size = int(np.prod(self.shape))
        if isinstance(index, slice):
            start, stop, _ = index.indices(size)
        else:
            start, stop = index, index + 1
        return replace(self, offset=self.offset + start, shape=(stop - start,))

    def view(self, run_time_offset: bool) -> ir.View:
        offset = ir.Variable("offset", "int32", "scalar", 0) if run_time_offset else self.offset
        return ir.View(self.info, self.dtype, offset, self.shape, (1,))

    def operand(self) -> Operand:
        size = np.dtype(self.dtype).itemsize
        return Operand(
            self.memory,
            self.base + self.offset * size,
            self.base,
            self.base + self.nbytes,
            self.dtype,
            self.shape,
            (1,),
            self.info.name,
        )

    @property
    def values(self) -> np.ndarray:
        """A copy of the elements."""
        operand = self.operand()
        return self.memory.data[operand.address : operand.end].copy().view(self.dtype)[: int(np.prod(self.shape))]


class Runtime:
    """Marks an argument as known only at run time."""

    def __init__(self, value: Any, dtype: str = "int32") -> None:
        self.value, self.variable = value, ir.Variable("s", dtype, "scalar", 0)


@dataclass
class Bench:
    """Memories of one core and the calls made on them."""

    strict: bool = False
    memories: dict[str, Memory] = field(default_factory=dict)
    top: dict[str, int] = field(default_factory=dict)
    core: CoreState = field(default_factory=CoreState)
    uid: int = 0

    def tensor(self, values: np.ndarray, name: str = "", memory: str = "UB", align: int = 32) -> Tensor:
        """Place an array in a memory."""
        values = np.ascontiguousarray(values)
        target = self.memories.setdefault(
            memory, Memory(memory, memory, SOC.capacity(memory) if memory != "GM" else 1 << 20, self.strict)
        )
        base = -(-self.top.get(memory, 0) // align) * align
        self.top[memory] = base + values.nbytes
        target.data[base : base + values.nbytes] = values.reshape(-1).view(np.uint8)
        self.uid += 1
        info = ir.TensorInfo(
            name or f"t{self.uid}", values.dtype.name, values.shape, SCOPES[memory], self.uid, ir.Location("bench", 1)
        )
        return Tensor(info, target, base, values.nbytes, values.dtype.name, 0, (values.size,))

    def bind(self, api: str, *args: Any, **kwargs: Any) -> tuple[MicroOp, ...]:
        """Check a call as the front end does, then bind it as the machine does."""
        spec = registry.specs()[api]
        given = spec.arguments(*args, **kwargs)
        judgement = Judgement(self.strict)
        spec.check(_map(given, _recorded), SOC, judgement.options, judgement.report)
        static: list[bool] = []
        _map(given, lambda value: static.append(not isinstance(value, Runtime)))
        self.uid += 1
        context = BindContext(SOC, judgement.options, self.core, judgement.report, fault, all(static), self.uid)
        return spec.bind(context, _map(given, _resolved))

    def call(self, api: str, *args: Any, **kwargs: Any) -> Any:
        """Execute one instruction. Returns a compare-mask handle where the instruction does."""
        operations = self.bind(api, *args, **kwargs)
        with np.errstate(all="ignore"):
            for operation in operations:
                if operation.run is not None:
                    operation.run()
        return ir.CmpMask(self.uid) if registry.specs()[api].returns == "cmpmask" else operations


def _map(value: Any, function: Any) -> Any:
    """The value, or every value inside dicts and sequences, through a function."""
    if isinstance(value, dict):
        return {name: _map(item, function) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_map(item, function) for item in value]
    return function(value)


def _recorded(value: Any) -> Any:
    """An operand as a recorded program holds it."""
    if isinstance(value, Runtime):
        return value.value.view(run_time_offset=True) if isinstance(value.value, Tensor) else value.variable
    return value.view(run_time_offset=False) if isinstance(value, Tensor) else value


def _resolved(value: Any) -> Any:
    """An operand as the runtime hands it to an instruction."""
    value = value.value if isinstance(value, Runtime) else value
    return value.operand() if isinstance(value, Tensor) else value
