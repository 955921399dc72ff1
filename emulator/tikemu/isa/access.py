"""Checked byte windows on operands, shared by moves and the Cube."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable

import numpy as np

from ..errors import TikBoundsError
from ..program.dtypes import size_of
from .call import Call
from .micro_op import Access, Operand
from .region import Memory, Piece, Region

Steps = tuple[int, ...]
BLOCK = 32
FRACTAL = 512  # bytes of a 16 x 32-byte fractal in L0A, L0B and L1


def l0c_alignment(value: Any, call: Call) -> int:
    """Start address of an L0C operand: 1024 bytes for 32-bit types, 512 for float16 (core.md 2.2)."""
    return 256 * size_of(value.dtype)


def _allocated(operand: Operand) -> int:
    """Return the end of the memory that the allocation of a tensor takes.

    On chip the size is rounded up (D3b). In global memory it is the segment (D33a).
    """
    if operand.memory.kind == "GM":
        return len(operand.memory.data)
    unit = BLOCK if operand.memory.kind == "UB" else FRACTAL
    if operand.memory.kind == "L0C" and size_of(operand.dtype) == 4:
        unit = 2 * FRACTAL
    size = operand.end - operand.start
    return min(operand.start + -(-size // unit) * unit, len(operand.memory.data))


def access(call: Call, label: str, operand: Operand, *pieces: Piece) -> Access:
    """Return the bytes ``pieces`` (absolute addresses) of ``operand``.

    Raises:
        TikBoundsError: a byte lies outside the tensor. An access that ends in the padding of the tensor's allocation is
            questionable (warning; strict: error). With ``bounds="buffer"`` an access inside the memory is questionable
            too.
    """
    region = Region(operand.memory, pieces)
    if region.start < operand.start or region.end > operand.end:
        message = (
            f"{label} touches bytes {region.start - operand.start} to {region.end - operand.start} of tensor "
            f"{operand.name!r}, which has {operand.end - operand.start} bytes"
        )
        if operand.start <= region.start and region.end <= _allocated(operand):
            call.questionable("padding", f"{message}; only the padding of its allocation is touched", TikBoundsError)
        else:
            outside_tensor(call, operand, region.start, region.end, message)
    return Access(operand, region)


def outside_tensor(call: Call, operand: Operand, start: int, end: int, message: str) -> None:
    """Report an access that leaves its tensor: an error, or questionable if the user checks against the memory."""
    memory = operand.memory
    if call.options.bounds == "buffer" and memory.kind != "GM" and start >= 0 and end <= len(memory.data):
        call.questionable("bounds", f"{message}; it stays inside {memory.kind}", TikBoundsError)
    else:
        call.fail(message, TikBoundsError)


def bursts(call: Call, label: str, operand: Operand, count: int, length: int, pitch: int) -> Access:
    """Return ``count`` bursts of ``length`` bytes from the operand's address, ``pitch`` bytes start to start."""
    return access(call, label, operand, (operand.address, count, pitch, 1, 0, length))


def defined_view(memory: Memory, address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    """Return the "defined" bits of bytes of a memory (strict mode)."""
    return np.ndarray(shape, np.uint8, memory.defined, address, strides)


def marks_of(operand: Operand) -> Operand | None:
    """Return the operand over "defined" marks in place of data. None if no marks are kept."""
    memory = operand.memory
    if memory.defined is None:
        return None
    marks = Memory(memory.kind, memory.name, 0, False)
    marks.place(memory.defined, None)
    return replace(operand, memory=marks)


def copiers(
    dst: Memory, to: int, src: Memory, at: int, shape: Steps, to_steps: Steps, steps: Steps
) -> tuple[Callable[[], None], Callable[[], None] | None]:
    """Return closures that copy strided bytes, and their "defined" bits if both memories have them."""
    run = copier(dst.view("uint8", to, shape, to_steps), src.view("uint8", at, shape, steps))
    if dst.defined is None or src.defined is None:
        return run, None
    return run, copier(defined_view(dst, to, shape, to_steps), defined_view(src, at, shape, steps))


def copier(dst: np.ndarray, src: np.ndarray) -> Callable[[], None]:
    """Return a closure that copies one prepared view onto another."""

    def copy() -> None:
        dst[...] = src

    return copy
