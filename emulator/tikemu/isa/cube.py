"""Matrix instructions: ``load2dv1``, ``load3dv1``, ``mmad`` (cube.md 2-4, 9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import numpy as np

from ..errors import TikParamError, TikUnsupportedArgumentError
from ..program.dtypes import size_of
from . import matrix, numerics
from .access import BLOCK, FRACTAL, access, copier, copiers, defined_view, l0c_alignment
from .call import Call
from .micro_op import Access, MicroOp, Operand, Transfer
from .params import Choice, Count, Fixed, Flag, Integer, Number, Param, Rest, Tensor, describe, memory_kind, repeat
from .region import Piece, Region
from .registry import instruction

L0_SOURCE_ALIGNMENT = {"L1": BLOCK, "GM": 1}


class Switch(Integer):
    """0 or 1: a bool, an integer or a run-time value."""

    def __init__(self, name: str) -> None:
        super().__init__(name, 0, 1)

    def check(self, value: Any, call: Call) -> None:
        if not isinstance(value, (bool, np.bool_)):
            super().check(value, call)


class IntegerList(Param):
    """A list of integers, one for each of ``items``, which give the ranges."""

    def __init__(self, name: str, *items: Integer) -> None:
        super().__init__(name)
        self.items = items

    def check(self, value: Any, call: Call) -> None:
        if not isinstance(value, (list, tuple)) or len(value) != len(self.items):
            call.fail(f"{self.name} must be a list of {len(self.items)} integers, got {describe(value)}")
        for item, entry in zip(self.items, value):
            item.check(entry, call)

    def resolve(self, value: Any, call: Call) -> Any:
        return tuple(item.resolve(entry, call) for item, entry in zip(self.items, value))


# --------------------------------------------------------------------------------------------------------- load2dv1
def _check_load2d(call: Call) -> None:
    source, target = memory_kind(call.args["src"]), memory_kind(call.args["dst"])
    if (source, target) == ("L1", "L1"):
        call.fail("load2dv1 does not move from L1 to L1", TikUnsupportedArgumentError)
    if call.args["if_transpose"]:
        if target == "L1" or source == "GM":
            call.fail("if_transpose works on the path from L1 to L0A or L0B only", TikUnsupportedArgumentError)
        if size_of(call.args["src"].dtype) != 2:
            call.fail(f"if_transpose takes 16-bit types, got {call.args['src'].dtype}", TikUnsupportedArgumentError)
    if call.args["addr_mode"] == "dec" and (source, target) != ("GM", "L1"):
        call.questionable(
            "argument", "addr_mode 'dec' is honoured from GM to L1 only; addresses increase", TikParamError
        )


@instruction(
    "load2dv1",
    params=(
        Tensor("dst", ("L0A", "L0B", "L1"), align={"L1": BLOCK}),
        Tensor("src", ("L1", "GM"), align=L0_SOURCE_ALIGNMENT),
        Integer("index", 0, 65535),
        repeat(),
        Integer("src_stride", 0, 65535),
        Integer("sid", 0, 15),
        Flag("if_transpose", False),
        Choice("addr_mode", (None, "inc", "dec"), None),
    ),
    dtypes=("uint8", "int8", "uint16", "int16", "float16"),
    checker=_check_load2d,
    pipe="MTE1/MTE2",
)
def load2dv1(call: Call, a: Any) -> MicroOp:
    """Load fractals of 512 bytes; src_stride counts fractals start to start."""
    decreasing = a.addr_mode == "dec" and a.src.memory.kind == "GM" and a.dst.memory.kind == "L1"
    step = (-a.src_stride if decreasing else a.src_stride) * FRACTAL
    return load_fractals(
        call, a.dst, a.src, a.src.address + a.index * FRACTAL, a.repeat_times, step, bool(a.if_transpose)
    )


def load_fractals(
    call: Call, dst: Operand, src: Operand, start: int, count: int, step: int, transpose: bool
) -> MicroOp:
    """Load ``count`` fractals of ``src``, ``step`` bytes apart from byte address ``start``, contiguously to ``dst``."""
    lowest = min(start, start + (count - 1) * step)
    reads = access(call, "src", src, (lowest, count, abs(step), 1, 0, FRACTAL))
    writes = access(call, "dst", dst, (dst.address, 1, 0, 1, 0, count * FRACTAL))

    def moved(addresses: Sequence[int]) -> tuple[Callable[[], None], Callable[[], None] | None]:
        to, origin = addresses[0], addresses[1] + start - src.address
        if not transpose:
            return copiers(dst.memory, to, src.memory, origin, (count, FRACTAL), (FRACTAL, 1), (step, 1))
        # Elements of two bytes, and so their marks.
        shape, dst_strides, src_strides = (count, 16, 16), (FRACTAL, 2, 32), (step, 32, 2)
        run = copier(
            dst.memory.view("uint16", to, shape, dst_strides), src.memory.view("uint16", origin, shape, src_strides)
        )
        if dst.memory.defined is None or src.memory.defined is None:
            return run, None
        return run, copier(
            np.ndarray(shape, np.uint16, dst.memory.defined, to, dst_strides),
            np.ndarray(shape, np.uint16, src.memory.defined, origin, src_strides),
        )

    run, run_defined = moved((dst.address, src.address))
    bandwidth = "l1_l0a_bandwidth" if dst.memory.kind == "L0A" else "l1_l0b_bandwidth"
    pipe, latency, transfer = "MTE1", "load2d_latency", None
    if src.memory.kind == "GM":
        pipe, bandwidth, latency = "MTE2", "gm_read_bandwidth", "gm_read_latency"
        whole = step == FRACTAL
        transfer = Transfer("read", 1 if whole else count, count * FRACTAL if whole else FRACTAL, abs(step))
    cycles = count * FRACTAL / getattr(call.soc.timing, bandwidth)
    more: dict[str, Any] = {"run_defined": run_defined, "transfer": transfer, "operands": (dst, src), "moved": moved}
    return call.operation(cycles, latency, (reads,), (writes,), run, pipe=pipe, constants=(bandwidth,), **more)


# --------------------------------------------------------------------------------------------------------- load3dv1
@instruction(
    "load3dv1",
    params=(
        Tensor("dst", ("L0A", "L0B", "UB")),
        Tensor("src", ("L1",), align=BLOCK),
        IntegerList("padding", *(Integer(f"padding[{position}]", 0, 255) for position in range(4))),
        Integer("l1_h", 1, 32767),
        Integer("l1_w", 1, 32767),
        Integer("c1_index", 0, 4095),
        Integer("fetch_filter_w", 0, 254),
        Integer("fetch_filter_h", 0, 254),
        Integer("left_top_w", -255, 32767),
        Integer("left_top_h", -255, 32767),
        Integer("stride_w", 1, 63),
        Integer("stride_h", 1, 63),
        Integer("filter_w", 1, 255),
        Integer("filter_h", 1, 255),
        Integer("dilation_filter_w", 1, 255),
        Integer("dilation_filter_h", 1, 255),
        Integer("jump_stride", 1, 127),
        Integer("repeat_mode", 0, 1),
        repeat("repeat_time"),
        Fixed("csize", 0, "the small-channel form has no specification"),
        Number("pad_value", like="src", default=None),
    ),
    dtypes=("int8", "uint8", "float16"),
    pipe="MTE1",
)
def load3dv1(call: Call, a: Any) -> MicroOp:
    """Gather fractals of an image-to-column matrix: 16 output positions by the channels of one kernel point."""
    dst, src, jump = a.dst, a.src, a.jump_stride
    block, inside, past = _window_blocks(a)  # rows past the last output position are undefined in strict mode (D28d)
    count = len(block)
    writes = access(call, "dst", dst, (dst.address, count, jump * FRACTAL, 1, 0, FRACTAL))
    used = np.unique(block[inside])
    reads = (access(call, "src", src, *_runs(src.address, used)),) if used.size else ()
    source_shape = (int(used[-1]) + 1 if used.size else 0, BLOCK)
    shape, strides = (*block.shape, BLOCK), (jump * FRACTAL, BLOCK, 1)
    index, outside = np.where(inside, block, 0), ~inside
    pad = np.full(BLOCK // size_of(src.dtype), numerics.scalar(a.pad_value or 0, src.dtype)).view(np.uint8)

    def rows(values: np.ndarray, padding: Any) -> np.ndarray:
        result = values.take(index, axis=0) if len(values) else np.empty(shape, np.uint8)
        result[outside] = padding
        return result

    source = src.memory.view("uint8", src.address, source_shape, (BLOCK, 1))
    target = dst.memory.view("uint8", dst.address, shape, strides)

    def run() -> None:
        target[...] = rows(source, pad)

    run_defined = None
    if dst.memory.defined is not None and src.memory.defined is not None:
        source_bits = defined_view(src.memory, src.address, source_shape, (BLOCK, 1))
        target_bits = defined_view(dst.memory, dst.address, shape, strides)

        def run_defined() -> None:
            bits = rows(source_bits, 1)
            bits[past] = 0
            target_bits[...] = bits

    bandwidth = "load3d_bandwidth"
    cycles = count * FRACTAL / call.soc.timing.load3d_bandwidth
    return call.operation(
        cycles, "load3d_latency", reads, (writes,), run, pipe="MTE1", run_defined=run_defined, constants=(bandwidth,)
    )


def _window_blocks(a: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute the source addresses of every row of every fractal of a load3d.

    Returns:
        Three arrays (repeats, 16). The first has the number of the 32-byte block in the feature map. The others say
        whether the block lies inside the image, and whether the row lies past the last output position.
    """
    left, right, top, bottom = a.padding
    repeats = np.arange(a.repeat_time)[:, None]
    row = np.arange(16)[None, :]
    if a.repeat_mode == 1:  # down the output positions
        position = repeats * 16 + row
        kernel = (
            np.zeros((a.repeat_time, 1), int)
            + a.fetch_filter_w
            + a.filter_w * (a.fetch_filter_h + a.filter_h * a.c1_index)
        )
    else:  # along the depth: kernel width, kernel height, channel group
        position = np.broadcast_to(row, (a.repeat_time, 16))
        kernel = repeats + a.fetch_filter_w + a.filter_w * (a.fetch_filter_h + a.filter_h * a.c1_index)
    point_w = kernel % a.filter_w
    point_h, c1 = kernel // a.filter_w % a.filter_h, kernel // (a.filter_w * a.filter_h)
    # The window walks from the given corner to the end of its line, then over whole lines from the left padding on.
    last_x = a.l1_w - 1 + right - a.dilation_filter_w * (a.filter_w - 1)
    first_line = max(1, (last_x - a.left_top_w) // a.stride_w + 1)
    line = max(1, (last_x + left) // a.stride_w + 1)
    lines, along = np.divmod(position - first_line, line)
    on_first = position < first_line
    x = np.where(on_first, a.left_top_w + position * a.stride_w, along * a.stride_w - left)
    y = a.left_top_h + np.where(on_first, 0, lines + 1) * a.stride_h
    past = y + a.dilation_filter_h * (a.filter_h - 1) > a.l1_h - 1 + bottom
    w, h = x + point_w * a.dilation_filter_w, y + point_h * a.dilation_filter_h
    inside = (w >= 0) & (w < a.l1_w) & (h >= 0) & (h < a.l1_h)
    return (c1 * a.l1_h + h) * a.l1_w + w, inside, past


def _runs(address: int, blocks: np.ndarray) -> list[Piece]:
    """Return ascending numbers of blocks as pieces of constant step."""
    pieces = []
    first = 0
    steps = np.diff(blocks)
    while first < len(blocks):
        last = first + 1
        if last < len(blocks):
            changes = np.nonzero(steps[first:] != steps[first])[0]
            last = first + int(changes[0]) + 1 if changes.size else len(blocks)
        step = int(steps[first]) if last - first > 1 else 0
        pieces.append((address + int(blocks[first]) * BLOCK, 1, 0, last - first, step * BLOCK, BLOCK))
        first = last
    return pieces


# ------------------------------------------------------------------------------------------------------------- mmad
def _check_mmad(call: Call) -> None:
    if call.args["extra"]:
        name = next(iter(call.args["extra"]))
        call.fail(f"argument {name!r} does not exist on Ascend 910", TikUnsupportedArgumentError)


_OTHER_PROFILE = "a feature of other profiles"


@instruction(
    "mmad",
    params=(
        Tensor("dst_fm", ("L0C",), align=l0c_alignment),
        Tensor("src_fm", ("L0A",)),
        Tensor("src_filter", ("L0B",)),
        Count("matrix_m", 4095, low=0),
        Count("matrix_k", 4095, low=0),
        Count("matrix_n", 4095, low=0),
        Switch("is_bias"),
        Fixed("fm_offset", 0, _OTHER_PROFILE),
        Fixed("en_weight_offset", False, _OTHER_PROFILE),
        Fixed("smask", None, _OTHER_PROFILE),
        Rest("extra", keywords=True),
    ),
    dtypes=(
        ("float32", "float16", "float16"),
        ("float16", "float16", "float16"),
        ("int32", "int8", "int8"),
        ("int32", "uint8", "int8"),
        ("uint32", "uint8", "uint8"),
    ),
    checker=_check_mmad,
    pipe="M",
)
def mmad(call: Call, a: Any) -> MicroOp:
    """Multiply the tiles of L0A and L0B into L0C. C = A B (is_bias 0) or C = C + A B (is_bias 1)."""
    return multiply(call, a.dst_fm, a.src_fm, a.src_filter, a.matrix_m, a.matrix_k, a.matrix_n, bool(a.is_bias))


def multiply(
    call: Call, dst: Operand, left: Operand, right: Operand, m: int, k: int, n: int, accumulate: bool, gemv: bool = True
) -> MicroOp:
    """Return the micro-operation of one ``mmad``. With ``gemv``, m == 1 reads k contiguous elements of ``left``
    (D27a).
    """
    vector = gemv and m == 1
    k0 = BLOCK // size_of(left.dtype)
    m1, k1, n1 = -(-m // 16), -(-k // k0), -(-n // 16)
    reads = [_left_access(call, left, m, k, vector), _right_access(call, right, n, k)]
    tile, undefined = _result_access(call, dst, m, n)
    if accumulate:
        reads.append(Access(dst, tile.region) if not undefined else _valid_result(dst, m, n))
    load_left, load_right = _left_loader(left, m, k, vector), _right_loader(right, k1, n1, k0)
    rate = "cube_macs_f16" if k0 == 16 else "cube_macs_i8"
    cycles = m1 * k1 * n1 * 256 * k0 / getattr(call.soc.timing, rate)
    run = _product(call, dst, load_left, load_right, m, k, n, accumulate, vector)
    more: dict[str, Any] = {"undefined": undefined, "accumulate": accumulate, "macs": m * k * n, "constants": (rate,)}
    return call.operation(cycles, "mmad_latency", reads, (tile,), run, pipe="M", **more)


def _left_access(call: Call, left: Operand, m: int, k: int, vector: bool) -> Access:
    """Return the valid elements of A; the whole fractals must lie inside the tensor."""
    size = size_of(left.dtype)
    if vector:
        return access(call, "src_fm", left, (left.address, 1, 0, 1, 0, k * size))
    k0 = BLOCK // size
    m1, k1, base = -(-m // 16), -(-k // k0), left.address
    access(call, "src_fm", left, (base, 1, 0, 1, 0, m1 * k1 * FRACTAL))
    pieces = []
    deep, lanes = k // k0, k % k0
    whole, rows = divmod(m, 16)
    for first, count, height in ((0, whole, 16), (whole, 1, rows)):
        start = base + first * k1 * FRACTAL
        if count and height and deep:
            pieces.append((start, count, k1 * FRACTAL, deep, FRACTAL, height * BLOCK))
        if count and height and lanes:
            pieces.append((start + deep * FRACTAL, count, k1 * FRACTAL, height, BLOCK, lanes * size))
    return access(call, "src_fm", left, *pieces)


def _right_access(call: Call, right: Operand, n: int, k: int) -> Access:
    """Return the valid elements of B; the whole fractals must lie inside the tensor."""
    size = size_of(right.dtype)
    k0 = BLOCK // size
    n1, k1, base = -(-n // 16), -(-k // k0), right.address
    access(call, "src_filter", right, (base, 1, 0, 1, 0, n1 * k1 * FRACTAL))
    pieces = []
    deep, lanes = k // k0, k % k0
    if deep:
        pieces.append((base, deep, n1 * FRACTAL, 1, 0, n * BLOCK))
    if lanes:
        pieces.append((base + deep * n1 * FRACTAL, n, BLOCK, 1, 0, lanes * size))
    return access(call, "src_filter", right, *pieces)


def _result_access(call: Call, dst: Operand, m: int, n: int) -> tuple[Access, tuple[Access, ...]]:
    """Return all fractals of C, and their padding rows and columns (D26b)."""
    size = size_of(dst.dtype)
    row, m1, n1 = 16 * size, -(-m // 16), -(-n // 16)
    column = m1 * 16 * row
    tile = access(call, "dst_fm", dst, (dst.address, 1, 0, 1, 0, n1 * column))
    padding = []
    if m % 16:
        padding.append((dst.address + m * row, n1, column, 1, 0, column - m * row))
    if n % 16:
        padding.append((dst.address + (n1 - 1) * column + n % 16 * size, m, row, 1, 0, (16 - n % 16) * size))
    return tile, (access(call, "dst_fm", dst, *padding),) if padding else ()


def _valid_result(dst: Operand, m: int, n: int) -> Access:
    """Return the elements of C that hold the result."""
    size = size_of(dst.dtype)
    row, column = 16 * size, -(-m // 16) * 256 * size
    whole, columns = divmod(n, 16)
    pieces = []
    if whole:
        pieces.append((dst.address, whole, column, 1, 0, m * row))
    if columns:
        pieces.append((dst.address + whole * column, m, row, 1, 0, columns * size))
    return Access(dst, Region(dst.memory, tuple(pieces)))


def _product(
    call: Call,
    dst: Operand,
    load_left: Callable[[], np.ndarray],
    load_right: Callable[[], np.ndarray],
    m: int,
    k: int,
    n: int,
    accumulate: bool,
    vector: bool,
) -> Callable[[], None]:
    """Return the numerics of one ``mmad``, padding rows and columns included."""
    size = size_of(dst.dtype)
    m1, n1 = -(-m // 16), -(-n // 16)
    rows = 1 if vector else 16 * m1
    if vector:
        target = dst.memory.view(dst.dtype, dst.address, (1, 1, n1, 16), (0, 0, 256 * size, size))
    else:
        target = dst.memory.view(
            dst.dtype, dst.address, (m1, 16, n1, 16), (256 * size, 16 * size, m1 * 256 * size, size)
        )
    kind = target.dtype if target.dtype.kind in "iu" else np.dtype(np.float32)
    combine = matrix.accumulate_float if kind.kind == "f" else matrix.accumulate_integer
    inspects = kind.kind == "f" and call.options.checks("unspecified")

    def run() -> None:
        left, right = load_left(), load_right()
        shape = (rows, 16 * n1)
        old = target.reshape(shape).astype(kind, copy=False) if accumulate else np.zeros(shape, kind)
        result = combine(old, left, right, k)
        # A NaN operand makes its sums NaN, and a NaN saturates: without saturation there is none to look for.
        if inspects and numerics.any_saturated() and _has_nan(left[:, :m], right[:, :, :n], k):
            call.questionable("unspecified", "an operand holds NaN, for which mmad is not specified")
        if size == 2:
            result = numerics.narrow(result).view(np.float16)
        target[...] = result.reshape(target.shape)

    return numerics.watched(run, lambda where: where[:m, :n])


def _has_nan(left: np.ndarray, right: np.ndarray, k: int) -> bool:
    """Return whether a valid lane holds NaN."""
    k0 = left.shape[2]
    lanes = (np.arange(len(left) * k0) < k).reshape(len(left), k0)
    return bool((np.isnan(left).any(axis=1) & lanes).any() or (np.isnan(right).any(axis=2) & lanes).any())


def _left_loader(left: Operand, m: int, k: int, vector: bool) -> Callable[[], np.ndarray]:
    """Return a closure that gives A as float64 (K1, M, K0)."""
    size = size_of(left.dtype)
    k0 = BLOCK // size
    m1, k1 = -(-m // 16), -(-k // k0)
    values = matrix.widen if size == 2 else _to_double
    raw = "uint16" if size == 2 else left.dtype
    if vector:
        elements = left.memory.view(raw, left.address, (k,), (size,))

        def load_vector() -> np.ndarray:
            padded = np.zeros(k1 * k0)
            padded[:k] = values(elements)
            return padded.reshape(k1, 1, k0)

        return load_vector
    fractals = left.memory.view(raw, left.address, (k1, m1, 16, k0), (FRACTAL, k1 * FRACTAL, BLOCK, size))
    return lambda: values(fractals).reshape(k1, m1 * 16, k0)


def _right_loader(right: Operand, k1: int, n1: int, k0: int) -> Callable[[], np.ndarray]:
    """Return a closure that gives B as float64 (K1, K0, N)."""
    size = size_of(right.dtype)
    values = matrix.widen if size == 2 else _to_double
    fractals = right.memory.view(
        "uint16" if size == 2 else right.dtype, right.address, (k1, n1 * 16, k0), (n1 * FRACTAL, BLOCK, size)
    )
    return lambda: values(fractals).transpose(0, 2, 1)


def _to_double(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float64)
