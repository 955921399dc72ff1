"""Reductions: per repeat, per block, per pair (legacy), and over a whole tensor (vec_reduce_*) (vector.md 2.6, 3.6)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Callable

import numpy as np

from .. import native
from . import numerics
from .call import Call
from .micro_op import Access, MicroOp
from .params import Flag, Param, Tensor, repeat, stride
from .registry import instruction
from .vector import BLK_WIDE, FLOATS, legacy_tail
from .vector_engine import (
    BLOCK,
    Arithmetic,
    Walk,
    check_overlap,
    executor,
    idle,
    make_movable,
    micro_op,
    require_different,
    span_access,
)
from .vector_mask import Lanes, Mask, lanes, leading


# ------------------------------------------------------------------------------------------- array functions
def sum_function(enabled: Lanes, width: int, levels: int, half: bool, outputs: int) -> Callable[..., np.ndarray]:
    """Sum groups of ``2**levels`` of ``width`` lanes as trees; masked lanes count 0 (D11)."""
    where = np.flatnonzero(enabled.array)

    def function(x: np.ndarray) -> np.ndarray:
        full = np.zeros((*x.shape[:-1], width), np.float32)
        full[..., where] = x[..., where]
        sums = np.ascontiguousarray(numerics.tree_sum(full, levels, half)[..., :outputs])
        return numerics.narrow(sums) if half else sums

    return function


def _limit(bits: np.ndarray) -> np.ndarray:
    """Saturate float16 bits: an infinity becomes the largest number."""
    infinite = bits & 0x7FFF == 0x7C00
    if not infinite.any():
        return bits
    numerics.note_saturated(True)
    return np.where(infinite, bits - np.uint16(1), bits)


def _clean(bits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return float16 bits with NaN replaced by 0, and their values."""
    strange = bits & 0x7FFF > 0x7C00
    if strange.any():
        numerics.note_saturated(True)
        bits = np.where(strange, np.uint16(0), bits)
    return bits, numerics.widen(bits)


def extreme_function(enabled: Lanes, name: str) -> Callable[..., np.ndarray]:
    """Find the largest (smallest) enabled float16 and its lane, the lowest on ties (D12a)."""
    where, choose = np.flatnonzero(enabled.array), np.argmax if name == "max" else np.argmin

    def function(bits: np.ndarray) -> np.ndarray:
        bits, values = _clean(bits[..., where])
        best = choose(values, axis=-1)[..., None]
        return np.concatenate([_limit(np.take_along_axis(bits, best, -1)), where.astype(np.uint16)[best]], axis=-1)

    return function


def block_extreme_function(enabled: Lanes, name: str, outputs: int) -> Callable[..., np.ndarray]:
    """Return the function that finds every block's largest (smallest) enabled float16. A block has 16 lanes."""
    choose, neutral = (np.argmax, -np.inf) if name == "max" else (np.argmin, np.inf)

    def function(bits: np.ndarray) -> np.ndarray:
        padded = np.zeros((*bits.shape[:-1], 16 * outputs), np.uint16)
        padded[..., : bits.shape[-1]] = np.where(enabled.array, bits, np.uint16(0))
        padded, values = _clean(padded)
        values[..., : enabled.extent][..., ~enabled.array] = neutral
        values[..., enabled.extent :] = neutral
        groups = (*bits.shape[:-1], outputs, 16)
        best = choose(values.reshape(groups), axis=-1)[..., None]
        return _limit(np.take_along_axis(padded.reshape(groups), best, -1)[..., 0])

    return function


def _element_size(value: Any, call: Call) -> int:
    return np.dtype(value.dtype).itemsize


