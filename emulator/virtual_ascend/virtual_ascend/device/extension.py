"""Extensions of AI CPU kernels: shapes that a node definition leaves open, as graphengine's fwk_adpt_struct.h has them.

Entries follow each other. Each has its kind, its length, and for each tensor a type and eight sizes. The sizes that
count end at a mark.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from .memory import Address, Memory

INPUTS, OUTPUTS = 1, 2
_HEAD = struct.Struct("=iI")
_TENSOR = np.dtype([("type", "<i4"), ("sizes", "<i8", 8)])
_END = np.iinfo(np.int64).min


class Extension:
    """The shapes of the inputs and outputs of one launch, on the card."""

    def __init__(self, memory: Memory, address: Address, size: int) -> None:
        self._tensors: dict[int, np.ndarray] = {}
        if size:
            contents = memory.view(address, np.dtype(np.uint8), (size,), "the extension of an AI CPU kernel")
            place = 0
            while place + _HEAD.size <= len(contents):
                kind, length = _HEAD.unpack(contents[place : place + _HEAD.size].tobytes())
                place += _HEAD.size
                if kind in (INPUTS, OUTPUTS):
                    self._tensors[kind] = contents[place : place + length].view(_TENSOR)
                place += length

    def shapes(self, kind: int) -> list[list[int]]:
        """Return the shapes of all tensors of a kind. Without such an entry there are none."""
        tensors = self._tensors.get(kind, np.zeros(0, _TENSOR))
        found = [sizes.tolist() for sizes in tensors["sizes"]]
        return [sizes[: sizes.index(_END)] if _END in sizes else sizes for sizes in found]

    def answer(self, shapes: Sequence[Sequence[int]]) -> None:
        """Say which shapes the outputs have got."""
        for tensor, shape in zip(self._tensors.get(OUTPUTS, ()), shapes):
            tensor["sizes"][: len(shape)] = shape
            tensor["sizes"][len(shape) : len(shape) + 1] = _END
