"""Draw what random programs are made of: choices, tensors and scalars."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from tikemu import tik

BLOCKS = 64  # of 32 bytes in every on-chip tensor
DTYPES = ("float16", "float32", "int32", "int16")


def elements(dtype: str) -> int:
    """Return the number of elements of an on-chip tensor."""
    return BLOCKS * 32 // np.dtype(dtype).itemsize


class Values:
    """Random decisions from a seed, and what a statement may use.

    Tensors are ``BLOCKS`` blocks long. Offsets are drawn so that all accesses stay inside; run-time offsets are a loop
    variable or Scalar modulo what is left.

    Attributes:
        inputs, outputs: global tensors by dtype, ``blocks`` times as long as an on-chip tensor.
        n: an input scalar from 0 to 3.
        tensors, floats: of the Unified Buffer, and Scalars, each with its dtype.
        integers: run-time integers that are not negative.
        block: number of the core.
    """

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.tik = tik.Tik()
        self.blocks = int(self.rng.choice([1, 1, 2, 3]))
        self.inputs = {dtype: self._global(dtype, f"in_{dtype}") for dtype in DTYPES}
        self.outputs = {dtype: self._global(dtype, f"out_{dtype}") for dtype in DTYPES}
        self.n = self.tik.InputScalar("int32", "n")
        self.tensors: list[tuple[str, Any]] = []
        self.integers: list[Any] = []
        self.floats: list[tuple[str, Any]] = []
        self.names = 0
        self.block: Any = 0

    def chance(self, share: float) -> bool:
        """Return True in the given share of all calls."""
        return bool(self.rng.random() < share)

    def pick(self, options: Any) -> Any:
        """Return an element of a sequence."""
        return options[int(self.rng.integers(len(options)))]

    def upto(self, low: int, high: int) -> int:
        """Return an integer from ``low`` to ``high``."""
        return int(self.rng.integers(low, high + 1))

    def _global(self, dtype: str, name: str) -> Any:
        """Return a tensor in global memory."""
        return self.tik.Tensor(dtype, (self.blocks * elements(dtype),), tik.scope_gm, name)

    def name(self, prefix: str) -> str:
        """Return a name that nothing else has."""
        self.names += 1
        return f"{prefix}{self.names}"

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Forget at the end what is defined inside."""
        known = self.tensors, self.integers, self.floats
        lengths = [len(entries) for entries in known]
        yield
        for entries, length in zip(known, lengths):
            del entries[length:]

    def integer(self) -> Any:
        """Return a run-time integer from 0 to 30, or a number."""
        choice = self.upto(0, 3)
        if choice == 0 or not self.integers:
            return self.upto(0, 30)
        value = self.pick(self.integers)
        return value % 31 if choice == 1 else (value * self.upto(1, 3) + self.upto(0, 5)) % 31

    def offset(self, dtype: str, room: int) -> Any:
        """Return an offset in elements of at most ``room`` blocks."""
        per_block = 32 // np.dtype(dtype).itemsize
        value = self.integer()
        if isinstance(value, int):
            return min(value, room) * per_block
        return (value % (room + 1)) * per_block

    def tensor(self, dtype: str) -> Any:
        """Return a tensor of ``dtype``."""
        return self.pick([tensor for kind, tensor in self.tensors if kind == dtype])

    def operand(self, dtype: str, span: int, other_than: Any = None) -> Any:
        """Return a part of a tensor followed by at least ``span`` blocks. Return None if there is none."""
        found = [tensor for kind, tensor in self.tensors if kind == dtype and tensor is not other_than]
        if not found:
            return None
        return self.pick(found)[self.offset(dtype, BLOCKS - span) :]

    def whole(self, part: Any) -> Any:
        """Return the tensor that a part belongs to."""
        return next(tensor for _, tensor in self.tensors if tensor.name == part.name)
