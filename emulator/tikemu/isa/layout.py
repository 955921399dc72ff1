"""Shapes of whole-tensor operands: equal shapes, strided slices, contiguous runs (vector.md 4.2, D20a)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import TikAlignError
from ..program import ir
from ..program.dtypes import size_of
from .access import BLOCK, access
from .call import Call
from .micro_op import Access, Operand
from .params import Number, Tensor, is_tensor
from .region import Piece

Axis = tuple[int, ...]  # extent, then the stride of every operand in elements


def squeezed(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape without axes of extent 1."""
    return tuple(extent for extent in shape if extent != 1)


def require_equal_shapes(call: Call, names: Sequence[str]) -> None:
    """Check that tensors among ``names`` agree in shape, except for axes of extent 1."""
    shapes = {}
    for name in names:
        value = call.args.get(name)
        shape = getattr(value, "shape", None)
        if shape is not None and all(ir.is_immediate(extent) for extent in shape):
            shapes[name] = tuple(int(extent) for extent in shape)
    if len({squeezed(shape) for shape in shapes.values()}) > 1:
        listing = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        call.fail(f"operands must have equal shapes, axes of extent 1 apart; got {listing}")


def axes(*operands: Operand) -> list[Axis]:
    """Return the common axes of operands of equal shape.

    Axes of extent 1 are left out. Neighbours are merged if every operand allows it.
    """
    strides = [[step for extent, step in zip(item.shape, item.strides) if extent != 1] for item in operands]
    merged: list[Axis] = []
    for extent, *steps in zip(squeezed(operands[0].shape), *strides):
        if merged and all(outer == extent * step for outer, step in zip(merged[-1][1:], steps)):
            extent *= merged.pop()[0]
        merged.append((extent, *steps))
    return merged


def steps_over(outer: Sequence[Axis], operands: int) -> Iterator[tuple[int, ...]]:
    """Yield the element offsets of every operand for every index of the ``outer`` axes."""
    for index in itertools.product(*(range(axis[0]) for axis in outer)):
        yield tuple(sum(i * axis[1 + item] for i, axis in zip(index, outer)) for item in range(operands))


@dataclass(frozen=True)
class Rows:
    """``count`` rows of ``elements`` contiguous elements, at byte ``offsets`` and ``pitches`` of each operand."""

    elements: int
    count: int
    offsets: tuple[int, ...]
    pitches: tuple[int, ...]


def rows(*operands: Operand) -> list[Rows]:
    """Return operands of equal shape as groups of evenly spaced rows. A contiguous region is one row."""
    common = axes(*operands)
    sizes = [size_of(item.dtype) for item in operands]
    contiguous = bool(common) and all(step == 1 for step in common[-1][1:])
    elements = common.pop()[0] if contiguous else 1
    count, *steps = common.pop() if common else (1, *[0] * len(operands))
    pitches = tuple(step * size for step, size in zip(steps, sizes))
    return [
        Rows(elements, count, tuple(offset * size for offset, size in zip(offsets, sizes)), pitches)
        for offsets in steps_over(common, len(operands))
    ]


def require_aligned_rows(call: Call, group: Rows, operands: Sequence[tuple[str, Operand]]) -> None:
    """Require rows of vector operands to start at multiples of 32 bytes."""
    for (name, operand), offset, pitch in zip(operands, group.offsets, group.pitches):
        if (operand.address + offset) % BLOCK or (group.count > 1 and pitch % BLOCK):
            call.fail(
                f"rows of {name} (tensor {operand.name!r}) must start at multiples of {BLOCK} "
                f"bytes; they start at byte {operand.address + offset}, {pitch} bytes apart",
                TikAlignError,
            )


def pieces(operand: Operand) -> tuple[Piece, ...]:
    """Return the bytes of a (strided) operand."""
    size = size_of(operand.dtype)
    common = axes(operand)
    width = common.pop()[0] * size if common and common[-1][1] == 1 else size
    levels = [(extent, step * size) for extent, step in common[-2:]]
    levels = [(1, 0)] * (2 - len(levels)) + levels
    (n0, s0), (n1, s1) = levels
    return tuple((operand.address + offset * size, n0, s0, n1, s1, width) for (offset,) in steps_over(common[:-2], 1))


def whole(call: Call, label: str, operand: Operand) -> Access:
    """Return all elements of an operand."""
    return access(call, label, operand, *pieces(operand))


def array(operand: Operand) -> np.ndarray:
    """Return a view of the elements, float16 as bits."""
    size = size_of(operand.dtype)
    return operand.memory.view(
        "uint16" if operand.dtype == "float16" else operand.dtype,
        operand.address,
        operand.shape,
        tuple(step * size for step in operand.strides),
    )


def part(operand: Operand, offset: int, shape: Sequence[int], strides: Sequence[int]) -> Operand:
    """Return a window ``offset`` elements into an operand."""
    return replace(
        operand, address=operand.address + offset * size_of(operand.dtype), shape=tuple(shape), strides=tuple(strides)
    )


def require_exact_aliasing(call: Call, dst: Operand, sources: Sequence[tuple[str, Operand]]) -> None:
    """Refuse a source that overlaps the destination in part. It may be the destination itself."""
    written = whole(call, "dst", dst).region
    for name, source in sources:
        if source.memory is not dst.memory or not written.overlaps(whole(call, name, source).region):
            continue
        if (source.address, size_of(source.dtype), axes(source)) != (dst.address, size_of(dst.dtype), axes(dst)):
            call.fail(f"dst and {name} overlap in part; {name} may be dst itself or apart from it")


class TensorOrNumber(Tensor):
    """Check a Unified Buffer tensor like another, or a number or Scalar of its dtype."""

    def __init__(self, name: str, like: str) -> None:
        super().__init__(name, like=like)
        self.number = Number(name, like=like)

    def check(self, value: Any, call: Call) -> None:
        if is_tensor(value):
            super().check(value, call)
        else:
            self.number.check(value, call)

    def resolve(self, value: Any, call: Call) -> Any:
        return super().resolve(value, call) if isinstance(value, Operand) else value
