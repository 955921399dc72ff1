"""One core without a program: shaped tensors in all memories, instructions bound and executed with defined bits."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
from tikemu import soc
from tikemu.errors import TikWarning
from tikemu.isa import registry
from tikemu.isa.call import BindContext, CoreState
from tikemu.isa.micro_op import MicroOp, Operand
from tikemu.isa.region import Memory
from tikemu.program import ir

from tests.emulator.support.judgement import Judgement, fault

SOC = soc.ASCEND_910A
SCOPES = {
    "GM": "global",
    "UB": "local.UB",
    "L1": "local.L1",
    "L0A": "local.L0A",
    "L0B": "local.L0B",
    "L0C": "local.L0C",
}
ALIGNMENT = {"UB": 32, "L1": 512, "L0A": 512, "L0B": 512, "L0C": 1024}


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in elements."""
    return tuple(int(np.prod(shape[axis + 1 :])) for axis in range(len(shape)))


def recorded(dtype: str, memory: str, name: str = "t", shape=(4096,)) -> ir.View:
    """A tensor as the front end records it, for checks at the call."""
    info = ir.TensorInfo(name, dtype, tuple(shape), SCOPES[memory], 0, ir.Location("user.py", 1))
    return ir.View(info, dtype, 0, tuple(shape), row_major(tuple(shape)))


def check(api: str, *args, strict: bool = False, **kwargs) -> list[str]:
    """The checks of a recorded call; returns the warnings."""
    spec = registry.specs()[api]
    judgement = Judgement(strict)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TikWarning)
        spec.check(spec.arguments(*args, **kwargs), SOC, judgement.options, judgement.report)
    return judgement.said


def touched(region) -> np.ndarray:
    """Numbers of the bytes of a region."""
    return np.unique(
        np.concatenate(
            [
                (base + np.arange(n0)[:, None, None] * s0 + np.arange(n1)[:, None] * s1 + np.arange(width)).reshape(-1)
                for base, n0, s0, n1, s1, width in region.pieces
            ]
        )
    )


class CoreBench:
    """Memories of one core and global tensors; ``call`` binds and executes an instruction as the machine does."""

    def __init__(self, strict: bool = False) -> None:
        self.strict = strict
        self.memories = {kind: Memory(kind, kind, SOC.capacity(kind), strict) for kind in ALIGNMENT}
        self.tops = dict.fromkeys(ALIGNMENT, 0)
        self.core = CoreState()

    def tensor(self, kind: str, dtype: str, shape, values=None, name: str = "t") -> Operand:
        """Allocate; ``values`` are stored and count as defined."""
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if kind == "GM":
            memory, start, end = Memory("GM", name, -(-size // 32) * 32, self.strict), 0, size
        else:
            memory, start, unit = self.memories[kind], self.tops[kind], ALIGNMENT[kind]
            self.tops[kind] = start + -(-size // unit) * unit
            end = start + size
            assert end <= SOC.capacity(kind), f"{kind} of the bench is full"
        operand = Operand(memory, start, start, end, dtype, shape, row_major(shape), name)
        if values is not None:
            self.store(operand, values)
        return operand

    def store(self, operand: Operand, values) -> None:
        self._array(operand)[...] = np.asarray(values, operand.dtype).reshape(operand.shape)
        if self.strict:
            self._bits(operand)[...] = 1

    def read(self, operand: Operand) -> np.ndarray:
        return self._array(operand).copy()

    def defined(self, operand: Operand) -> np.ndarray:
        """Per element: all bytes are defined."""
        return self._bits(operand).all(axis=-1)

    @staticmethod
    def _byte_strides(operand: Operand) -> tuple[int, ...]:
        return tuple(stride * np.dtype(operand.dtype).itemsize for stride in operand.strides)

    def _array(self, operand: Operand) -> np.ndarray:
        return operand.memory.view(operand.dtype, operand.address, operand.shape, self._byte_strides(operand))

    def _bits(self, operand: Operand) -> np.ndarray:
        return np.ndarray(
            (*operand.shape, np.dtype(operand.dtype).itemsize),
            np.uint8,
            operand.memory.defined,
            operand.address,
            (*self._byte_strides(operand), 1),
        )

    @staticmethod
    def at(operand: Operand, offset: int, shape=None, strides=None) -> Operand:
        """A window that starts ``offset`` elements into an operand; by default flat, up to its end."""
        shape = (int(np.prod(operand.shape)) - offset,) if shape is None else tuple(shape)
        return replace(
            operand,
            address=operand.address + offset * np.dtype(operand.dtype).itemsize,
            shape=shape,
            strides=strides or row_major(shape),
        )

    def bind(self, api: str, *args, **kwargs) -> tuple[MicroOp, ...]:
        spec = registry.specs()[api]
        judgement = Judgement(self.strict)
        context = BindContext(SOC, judgement.options, self.core, judgement.report, fault)
        return spec.bind(context, spec.arguments(*args, **kwargs))

    def call(self, api: str, *args, **kwargs) -> tuple[MicroOp, ...]:
        ops = self.bind(api, *args, **kwargs)
        for op in ops:
            self.execute(op)
        return ops

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
