"""Transposes of 16 x 16 blocks (vector.md 2.10, 3.7)."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any, Callable

import numpy as np

from .access import access, marks_of
from .bank_conflicts import Stream, conflict_cycles
from .call import Call
from .micro_op import Access, MicroOp, Operand
from .params import Flag, Tensor, TensorList, repeat, stride
from .region import Piece
from .registry import instruction
from .vector_engine import BLOCK, Arithmetic, Walk, element_wise, executor
from .vector_mask import leading

B16 = ("int16", "uint16", "float16")
B8 = ("int8", "uint8")
TILE = 512  # bytes of a 16 x 16 matrix of 16-bit elements


# ------------------------------------------------------------------------------------------- contiguous tiles
def _transposed(x: np.ndarray) -> np.ndarray:
    return x.reshape(*x.shape[:-1], 16, 16).swapaxes(-1, -2).reshape(x.shape)


def _transpose_tiles(call: Call, dst: Operand, src: Operand, repeats: int, dst_stride: int, src_stride: int) -> Any:
    def walks(dst: Operand, src: Operand) -> tuple[Walk, Walk]:
        places = (("dst", dst, dst_stride), ("src", src, src_stride))
        target, source = (Walk(label, it, leading(256), repeats, TILE * step) for label, it, step in places)
        return target, source

    target, source = walks(dst, src)
    arithmetic = Arithmetic(_transposed, raw=True)
    result = element_wise(call, arithmetic, target, (source,), mask=None)
    marked = marks_of(dst), marks_of(src)
    if marked[0] is not None and marked[1] is not None:
        to, origin = walks(marked[0], marked[1])
        result.run_defined = executor(arithmetic, to, (origin,), target.revisits or target.meets(source))
    return result


@instruction(
    "vec_trans",
    params=(
        Tensor("dst"),
        Tensor("src"),
        repeat(high=4095),
        stride("dst_rep_stride", 4095),
        stride("src_rep_stride", 4095),
    ),
    dtypes=B16,
    pipe="V",
    cost="transpose_b16",
)
def vec_trans(call: Call, a: Any) -> Any:
    """Transpose 16 x 16 matrices of 16-bit elements; strides count 512 bytes"""
    return _transpose_tiles(call, a.dst, a.src, a.repeat_times, a.dst_rep_stride, a.src_rep_stride)


@instruction("vtranspose", params=(Tensor("dst"), Tensor("src")), dtypes=B16, pipe="V", cost="transpose_b16")
def vtranspose(call: Call, a: Any) -> Any:
    """Transpose one 16 x 16 matrix of 16-bit elements"""
    return _transpose_tiles(call, a.dst, a.src, 1, 0, 0)


# ------------------------------------------------------------------------------------------- sixteen lists
class _Blocks:
    """Sixteen blocks of 32 bytes per repeat, at arbitrary places: ``addresses`` + repeat * ``pitch``."""

    def __init__(self, label: str, operands: Sequence[Operand], repeats: int, pitch: int, half: int) -> None:
        # With one repeat the stride is applied to the start (documented twice, D19a).
        first = pitch if repeats == 1 else 0
        self.label, self.operands, self.repeats, self.pitch = label, operands, repeats, pitch
        self.itemsize = np.dtype(operands[0].dtype).itemsize
        self.half = 16 * half if self.itemsize == 1 else 0
        self.width = 16 * self.itemsize
        self.addresses = np.array([operand.address for operand in operands]) + first
        steps = np.diff(self.addresses)
        self.step = int(steps[0]) if (steps == steps[0]).all() else None

    def marks(self) -> _Blocks:
        """Return the same blocks of the "defined" marks."""
        result = copy(self)
        result.operands = [marks_of(operand) for operand in self.operands]
        return result

    def accesses(self, call: Call) -> tuple[Access, ...]:
        """Return the footprints: one if the blocks are evenly spaced in one tensor, else one per block."""
        first = self.operands[0]
        together = (
            self.step is not None
            and self.step > 0
            and all(operand.memory is first.memory and operand.start == first.start for operand in self.operands)
        )
        if together:
            return (access(call, self.label, first, self._piece(0, 16, self.step)),)
        return tuple(
            access(call, f"{self.label}[{i}]", operand, self._piece(i, 1, 0)) for i, operand in enumerate(self.operands)
        )

    def _piece(self, block: int, count: int, step: int) -> Piece:
        return (int(self.addresses[block]) + self.half, self.repeats, self.pitch, count, step, self.width)

    def stream(self) -> Stream | None:
        """Return the blocks for the bank model, None if they are not evenly spaced."""
        if self.step is None or self.step < 0:
            return None
        return Stream(int(self.addresses[0]), 16, self.step // BLOCK, self.pitch // BLOCK)

    def numbers(self) -> np.ndarray:
        """Block numbers, shape (repeats, 16)."""
        return (self.addresses + np.arange(self.repeats)[:, None] * self.pitch) // BLOCK

    def view(self) -> np.ndarray | None:
        """Return the elements as (repeats, 16 blocks, 16), None without an even spacing of blocks."""
        if self.step is None:
            return None
        return self.operands[0].memory.view(
            f"uint{8 * self.itemsize}",
            int(self.addresses[0]) + self.half,
            (self.repeats, 16, 16),
            (self.pitch, self.step, self.itemsize),
        )

    def elements(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the memory as elements, and the index of each, shape (repeats, 16 blocks, 16)."""
        data = self.operands[0].memory.data
        starts = self.numbers() * BLOCK + self.half
        return data.view(f"uint{8 * self.itemsize}"), starts[..., None] // self.itemsize + np.arange(16)