# ------------------------------------------------------------------------------------------- legacy family
def _check_result_stride(call: Call, dst_rep_stride: Any, repeat_times: Any) -> None:
    """Refuse a result stride of 0, which Ascend 910 forbids for more than one repeat."""
    if isinstance(dst_rep_stride, int) and isinstance(repeat_times, int) and dst_rep_stride == 0:
        if repeat_times > 1:
            call.fail_range("dst_rep_stride", 0, "in [1, 255]")
        elif not call.runtime:
            call.questionable("argument", "dst_rep_stride must be in [1, 255], got 0")


def parameters(align: int | Callable[[Any, Call], int]) -> tuple[Param, ...]:
    return (
        Mask(("src",)),
        Tensor("dst", align=align),
        Tensor("src"),
        repeat(),
        stride("dst_rep_stride"),
        stride("src_blk_stride", BLK_WIDE),
        stride("src_rep_stride"),
        *legacy_tail(),
    )


def _groups(enabled: Lanes, levels: int) -> Lanes:
    """Return the groups of ``2**levels`` lanes that have an enabled lane."""
    return lanes(sum(1 << group for group in {lane >> levels for lane in np.flatnonzero(enabled.array).tolist()}))


def _reduce(call: Call, a: Any, *, kind: str) -> MicroOp:
    _check_result_stride(call, a.dst_rep_stride, a.repeat_times)
    half = a.src.dtype == "float16"
    width, size = (128, 2) if half else (64, 4)
    whole = 7 if half else 6
    if kind == "sum":
        levels = {"whole_reduce": whole, "group_reduce": whole - 3, "pair_reduce": 1}[call.cost]
    else:
        levels = whole if call.cost == "whole_reduce" else whole - 3
    pairs = call.cost == "whole_reduce" and kind != "sum"
    written = leading(2) if pairs else leading(1) if call.cost == "whole_reduce" else _groups(a.mask, levels)
    unit = size * (2 if pairs else width >> levels)
    if a.mask.extent == 0 and (kind != "sum" or call.cost != "whole_reduce"):
        return idle(call, a.src.dtype, a.repeat_times, a.mask)
    dst = Walk("dst", a.dst, written, a.repeat_times, unit * a.dst_rep_stride)
    if a.mask.extent == 0:  # a whole-repeat sum of nothing is 0
        arithmetic = Arithmetic(lambda: np.zeros(1, "uint16" if half else "float32"))
        result = micro_op(call, a.src.dtype, dst, (), mask=a.mask)
        result.run = executor(arithmetic, dst, (), dst.revisits)
        return result
    src = Walk("src", a.src, a.mask, a.repeat_times, BLOCK * a.src_rep_stride, BLOCK * a.src_blk_stride)
    if kind == "sum":
        function = sum_function(a.mask, width, levels, half, written.extent)
        arithmetic = Arithmetic(function, "sum", "", scalar=levels)
    else:
        function = extreme_function(a.mask, kind) if pairs else block_extreme_function(a.mask, kind, written.extent)
        arithmetic = Arithmetic(function, "extreme", kind, scalar=levels, raw=True)
    result = micro_op(call, a.src.dtype, dst, (src,), mask=a.mask)
    ordered = check_overlap(call, dst, (src,))
    result.run = executor(arithmetic, dst, (src,), ordered, a.mask, pairs=pairs)
    make_movable(result, dst, (src,))
    return result


for _name, _kind, _cost, _align, _dtypes, _doc in (
    ("vcadd", "sum", "whole_reduce", None, FLOATS, "sum of every repeat"),
    ("vcmax", "max", "whole_reduce", 4, ("float16",), "maximum of every repeat and its lane"),
    ("vcmin", "min", "whole_reduce", 4, ("float16",), "minimum of every repeat and its lane"),
    ("vcgadd", "sum", "group_reduce", 16, ("float16",), "sum of every block"),
    ("vcgmax", "max", "group_reduce", 16, ("float16",), "maximum of every block"),
    ("vcgmin", "min", "group_reduce", 16, ("float16",), "minimum of every block"),
    ("vcpadd", "sum", "pair_reduce", 32, ("float16",), "sum of every adjacent pair"),
):
    instruction(
        _name,
        params=parameters(_align or _element_size),
        dtypes=_dtypes,
        pipe="V",
        cost=_cost,
        checker=lambda call: _check_result_stride(call, call.args["dst_rep_stride"], call.args["repeat_times"]),
        doc=_doc,
    )(partial(_reduce, kind=_kind))


