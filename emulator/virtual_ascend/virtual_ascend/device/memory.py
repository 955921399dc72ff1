"""The card's memory, which this process shares with the program's (runtime/device.cc)."""

from __future__ import annotations

import math
import mmap
from typing import NamedTuple

import numpy as np

from .errors import KernelError

PAGE = 64 << 10
FRESH = 0xFF  # NaN in every float type, -1 in integers
NOWHERE = (1 << 64) - 1


class Address(NamedTuple):
    """An argument of a kernel: its place, and the bytes from there to the end of its block (0: it is in no block)."""

    offset: int
    room: int


class Memory:
    """Tensors at addresses. A page holds NaN until something is written to it."""

    def __init__(self, file: int, size: int, pages: int) -> None:
        contents = np.frombuffer(mmap.mmap(file, size + pages), np.uint8)
        self._contents, self._touched = contents[:size], contents[size:]

    def view(self, address: Address, dtype: np.dtype, shape: tuple[int, ...], name: str) -> np.ndarray:
        """Return the tensor there.

        Raises:
            KernelError: the tensor does not lie in one block of memory; the message begins with ``name``.
        """
        size = math.prod(shape) * dtype.itemsize
        if address.offset == NOWHERE:
            raise KernelError(f"{name}: its address is not one of the card")
        if size > address.room:
            where = (
                f"at offset {address.offset} the block has {address.room} bytes" if address.room else "there is none"
            )
            raise KernelError(f"{name}: {size} bytes are outside the memory that was allocated: {where}")
        first, end = address.offset // PAGE, -(-(address.offset + size) // PAGE)
        if not self._touched[first:end].all():
            for page in (np.flatnonzero(self._touched[first:end] == 0) + first).tolist():
                self._contents[page * PAGE : (page + 1) * PAGE] = FRESH
                self._touched[page] = 1
        return self._contents[address.offset : address.offset + size].view(dtype).reshape(shape)
