"""Checked byte windows on operands, shared by moves and the Cube."""
from __future__ import annotations

from typing import Callable

import numpy as np

from ..dtypes import size_of
from ..errors import TikBoundsError
from .region import Memory, Piece, Region
from .spec import Access, Call, Operand

BLOCK = 32
FRACTAL = 512  # bytes of a 16 x 32-byte fractal in L0A, L0B and L1


def l0c_alignment(value, call: Call) -> int:
    """Start address of an L0C operand: 1024 bytes for 32-bit types, 512 for float16 (core.md 2.2)."""
    return 256 * size_of(value.dtype)


def access(call: Call, label: str, operand: Operand, *pieces: Piece) -> Access:
    """The bytes ``pieces`` (absolute addresses) of ``operand``.

    Raises:
        TikBoundsError: a byte lies outside the tensor. Global memory is allocated in blocks of 32 bytes: an access that
            ends in the last, partly used block of a GM tensor is questionable (warning; strict: error).
    """
    region = Region(operand.memory, pieces)
    if region.start < operand.start or region.end > operand.end:
        size = operand.end - operand.start
        message = (f"{label} touches bytes {region.start - operand.start} to {region.end - operand.start} of tensor "
                   f"{operand.name!r}, which has {size} bytes")
        padded = min(operand.start - (-size // BLOCK) * BLOCK, len(operand.memory.data))
        if operand.memory.kind == "GM" and operand.start <= region.start and region.end <= padded:
            call.questionable(f"{message}; only the padding of its last 32-byte block is touched", TikBoundsError)
        else:
            call.fail(TikBoundsError, message)
    return Access(operand, region)


def bursts(call: Call, label: str, operand: Operand, count: int, length: int, pitch: int) -> Access:
    """``count`` bursts of ``length`` bytes, ``pitch`` bytes start to start, from the operand's address."""
    return access(call, label, operand, (operand.address, count, pitch, 1, 0, length))


def defined_view(memory: Memory, address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    """The "defined" bits of bytes of a memory (strict mode)."""
    return np.ndarray(shape, np.uint8, memory.defined, address, strides)


def copier(dst: np.ndarray, src: np.ndarray) -> Callable[[], None]:
    """A closure that copies one prepared view onto another."""

    def copy() -> None:
        dst[...] = src

    return copy
