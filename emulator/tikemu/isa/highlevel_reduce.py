"""Whole-tensor reductions: ``h_reduce_sum``, ``_max``, ``_min``, ``_argmax`` (vector.md 4, D20c).

Sums are adjacent-pair trees (D11b). For the largest and smallest element, float16 rows are folded to 16 columns, and
block reductions follow. float32 rows are folded to 8 columns, and the scalar unit finishes them: Ascend 910 reduces
float32 to sums only.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Callable

import numpy as np

from ..errors import TikAlignError
from ..program.dtypes import size_of
from ..program.nodes import as_integer
from . import numerics
from .access import BLOCK
from .call import Call
from .highlevel import LANE_BYTES, MAX_PITCH, elementwise
from .layout import array, axes, part, squeezed, steps_over, whole
from .lowering import MAX_REPEAT, Lowering, chunks, window
from .micro_op import MicroOp, Operand
from .params import Param, Tensor, describe
from .registry import instruction
from .vector import FLOATS


class AxisParam(Param):
    """``axis``: an int, or a list with one."""

    def check(self, value: Any, call: Call) -> None:
        rank = len(call.args["src"].shape)
        number = as_integer(_only(value))
        if number is None or not -rank <= number < rank:
            call.fail(f"axis must be one int in [{-rank}, {rank - 1}] for src of rank {rank}, got {describe(value)}")

    def resolve(self, value: Any, call: Call) -> int:
        return int(_only(value)) % len(call.args["src"].shape)


def _only(value: Any) -> Any:
    return value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value


def _check_shapes(call: Call) -> None:
    src, dst = call.args["src"].shape, call.args["dst"].shape
    if not all(isinstance(extent, (int, np.integer)) for extent in (*src, *dst)):
        return
    axis = int(_only(call.args["axis"])) % len(src)
    expected = (*src[:axis], *src[axis + 1 :])
    if squeezed(dst) != squeezed(expected):
        call.fail(f"dst must have the shape of src without axis {axis}, {tuple(expected) or (1,)}; got {tuple(dst)}")


def _entry(name: str, dtypes: Sequence[Any], doc: str) -> Any:
    return instruction(
        name,
        params=(Tensor("dst"), Tensor("src"), AxisParam("axis")),
        dtypes=dtypes,
        checker=_check_shapes,
        pipe="V",
        doc=doc,
    )


class Reduction:
    """A reduction, with the axes of extent 1 gone.

    Attributes:
        outer: axes before the reduced one: (extent, stride in elements), merged.
        length, pitch: the reduced axis: extent and stride in elements.
        inner: contiguous elements after it (1: the reduced axis is the last).
    """

    def __init__(self, call: Call, dst: Operand, src: Operand, axis: int) -> None:
        if whole(call, "dst", dst).region.overlaps(whole(call, "src", src).region):
            call.fail("dst and src must not overlap")
        self.length, self.pitch = src.shape[axis], src.strides[axis]
        after = part(src, 0, src.shape[axis + 1 :] or (1,), src.strides[axis + 1 :] or (1,))
        before = part(src, 0, src.shape[:axis] or (1,), src.strides[:axis] or (1,))
        inner = axes(after)
        if len(inner) > 1 or (inner and inner[0][1] != 1):
            call.fail(f"the axes of src behind axis {axis} must be contiguous")
        self.inner = inner[0][0] if inner else 1
        if self.inner == 1 and self.length > 1 and self.pitch != 1:
            call.fail(
                f"axis {axis} is the last one of src that is longer than 1, so its elements must "
                f"be contiguous; they are {self.pitch} elements apart"
            )
        result = axes(dst)
        if len(result) > 1 or (result and result[0][1] != 1):
            call.fail("dst must be contiguous")
        self.outer = axes(before)
        pitches = [axis[1] for axis in self.outer] + ([] if self.inner == 1 else [self.pitch])
        for pitch in pitches:
            if pitch * size_of(src.dtype) % BLOCK:
                call.fail(
                    f"rows of src must start at multiples of {BLOCK} bytes; they are "
                    f"{pitch * size_of(src.dtype)} bytes apart",
                    TikAlignError,
                )

    def rows(self, dst: Operand, src: Operand) -> list[tuple[Operand, Operand, int, int]]:
        """Return groups of evenly spaced rows: (first element of dst, first of src, rows, elements of src between
        rows).
        """
        *rest, (count, pitch) = self.outer or [(1, 0)]
        to, at = count * size_of(dst.dtype), size_of(src.dtype)
        places = enumerate(steps_over(rest, 1))
        return [(window(dst, number * to), window(src, offset * at), count, pitch) for number, (offset,) in places]


def _matrix(operand: Operand, rows: int, columns: int, pitch: int, offset: int = 0) -> Operand:
    return part(operand, offset, (rows, columns), (pitch, 1))


# ----------------------------------------------------------------------------------------------------------- sums
def _sum_rows(low: Lowering, dst: Operand, src: Operand, rows: int, columns: int, pitch: int) -> None:
    """Set dst[r] to the tree sum of row r: sums of repeats, then sums of these sums (D11a)."""
    lanes, size = LANE_BYTES // size_of(src.dtype), size_of(src.dtype)
    per_block = BLOCK // size
    while columns > lanes:
        parts = -(-columns // lanes)
        held = -(-parts // per_block) * per_block
        sums = low.scratch("UB", src.dtype, rows * held)
        for row in range(rows):
            for first, mask, repeats in chunks(columns, lanes):
                target = window(sums, (row * held + first // lanes) * size)
                low.emit("vcadd", mask, target, window(src, (row * pitch + first) * size), repeats, 1, 1, 8)
        src, columns, pitch = sums, parts, held
    blocks = pitch * size // BLOCK
    together = MAX_REPEAT if blocks <= MAX_PITCH else 1
    for row in range(0, rows, together):
        target, source = window(dst, row * size), window(src, row * pitch * size)
        step = blocks if together > 1 else 0
        low.emit("vcadd", columns, target, source, min(together, rows - row), 1, 1, step)


def _fold_axis(low: Lowering, dst: Operand, src: Operand, problem: Reduction, *, name: str) -> None:
    """Set dst to src[0] op src[1] op ... over rows of contiguous elements, adjacent pairs first."""
    length, pitch, inner = problem.length, problem.pitch, problem.inner
    per_block = BLOCK // size_of(src.dtype)
    while length > 1:
        half, odd = divmod(length, 2)
        left = half + odd
        held = inner if left == 1 else -(-inner // per_block) * per_block
        target = dst if left == 1 else low.scratch("UB", src.dtype, left * held)
        pair = [_matrix(src, half, inner, 2 * pitch, first) for first in (0, pitch)]
        elementwise(low, name, _matrix(target, half, inner, held), *pair)
        if odd:
            _copy(low, _matrix(target, 1, inner, held, half * held), _matrix(src, 1, inner, pitch, 2 * half * pitch))
        src, length, pitch = target, left, held
    if src is not dst:
        _copy(low, _matrix(dst, 1, inner, inner), _matrix(src, 1, inner, pitch))


def _copy(low: Lowering, dst: Operand, src: Operand) -> None:
    """Copy elements, by keeping the larger of x and x."""
    elementwise(low, "vmax", dst, src, src)


def _reduce(call: Call, a: Any, *, by_rows: Callable[..., None], along: Callable[..., None]) -> list[MicroOp]:
    """Reduce the last axis of several rows (``by_rows``), or another axis (``along``)."""
    _check_shapes(call)
    low = Lowering(call)
    problem = Reduction(call, a.dst, a.src, a.axis)
    for dst, src, rows, pitch in problem.rows(a.dst, a.src):
        if problem.inner == 1:
            by_rows(low, dst, src, rows, problem.length, pitch)
            continue
        for row in range(rows):
            target = window(dst, row * problem.inner * size_of(dst.dtype))
            source = window(src, row * pitch * size_of(src.dtype))
            along(low, target, source, problem)
    return low.ops


_entry("h_reduce_sum", FLOATS, "sum along an axis")(
    partial(_reduce, by_rows=_sum_rows, along=partial(_fold_axis, name="vadd"))
)


# ------------------------------------------------------------------------------------------------ largest, smallest
def _extreme_rows(low: Lowering, dst: Operand, src: Operand, rows: int, columns: int, pitch: int, *, name: str) -> None:
    """Set dst[r] to the largest (smallest) element of row r."""
    width = BLOCK // size_of(src.dtype)
    folded, columns, pitch = _fold_columns(low, f"v{name}", src, rows, columns, pitch, width)
    if src.dtype == "float16":
        _block_extremes(low, f"vcg{name}", dst, folded, rows, columns, pitch)
    else:
        low.append("scalar", _scalar_extremes(low.call, name, dst, _matrix(folded, rows, columns, pitch)))


def _fold_columns(
    low: Lowering, name: str, src: Operand, rows: int, columns: int, pitch: int, width: int
) -> tuple[Operand, int, int]:
    """Fold rows to one block: (operand, columns, elements between rows)."""
    blocks, tail = divmod(columns, width)
    if blocks == 0 or (blocks == 1 and tail == 0):
        return src, columns, pitch
    half = max(blocks // 2, 1)
    held = half * width
    folded = low.scratch("UB", src.dtype, rows * held)

    def fold(
        count: int, other: Operand, other_pitch: int, offset: int, first: Operand | None = None, first_pitch: int = held
    ) -> None:
        target = _matrix(folded, rows, count, held)
        left = target if first is None else _matrix(first, rows, count, first_pitch)
        elementwise(low, name, target, left, _matrix(other, rows, count, other_pitch, offset))

    second = half * width if blocks > 1 else 0  # a single block is only copied
    fold(half * width, src, pitch, second, src, pitch)
    if blocks > 1 and blocks % 2:
        fold(width, src, pitch, (blocks - 1) * width)
    if tail:
        fold(tail, src, pitch, blocks * width)
    blocks = half
    while blocks > 1:
        half = blocks // 2
        fold(half * width, folded, held, half * width)
        if blocks % 2:
            fold(width, folded, held, (blocks - 1) * width)
        blocks = half
    return folded, width, held


def _block_extremes(low: Lowering, name: str, dst: Operand, src: Operand, rows: int, columns: int, pitch: int) -> None:
    """Reduce rows of up to 16 float16 values, eight rows a repeat."""
    blocks = pitch // 16
    together = MAX_REPEAT if 8 * blocks <= MAX_PITCH else 1
    full, rest = divmod(rows, 8)
    for first, count, repeats in [(row * 8, 8, min(together, full - row)) for row in range(0, full, together)] + (
        [(full * 8, rest, 1)] if rest else []
    ):
        bits = sum(((1 << columns) - 1) << 16 * row for row in range(count))
        mask = [bits >> 64, bits & (1 << 64) - 1]
        step = 8 * blocks if repeats > 1 else 0
        low.emit(name, mask, window(dst, first * 2), window(src, first * pitch * 2), repeats, 1, blocks, step)


def _scalar_extremes(call: Call, name: str, dst: Operand, src: Operand) -> MicroOp:
    """Read the last columns of every row by the scalar unit. Keep the largest (smallest)."""
    values, (rows, columns) = array(src), src.shape
    target = array(part(dst, 0, (rows,), (1,)))
    choose = np.argmax if name == "max" else np.argmin

    def run() -> None:
        clean = np.nan_to_num(values)
        target[...] = np.take_along_axis(clean, choose(clean, axis=1)[:, None], axis=1)[:, 0]

    return _scalar_op(
        call, run, rows * columns, rows, whole(call, "src", src), whole(call, "dst", part(dst, 0, (rows,), (1,)))
    )


def _scalar_op(call: Call, run: Any, loads: int, stores: int, reads: Any, writes: Any) -> MicroOp:
    timing = call.soc.timing
    delivery = timing.ub_scalar_latency - timing.ub_scalar_read  # of the last value
    cycles = loads * (timing.ub_scalar_read + timing.scalar_cycles) + delivery + stores * timing.issue_cycles
    constants = ("ub_scalar_read", "ub_scalar_latency", "scalar_cycles", "issue_cycles")
    return call.operation(cycles, "", (reads,), (writes,), run, pipe="S", constants=constants)


for _name, _which in (("max", "largest"), ("min", "smallest")):
    _entry(f"h_reduce_{_name}", FLOATS, f"{_which} element along an axis")(
        partial(_reduce, by_rows=partial(_extreme_rows, name=_name), along=partial(_fold_axis, name=f"v{_name}"))
    )


# --------------------------------------------------------------------------------------------------------- argmax
def _argmax_rows(low: Lowering, dst: Operand, src: Operand, rows: int, columns: int, pitch: int) -> None:
    """Reduce each repeat to value and index, then take the best repeat of every row."""
    parts, lanes = -(-columns // 128), 128
    pairs = low.scratch("UB", "float16", rows * parts * 2)
    if parts == 1 and pitch // 16 <= MAX_PITCH:
        for first in range(0, rows, MAX_REPEAT):
            target, source = window(pairs, first * 4), window(src, first * pitch * 2)
            low.emit("vcmax", columns, target, source, min(MAX_REPEAT, rows - first), 1, 1, pitch // 16)
    else:
        for row in range(rows):
            for first, mask, repeats in chunks(columns, lanes):
                target = window(pairs, (row * parts + first // lanes) * 4)
                low.emit("vcmax", mask, target, window(src, (row * pitch + first) * 2), repeats, 1, 1, 8)
    found, written = part(pairs, 0, (rows, parts, 2), (parts * 2, 2, 1)), part(dst, 0, (rows,), (1,))
    view, indices = array(found), array(written)

    def run() -> None:
        best = np.argmax(numerics.widen(view[:, :, 0]), axis=1)
        indices[...] = best * lanes + view[np.arange(rows), best, 1]

    reads, writes = whole(low.call, "src", found), whole(low.call, "dst", written)
    low.append("scalar", _scalar_op(low.call, run, rows * parts * 2, rows, reads, writes))


def _argmax_axis(low: Lowering, dst: Operand, src: Operand, problem: Reduction) -> None:
    """Compare, select and maximum for one row after the other; one operation."""
    call, timing = low.call, low.call.soc.timing
    length, inner = problem.length, problem.inner
    matrix = part(src, 0, (length, inner), (problem.pitch, 1))
    result = part(dst, 0, (inner,), (1,))
    values, target = array(matrix), array(result)

    def run() -> None:
        target[...] = np.argmax(np.nan_to_num(numerics.widen(values), posinf=65504, neginf=-65504), axis=0)

    per_row = sum(timing.vector_cycles(kind, "float16") for kind in ("cmp", "sel", "simple"))
    operation = call.operation(
        -(-inner // 128) * length * per_row,
        "vector_latency",
        [whole(call, "src", matrix)],
        [whole(call, "dst", result)],
        run,
        constants=("vector_cmp", "vector_sel", "vector_simple"),
    )
    low.append("vector", operation)


_entry(
    "h_reduce_argmax",
    tuple((index, "float16") for index in ("int32", "uint32", "int16", "uint16")),
    "index of the largest element along an axis",
)(partial(_reduce, by_rows=_argmax_rows, along=_argmax_axis))
