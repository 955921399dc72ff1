"""Whole-tensor APIs ``h_*``: element-wise, conversion, fill, comparison, selection, copy (vector.md 4, D20).

Each call becomes the vector instructions that a programmer would write: full repeats, then a tail. The rows of a slice
are reached by repeat strides if a row fits a repeat. Otherwise each row takes one instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ..errors import TikAlignError, TikUnsupportedArgumentError
from ..program.dtypes import BITS, INTEGERS, size_of
from . import numerics
from .access import BLOCK, access
from .call import Call
from .compare import CONDITIONS
from .convert import PAIRS, ROUND_MODES, check_round_mode
from .layout import (
    Rows,
    TensorOrNumber,
    array,
    pieces,
    require_aligned_rows,
    require_equal_shapes,
    require_exact_aliasing,
    rows,
    squeezed,
    whole,
)
from .lowering import MAX_REPEAT, Lowering, chunks, window
from .micro_op import MicroOp, Operand
from .move import MOVE_ALIGNMENT, PATHS, check_documented, move_blocks
from .params import Choice, Number, Tensor, memory_kind
from .registry import instruction
from .vector import DUP_DTYPES, FLOATS
from .vector_engine import Arithmetic, Walk, element_wise
from .vector_mask import leading

LANE_BYTES = 256
MAX_PITCH = 255  # blocks: largest repeat stride
NUMBERS = (*FLOATS, "int32")

#: Emits one instruction: ``f(mask, operands, repeats, repeat strides in blocks)``.
Emit = Callable[[int, Sequence[Operand], int, Sequence[int]], None]


def over_rows(call: Call, named: Sequence[tuple[str, Operand]], emit: Emit) -> None:
    """Cover operands of equal shape with vector instructions (D20b).

    Args:
        named: operands with their argument names, the destination first.
        emit: emits one instruction.
    """
    operands = [operand for _, operand in named]
    sizes = [size_of(operand.dtype) for operand in operands]
    lanes = LANE_BYTES // max(sizes)
    for group in rows(*operands):
        require_aligned_rows(call, group, named)
        starts = [window(operand, offset) for operand, offset in zip(operands, group.offsets)]
        pitches = [pitch // BLOCK for pitch in group.pitches]
        if group.count > 1 and group.elements <= lanes and max(pitches) <= MAX_PITCH:
            for first in range(0, group.count, MAX_REPEAT):
                emit(
                    group.elements,
                    [window(start, first * pitch) for start, pitch in zip(starts, group.pitches)],
                    min(MAX_REPEAT, group.count - first),
                    pitches,
                )
            continue
        for row in range(group.count):
            _along(starts, group, row, sizes, lanes, emit)


def _along(starts: Sequence[Operand], group: Rows, row: int, sizes: Sequence[int], lanes: int, emit: Emit) -> None:
    """Emit one contiguous row: full repeats, then the tail."""
    for first, mask, repeats in chunks(group.elements, lanes):
        places = [window(start, row * pitch + first * size) for start, pitch, size in zip(starts, group.pitches, sizes)]
        emit(mask, places, repeats, [0 if repeats == 1 else lanes * size // BLOCK for size in sizes])


def filled(low: Lowering, dtype: str, value: Any) -> Operand:
    """Return one repeat of scratch memory with a number in every lane."""
    lanes = LANE_BYTES // size_of(dtype)
    operand = low.scratch("UB", dtype, lanes)
    low.emit("vector_dup", lanes, operand, value, 1, 1, 0)
    return operand


def elementwise(low: Lowering, name: str, dst: Operand, *sources: Operand, **more: Any) -> None:
    """Emit a legacy instruction over whole operands; ``more``: its other arguments by name."""
    one, two = ("dst", "src"), ("dst", "src0", "src1")
    names = two if len(sources) == 2 or "src1" in more else one
    labels = two if len(sources) == 2 or "src0" in low.call.args else one  # as the user knows them

    def emit(mask: int, places: Sequence[Operand], repeats: int, strides: Sequence[int]) -> None:
        arguments = {"mask": mask, "repeat_times": repeats, **more}
        for label, place, stride in zip(names, places, strides):
            arguments.update({label: place, f"{label}_blk_stride": 1, f"{label}_rep_stride": stride})
        low.emit(name, **arguments)

    over_rows(low.call, tuple(zip(labels, (dst, *sources))), emit)


def one_to_one(call: Call, a: Any) -> Lowering:
    """Lower a call that maps elements of ``src`` to elements of ``dst``."""
    require_equal_shapes(call, ("dst", "src"))
    require_exact_aliasing(call, a.dst, [("src", a.src)])
    return Lowering(call)


# -------------------------------------------------------------------------------------------------- two sources
def _check_shapes(*names: str) -> Callable[[Call], None]:
    return lambda call: require_equal_shapes(call, names)


def _binary(call: Call, a: Any, *, name: str) -> list[MicroOp]:
    low = Lowering(call)
    tensors = [("src0", a.src0)] + ([("src1", a.src1)] if isinstance(a.src1, Operand) else [])
    require_equal_shapes(call, ("dst", *(label for label, _ in tensors)))
    require_exact_aliasing(call, a.dst, tensors)
    if isinstance(a.src1, Operand):
        elementwise(low, f"v{name}", a.dst, a.src0, a.src1)
    elif name in ("add", "sub", "mul") and a.dst.dtype in FLOATS:
        value = numerics.scalar(a.src1, a.dst.dtype)
        value = float(-value if name == "sub" else value)
        elementwise(low, "vmuls" if name == "mul" else "vadds", a.dst, a.src0, scalar=value)
    else:
        addend = filled(low, a.dst.dtype, a.src1)
        elementwise(low, f"v{name}", a.dst, a.src0, src1=addend, src1_blk_stride=1, src1_rep_stride=0)
    return low.ops


for _name, _dtypes, _doc in (
    ("add", NUMBERS, "dst = src0 + src1"),
    ("sub", NUMBERS, "dst = src0 - src1"),
    ("mul", NUMBERS, "dst = src0 * src1"),
    ("max", NUMBERS, "dst = the larger of src0, src1"),
    ("min", NUMBERS, "dst = the smaller of src0, src1"),
    ("div", FLOATS, "dst = src0 / src1"),
):
    instruction(
        f"h_{_name}",
        params=(Tensor("dst"), Tensor("src0"), TensorOrNumber("src1", like="dst")),
        dtypes=_dtypes,
        checker=_check_shapes("dst", "src0", "src1"),
        pipe="V",
        doc=f"{_doc}, whole tensors; src1 may be a number",
    )(partial(_binary, name=_name))


# -------------------------------------------------------------------------------------------------- one source
def _unary(call: Call, a: Any, *, name: str) -> list[MicroOp]:
    low = one_to_one(call, a)
    elementwise(low, f"v{name}", a.dst, a.src)
    return low.ops


for _name, _doc in (("exp", "dst = e^src"), ("ln", "dst = natural logarithm of src"), ("abs", "dst = |src|")):
    instruction(
        f"h_{_name}",
        params=(Tensor("dst"), Tensor("src")),
        dtypes=FLOATS,
        checker=_check_shapes("dst", "src"),
        pipe="V",
        doc=f"{_doc}, whole tensors",
    )(partial(_unary, name=_name))


def _check_trigonometric(call: Call) -> None:
    require_equal_shapes(call, ("dst", "src"))
    call.questionable(
        "undocumented",
        "the accuracy on Ascend 910 is not documented; the correctly rounded value is computed",
        TikUnsupportedArgumentError,
    )


def _trigonometric(call: Call, a: Any, *, function: Callable[[np.ndarray], np.ndarray]) -> list[MicroOp]:
    low, dtype = one_to_one(call, a), a.dst.dtype

    def compute(x: np.ndarray) -> np.ndarray:
        result = np.nan_to_num(function(x.astype(np.float64)), nan=0.0).astype(dtype)
        return result.view(np.uint16) if dtype == "float16" else result

    def emit(mask: int, places: Sequence[Operand], repeats: int, strides: Sequence[int]) -> None:
        dst, src = (
            Walk(label, place, leading(mask), repeats, BLOCK * step)
            for label, place, step in zip(("dst", "src"), places, strides)
        )
        low.append(call.api[2:], element_wise(call, Arithmetic(compute), dst, (src,), mask=leading(mask)))

    over_rows(call, (("dst", a.dst), ("src", a.src)), emit)
    return low.ops


for _name, _function in (("sin", np.sin), ("cos", np.cos)):
    instruction(
        f"h_{_name}",
        params=(Tensor("dst"), Tensor("src")),
        dtypes=FLOATS,
        checker=_check_trigonometric,
        pipe="V",
        cost="transcendental",
        doc=f"dst = {_name}(src), whole tensors",
    )(partial(_trigonometric, function=_function))


# -------------------------------------------------------------------------------------------------- conversion, fill
def _check_cast(call: Call) -> None:
    require_equal_shapes(call, ("dst", "src"))
    check_round_mode(call)


@instruction(
    "h_cast",
    params=(Tensor("dst"), Tensor("src"), Choice("round_mode", ROUND_MODES, "none")),
    dtypes=tuple(PAIRS),
    checker=_check_cast,
    pipe="V",
)
def h_cast(call: Call, a: Any) -> list[MicroOp]:
    """Compute dst = src converted to the dtype of dst, whole tensors."""
    low = one_to_one(call, a)
    factor = 1.0 if (a.dst.dtype, a.src.dtype) == ("float16", "int32") else None
    elementwise(low, "vconv", a.dst, a.src, round_mode=a.round_mode, deqscale=factor)
    return low.ops


@instruction("h_duplicate", params=(Tensor("dst"), Number("scalar", like="dst")), dtypes=DUP_DTYPES, pipe="V")
def h_duplicate(call: Call, a: Any) -> list[MicroOp]:
    """Fill a whole tensor with a number."""
    low = Lowering(call)
    elementwise(low, "vector_dup", a.dst, scalar=a.scalar)
    return low.ops


# -------------------------------------------------------------------------------------------------- compare, select
def _values(operand: Any, dtype: str) -> Callable[[], np.ndarray]:
    """Return a closure that gives all elements, flat, as stored. float16 comes as bits; a number stands for itself."""
    if not isinstance(operand, Operand):
        value = numerics.scalar(operand, dtype)
        stored = value.view(np.uint16) if dtype == "float16" else value
        return lambda: stored
    view = array(operand)
    return lambda: view.reshape(-1)


def _mask_bits(call: Call, operand: Operand, elements: int) -> tuple[Any, np.ndarray]:
    """Return the footprint and the bytes of a contiguous tensor of ``elements`` bits."""
    if len(rows(operand)) > 1 or rows(operand)[0].count > 1:
        call.fail("mask_tensor must be contiguous")
    octets = -(-elements // 8)
    held = int(np.prod(operand.shape)) * size_of(operand.dtype)
    if held < octets:
        call.fail(f"mask_tensor must hold {elements} bits ({octets} bytes), got {held} bytes")
    touched = access(call, "mask_tensor", operand, (operand.address, 1, 0, 1, 0, octets))
    return touched, operand.memory.view("uint8", operand.address, (octets,), (1,))


def _repeats(operand: Operand) -> int:
    """Return how many repeats of instructions cover an operand."""
    lanes = LANE_BYTES // size_of(operand.dtype)
    return sum(group.count * -(-group.elements // lanes) for group in rows(operand))


def _operands(call: Call, a: Any, *names: str) -> list[tuple[str, Operand]]:
    found = [(name, getattr(a, name)) for name in names if isinstance(getattr(a, name), Operand)]
    for group in rows(*(operand for _, operand in found)):
        require_aligned_rows(call, group, found)
    return found


@instruction(
    "h_cmpv",
    params=(
        Tensor("mask_tensor", dtypes=INTEGERS),
        Tensor("src0"),
        TensorOrNumber("src1", like="src0"),
        Choice("cmp_mode", tuple(name.upper() for name in CONDITIONS)),
    ),
    dtypes=FLOATS,
    checker=_check_shapes("src0", "src1"),
    pipe="V",
)
def h_cmpv(call: Call, a: Any) -> list[MicroOp]:
    """Set bit i of mask_tensor to the comparison of src0[i] with src1[i] or a number."""
    require_equal_shapes(call, ("src0", "src1"))
    sources = _operands(call, a, "src0", "src1")
    elements = int(np.prod(a.src0.shape))
    writes, target = _mask_bits(call, a.mask_tensor, elements)
    dtype, condition = a.src0.dtype, CONDITIONS[a.cmp_mode.lower()]
    first, second = _values(a.src0, dtype), _values(a.src1, dtype)

    def run() -> None:
        x, y = first(), second()
        if dtype == "float16":
            x, y = numerics.widen(x), numerics.widen(y)
        target[...] = np.packbits(condition(x, y), bitorder="little")

    timing = call.soc.timing
    cycles = _repeats(a.src0) * timing.vector_cycles("cmp", dtype)
    reads = [whole(call, name, operand) for name, operand in sources]
    constants = (timing.vector_constant_name("cmp", dtype),)
    return [call.operation(cycles, "vector_latency", reads, (writes,), run, constants=constants)]


@instruction(
    "h_sel",
    params=(Tensor("dst"), Tensor("src0"), TensorOrNumber("src1", like="dst"), Tensor("mask_tensor", dtypes=INTEGERS)),
    dtypes=FLOATS,
    checker=_check_shapes("dst", "src0", "src1"),
    pipe="V",
)
def h_sel(call: Call, a: Any) -> list[MicroOp]:
    """Select src0[i] for set bits of mask_tensor, else src1[i], which may be a number."""
    require_equal_shapes(call, ("dst", "src0", "src1"))
    operands = _operands(call, a, "dst", "src0", "src1")
    require_exact_aliasing(call, a.dst, operands[1:])
    elements = int(np.prod(a.dst.shape))
    bits, octets = _mask_bits(call, a.mask_tensor, elements)
    target = array(a.dst)
    first, second = _values(a.src0, a.dst.dtype), _values(a.src1, a.dst.dtype)

    def run() -> None:
        chosen = np.unpackbits(octets, count=elements, bitorder="little").view(bool)
        target[...] = np.where(chosen, first(), second()).reshape(target.shape)

    timing = call.soc.timing
    # One repeat at a time: the instruction takes the same mask bits in every repeat.
    cycles = _repeats(a.dst) * (timing.vector_cycles("sel", a.dst.dtype) + timing.vector_cycles("simple", a.dst.dtype))
    reads = (bits, *(whole(call, name, operand) for name, operand in operands[1:]))
    constants = (timing.vector_constant_name("sel", a.dst.dtype),)
    return [call.operation(cycles, "vector_latency", reads, (whole(call, "dst", a.dst),), run, constants=constants)]


# -------------------------------------------------------------------------------------------------- copy
def _check_copy(call: Call) -> None:
    path = memory_kind(call.args["src"]), memory_kind(call.args["dst"])
    if path not in PATHS:
        call.fail(f"Ascend 910 has no data path from {path[0]} to {path[1]}", TikUnsupportedArgumentError)
    check_documented(call, path)
    _check_counts(call)


def _check_counts(call: Call) -> None:
    """Require equal shapes, or two contiguous operands with the same number of elements."""
    shapes = [getattr(call.args[name], "shape", ()) for name in ("dst", "src")]
    known = all(isinstance(extent, (int, np.integer)) for shape in shapes for extent in shape)
    if known and np.prod(shapes[0]) != np.prod(shapes[1]):
        call.fail(f"dst and src must have the same number of elements, got {tuple(shapes[0])} and {tuple(shapes[1])}")


@instruction(
    "h_data_move",
    params=(
        Tensor("dst", tuple(MOVE_ALIGNMENT), align=MOVE_ALIGNMENT),
        Tensor("src", tuple(MOVE_ALIGNMENT), like="dst", align=MOVE_ALIGNMENT),
    ),
    dtypes=tuple(BITS),
    checker=_check_copy,
    pipe="MTE2/MTE3/MTE1/V",
)
def h_data_move(call: Call, a: Any) -> list[MicroOp]:
    """Copy a whole tensor or slice, whose rows are whole blocks of 32 bytes."""
    _check_counts(call)
    dst, src = _matched(call, a.dst, a.src)
    low = Lowering(call)
    for group in rows(dst, src):
        length = group.elements * size_of(dst.dtype)
        if length % BLOCK and group.count > 1:
            call.fail(
                f"rows of a slice must be whole blocks of {BLOCK} bytes, got rows of {length} bytes", TikAlignError
            )
        burst = -(-length // BLOCK) * BLOCK
        if burst != length:
            call.questionable("padding", f"{length} bytes are copied as whole blocks, {burst} bytes")
        gaps = [pitch - burst if group.count > 1 else 0 for pitch in group.pitches]
        target, source = window(dst, group.offsets[0]), window(src, group.offsets[1])
        if any(gap < 0 or gap % BLOCK or gap // BLOCK > 65535 for gap in gaps) or group.count > 4095:
            for row in range(group.count):
                to, origin = (window(start, row * pitch) for start, pitch in zip((target, source), group.pitches))
                low.append("data_move", move_blocks(call, to, origin, 1, burst, 0, 0))
        else:
            low.append("data_move", move_blocks(call, target, source, group.count, burst, gaps[1], gaps[0]))
    return low.ops


def _matched(call: Call, dst: Operand, src: Operand) -> Any:
    """Return the operands with equal shapes; a contiguous operand takes the shape of the other."""
    if squeezed(dst.shape) == squeezed(src.shape):
        return dst, src
    for one, other in ((dst, src), (src, dst)):
        if len(pieces(one)) == 1 and pieces(one)[0][1] == pieces(one)[0][3] == 1:
            strides = tuple(int(np.prod(other.shape[axis + 1 :])) for axis in range(len(other.shape)))
            flat = replace(one, shape=other.shape, strides=strides)
            return (flat, other) if one is dst else (other, flat)
    call.fail(f"dst {dst.shape} and src {src.shape} are both strided and differ in shape")