# ------------------------------------------------------------------------------------------- whole tensors
def _scratch(call: Call, a: Any, needed: int, documented: bool) -> Access:
    """Return the footprint of ``work_tensor``, which must hold ``needed`` elements. A size that the documents do not
    pin down only gives a warning (D17).
    """
    room = (a.work_tensor.end - a.work_tensor.address) // np.dtype(a.work_tensor.dtype).itemsize
    if room < needed:
        message = f"work_tensor must hold at least {needed} elements, got {room}"
        if documented:
            call.fail(message)
        call.questionable("work-tensor", message)
    return span_access(call, "work_tensor", a.work_tensor, min(needed, room))


def _levels(count: int, width: int) -> list[int]:
    """Return each level's instruction count to reduce ``count`` partial results, ``width`` at a time."""
    levels = []
    while count > 1:
        count = -(-count // width)
        levels.append(count)
    return levels


def _whole(call: Call, a: Any, src: Walk, dst: Walk, scratch: Access, levels: Sequence[int]) -> MicroOp:
    """Return the micro-operation without its ``run``: the first level over the source, then dependent levels over
    partial results.
    """
    timing = call.soc.timing
    result = micro_op(call, a.src.dtype, None, (src,), mask=a.mask)
    result.cycles += sum(
        timing.vector_latency + timing.vector_cycles("whole_reduce", a.src.dtype) * repeats for repeats in levels
    )
    result.instructions = -(-src.repeats // 255) + len(levels)
    result.writes = (dst.access(call), scratch)
    result.undefined = (scratch,)
    require_different(
        call,
        ("work_tensor", a.work_tensor, scratch.region.start, scratch.region.end),
        ("src", src.operand, *src.span),
        ("dst", dst.operand, *dst.span),
    )
    return result


def _partial_sums(src: Walk, half: bool) -> Callable[[], np.ndarray]:
    """Store the sums of all repeats, which ``f()`` gives as float32."""
    width, levels = (128, 7) if half else (64, 6)
    buffer = np.zeros(src.repeats, np.uint16 if half else np.float32)
    run = native.runner(
        "sum",
        "",
        (src.lanes, src.operand.memory, buffer),
        dst_kind=0 if half else 1,
        src_kind=0 if half else 1,
        repeats=src.repeats,
        lanes=src.lanes.extent,
        full=src.lanes.full,
        lane=src.lanes.padded_base,
        scalar=levels,
        dst=buffer.ctypes.data,
        dst_rep=buffer.itemsize,
        dst_blk=BLOCK,
        **src.native_fields("a"),
    )
    if run is None:
        load, function = src.loader(), sum_function(src.lanes, width, levels, half, 1)

        def run() -> None:
            buffer[:] = function(load(slice(None)))[:, 0]

    record = getattr(run, "record", None)

    def sums() -> np.ndarray:
        run()
        if record is not None and record.overflow:
            record.overflow = 0
            numerics.note_saturated(True)
        return numerics.widen(buffer) if half else buffer

    return sums


def _whole_parameters(align: int | Callable[[Any, Call], int]) -> tuple[Param, ...]:
    dst, work = Tensor("dst", align=align), Tensor("work_tensor")
    return (Mask(("src",)), dst, Tensor("src"), work, repeat(high=4095), stride("src_rep_stride"))


@instruction(
    "vec_reduce_add",
    params=_whole_parameters(_element_size),
    dtypes=FLOATS,
    pipe="V",
    cost="whole_reduce",
    composite=True,
)
def vec_reduce_add(call: Call, a: Any) -> MicroOp:
    """Sum all repeats in a tree of adjacent pairs"""
    half = a.src.dtype == "float16"
    width, levels, block = (128, 7, 16) if half else (64, 6, 8)
    dst = Walk("dst", a.dst, leading(1), 1, 0)
    if a.mask.extent == 0:
        result = micro_op(call, a.src.dtype, dst, (), mask=a.mask)
        result.run = partial(dst.storer(), 0, np.zeros(1, "uint16" if half else "float32"))
        return result
    src = Walk("src", a.src, a.mask, a.repeat_times, BLOCK * a.src_rep_stride)
    scratch = _scratch(call, a, -(-a.repeat_times // block) * block, documented=False)
    result = _whole(call, a, src, dst, scratch, _levels(a.repeat_times, width))
    sums_of_repeats, store = _partial_sums(src, half), dst.storer()

    def run() -> None:
        sums = sums_of_repeats()
        while sums.size > 1:
            padded = np.zeros(-(-sums.size // width) * width, np.float32)
            padded[: sums.size] = sums
            sums = numerics.tree_sum(padded.reshape(-1, width), levels, half)[:, 0]
        total = np.array(sums)
        store(0, numerics.narrow(total) if half else total)

    result.run = numerics.watched(run)
    return result


def extreme_scratch(repeat_times: int, cal_index: bool) -> int:
    """Return how many elements of ``work_tensor`` vec_reduce_max/min needs: value-index pairs of every level (vector.md
    2.6).
    """

    def blocks(count: int) -> int:
        return -(-count // 16) * 16

    first = 2 * repeat_times
    if not cal_index:
        return blocks(first)
    second = -(-first // 128) * 2
    third = -(-second // 128) * 2
    return blocks(first) + blocks(second) + blocks(third) + -(-third // 128) * 2


def _check_index(call: Call) -> None:
    """Require that every element number is representable if an index is wanted (D12b)."""
    if call.args["cal_index"] and isinstance(call.args["repeat_times"], int) and call.args["repeat_times"] > 511:
        call.fail_range("repeat_times", call.args["repeat_times"], "in [1, 511] with cal_index=True")


def _reduce_extreme(call: Call, a: Any, *, name: str) -> MicroOp:
    if a.cal_index and a.repeat_times > 511:
        call.fail_range("repeat_times", a.repeat_times, "in [0, 511] with cal_index=True")
    if a.mask.extent == 0:
        return idle(call, a.src.dtype, a.repeat_times, a.mask)
    src = Walk("src", a.src, a.mask, a.repeat_times, BLOCK * a.src_rep_stride)
    scratch = _scratch(call, a, extreme_scratch(a.repeat_times, bool(a.cal_index)), documented=bool(a.cal_index))
    written = 2 if a.cal_index else 1
    dst = Walk("dst", a.dst, leading(written), 1, 0)
    result = _whole(call, a, src, dst, scratch, _levels(2 * a.repeat_times, 128))
    store = dst.storer()
    load, where = src.loader(raw=True), np.flatnonzero(a.mask.array)
    choose = np.argmax if name == "max" else np.argmin

    def run() -> None:
        bits, values = _clean(load(slice(None))[:, where])
        row, column = divmod(int(choose(values)), where.size)
        found = np.array([bits[row, column], row * 128 + where[column]], np.uint16)
        found[0] = _limit(found[:1])[0]
        store(0, found[:written])

    result.run = numerics.watched(run)
    return result


for _name in ("max", "min"):
    instruction(
        f"vec_reduce_{_name}",
        params=(*_whole_parameters(4), Flag("cal_index", False)),
        dtypes=("float16",),
        pipe="V",
        cost="whole_reduce",
        composite=True,
        checker=_check_index,
        doc=f"{_name}imum of all repeats, with cal_index its element number",
    )(partial(_reduce_extreme, name=_name))