def _order(call: Call, dst: _Blocks, src: _Blocks) -> bool:
    """Check the rules of overlap; return True if the repeats must run one by one."""
    written, read = dst.numbers(), src.numbers()
    ordered = np.unique(written).size < written.size
    if dst.operands[0].memory is not src.operands[0].memory or not np.isin(written, read).any():
        return ordered
    if dst.repeats == 1:
        if (written != read).any():
            call.questionable(
                "overlap", "dst_list and src_list overlap partly; only the same blocks in the same order are supported"
            )
        return ordered
    writer: dict[int, int] = {}
    for repeat_, blocks in enumerate(written.tolist()):
        for block in blocks:
            writer.setdefault(block, repeat_)
    if any(writer.get(block, repeat_) < repeat_ for repeat_, blocks in enumerate(read.tolist()) for block in blocks):
        call.questionable(
            "overlap",
            "a repeat writes blocks of dst_list that a later repeat reads from src_list; the hardware "
            "does not order them",
        )
        return True
    return ordered


def _mover(dst: _Blocks, src: _Blocks, ordered: bool) -> Callable[[], None]:
    target, source = dst.view(), src.view()
    if target is not None and source is not None:
        flipped = source.swapaxes(1, 2)

        def run() -> None:
            target[...] = flipped

        def run_in_order() -> None:
            for i in range(dst.repeats):
                target[i] = flipped[i]
    else:
        (data, to), (origin, at) = dst.elements(), src.elements()
        at = at.swapaxes(1, 2)

        def run() -> None:
            data[to] = origin[at]

        def run_in_order() -> None:
            for i in range(dst.repeats):
                data[to[i]] = origin[at[i]]

    return run_in_order if ordered else run


def _transpose_lists(call: Call, a: Any) -> MicroOp:
    dst = _Blocks("dst_list", a.dst_list, a.repeat_times, BLOCK * a.dst_rep_stride, int(a.dst_high_half))
    src = _Blocks("src_list", a.src_list, a.repeat_times, BLOCK * a.src_rep_stride, int(a.src_high_half))
    ordered = _order(call, dst, src)
    timing = call.soc.timing
    cost = "transpose_b16" if dst.itemsize == 2 else "transpose_b8"
    reads, writes = src.accesses(call), dst.accesses(call)
    streams = (dst.stream(), src.stream())
    cycles = a.repeat_times * timing.vector_cycles(cost, dst.operands[0].dtype)
    if None not in streams:
        cycles = conflict_cycles(
            timing.vector_cycles(cost, dst.operands[0].dtype), a.repeat_times, streams[0], streams[1:]
        )
    run, run_defined = _mover(dst, src, ordered), None
    if dst.operands[0].memory.defined is not None:
        run_defined = _mover(dst.marks(), src.marks(), ordered)
    constants = (f"vector_{cost}",)
    return call.operation(cycles, "vector_latency", reads, writes, run, run_defined=run_defined, constants=constants)


instruction(
    "vec_trans_scatter",
    "vnchwconv",
    params=(
        Flag("dst_high_half"),
        Flag("src_high_half"),
        TensorList("dst_list", 16),
        TensorList("src_list", 16, like="dst_list"),
        repeat(low=0),
        stride("dst_rep_stride", 65535),
        stride("src_rep_stride", 65535),
    ),
    dtypes=(*B16, *B8),
    pipe="V",
    cost="transpose_b16",
    doc="transpose 16 x 16 elements between 16 source and 16 destination blocks",
)(_transpose_lists)
