"""Instructions of the naive interpreter, one element at a time.

``INSTRUCTIONS[name](machine, a)``: ``machine.register`` is the compare-mask register, ``machine.atomic`` whether moves
add; ``a`` holds the arguments by name, tensors as :class:`Pointer`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from typing import Any

from emulator.tests.support.naive_values import (
    CODES,
    COMPARE,
    LARGEST,
    ONE,
    STATUS,
    TWO,
    Pointer,
    limited,
    stored,
    sums_of_groups,
    to_integer,
    to_odd,
    tree,
)


def lanes(mask: Any, width: int) -> list[int]:
    """Return the numbers of the enabled lanes of a mask: a count, or two words of bits."""
    if not isinstance(mask, (list, tuple)):
        return list(range(mask))
    bits = (mask[0] & (1 << 64) - 1) << 64 | mask[1] & (1 << 64) - 1
    return [lane for lane in range(width) if bits >> lane & 1]


def place(a: dict[str, Any], name: str, repeat: int, lane: int, legacy: bool) -> Pointer:
    """Return the place of an operand's element. A block stride of 0 of the destination is taken as 1 (D16g)."""
    step = a[f"{name}_blk_stride"] if legacy else 1
    return a[name].lane(repeat, lane, a.get(f"{name}_rep_stride", 0), step or int(name == "dst"))


def vector(
    a: dict[str, Any], function: Callable[..., Any], sources: tuple[str, ...], legacy: bool, reads_dst: bool = False
) -> None:
    """Compute element by element, a repeat's sources before its destination."""
    width = 256 // max(a[name].size for name in ("dst", *sources))
    names = (*sources, "dst") if reads_dst else sources
    for repeat in range(a["repeat_times"]):
        results = []
        for lane in lanes(a["mask"], width):
            results.append((lane, function(*(place(a, name, repeat, lane, legacy).get() for name in names))))
        for lane, value in results:
            place(a, "dst", repeat, lane, legacy).put(value)


def multiply_add(kind: str, dtype: str, scalar: Any = None) -> Callable[..., Any]:
    """Round the product, then the sum."""
    if kind == "axpy":
        return lambda x, d: stored(x * scalar, dtype) + d
    if kind == "mla":
        return lambda x, y, d: stored(x * y, dtype) + d
    return lambda x, y, d: stored(x * d, dtype) + y


def fill(a: dict[str, Any], legacy: bool) -> None:
    """Run vec_dup; an infinity keeps its pattern."""
    dst, value = a["dst"], a["scalar"]
    pattern = struct.pack(CODES[dst.dtype], value if math.isinf(value) else stored(value, dst.dtype))
    for repeat in range(a["repeat_times"]):
        for lane in lanes(a["mask"], 256 // dst.size):
            place(a, "dst", repeat, lane, legacy).store(pattern)


def convert(a: dict[str, Any], legacy: bool) -> None:
    """Run vec_conv."""
    dst, mode = a["dst"].dtype, a["round_mode"]
    if a["deqscale"] is not None:
        vector(a, lambda x: x * a["deqscale"], ("src",), legacy)
    elif mode == "odd":
        vector(a, to_odd, ("src",), legacy)
    elif dst.startswith("float"):
        vector(a, lambda x: x, ("src",), legacy)
    else:
        vector(a, lambda x: to_integer(x, mode, dst), ("src",), legacy)


def compare(a: dict[str, Any], function: Callable[[Any, Any], bool], legacy: bool) -> None:
    """Run vec_cmpv: bits into memory."""
    width = 256 // a["src0"].size
    for repeat in range(a["repeat_times"]):
        bits = 0
        for lane in range(width):
            x, y = (place(a, name, repeat, lane, legacy).get() for name in ("src0", "src1"))
            bits |= function(x, y) << lane
        for byte in range(width // 8):
            a["dst"].at(repeat * width // 8 + byte, "uint8").put(bits >> 8 * byte & 255)


def select(a: dict[str, Any], legacy: bool, register: int) -> None:
    """Run vec_sel: by bits in memory or in the register."""
    width = 256 // a["dst"].size
    bits = register
    if isinstance(a["sel"], Pointer):
        bits = sum(a["sel"].at(byte, "uint8").get() << 8 * byte for byte in range(width // 8))
    for repeat in range(a["repeat_times"]):
        for lane in lanes(a["mask"], width):
            to, *sources = (place(a, name, repeat, lane, legacy) for name in ("dst", "src1", "src0"))
            to.store([source.load(to.size) for source in sources][bits >> lane & 1])


def without_nan(value: float) -> float:
    """Return the number, or 0 for NaN."""
    if value == value:
        return value
    STATUS.saturated = True
    return 0.0


def reduce(a: dict[str, Any], name: str) -> None:
    """Run vcadd, vcmax, vcmin and the reductions of blocks and pairs."""
    src, dst = a["src"], a["dst"]
    width = 256 // src.size
    enabled = lanes(a["mask"], width)
    group = {"vcadd": width, "vcmax": width, "vcmin": width, "vcpadd": 2}.get(name, 32 // src.size)
    pair = name in ("vcmax", "vcmin")
    for repeat in range(a["repeat_times"]):
        values = {lane: src.lane(repeat, lane, a["src_rep_stride"], a["src_blk_stride"]).get() for lane in enabled}
        start = repeat * a["dst_rep_stride"] * (2 if pair else width // group) * src.size
        for number, first in enumerate(range(0, width, group)):
            inside = [lane for lane in range(first, first + group) if lane in values]
            if name.endswith("add"):
                if inside or name == "vcadd":
                    result = tree([values.get(lane, 0) for lane in range(first, first + group)], src.dtype)
                    dst.at(start + number * src.size).put(result)
            elif inside:
                sign = 1 if name.endswith("max") else -1
                clean = {lane: without_nan(values[lane]) for lane in inside}
                best = max(inside, key=lambda lane: (sign * clean[lane], -lane))
                dst.at(start + number * src.size).put(clean[best])
                if pair:
                    dst.at(start + src.size, "uint16").put(best)


def reduce_add(a: dict[str, Any]) -> None:
    """Run vec_reduce_add: sum each repeat, then the sums."""
    src = a["src"]
    width = 256 // src.size
    enabled = set(lanes(a["mask"], width))
    values = []
    for repeat in range(a["repeat_times"]):
        row = [src.lane(repeat, lane, a["src_rep_stride"]).get() if lane in enabled else 0 for lane in range(width)]
        values.append(tree(row, src.dtype))
    if values:
        a["dst"].put(sums_of_groups(values, width, src.dtype))


def reduce_extreme(a: dict[str, Any], sign: int) -> None:
    """Run vec_reduce_max (sign 1) or vec_reduce_min (sign -1), with the index if asked for."""
    src, best = a["src"], None
    for repeat in range(a["repeat_times"]):
        for lane in lanes(a["mask"], 128):
            value = without_nan(src.lane(repeat, lane, a["src_rep_stride"]).get())
            if best is None or sign * value > sign * best[0]:
                best = (value, repeat * 128 + lane)
    if best is not None:
        a["dst"].put(best[0])
        if a["cal_index"]:
            a["dst"].at(2, "uint16").put(best[1])


def transpose(dst: Pointer, src: Pointer, repeats: int, dst_stride: int, src_stride: int) -> None:
    """Run vec_trans: blocks of 16 by 16."""
    for repeat in range(repeats):
        transpose_fractal(dst.at(repeat * dst_stride * 512), src.at(repeat * src_stride * 512))


def transpose_fractal(dst: Pointer, src: Pointer) -> None:
    """Transpose a fractal of 16 by 16 elements of two bytes."""
    tile = src.load(512)
    dst.store(b"".join(tile[32 * i + 2 * j : 32 * i + 2 * j + 2] for j in range(16) for i in range(16)))


def scatter(a: dict[str, Any]) -> None:
    """Run vnchwconv: 16 blocks of lists transposed."""
    repeats, size = a["repeat_times"], a["dst_list"][0].size
    high, low = (16 * bool(a[name]) if size == 1 else 0 for name in ("dst_high_half", "src_high_half"))
    for repeat in range(repeats):
        step = 1 if repeats == 1 else repeat  # with one repeat the stride is applied once
        first = 32 * step * a["src_rep_stride"] + low
        rows = [p.at(first).load(16 * size) for p in a["src_list"]]
        for e, p in enumerate(a["dst_list"]):
            column = b"".join(row[size * e : size * (e + 1)] for row in rows)
            p.at(32 * step * a["dst_rep_stride"] + high).store(column)


def move(machine: Any, a: dict[str, Any]) -> None:
    """Run data_move and tensor_mov: bursts and gaps of 32 bytes, of fractals in L0C."""
    dst, src = a["dst"], a["src"]
    if src.data.kind == "L0C":
        return leave_l0c(a)
    length, gap = 32 * a["burst"], 32 * a["dst_stride"]
    if dst.data.kind == "L0C":
        length, gap = 256 * dst.size * a["burst"], 256 * dst.size * a["dst_stride"]
    for number in range(a["nburst"]):
        to = dst.at(number * (length + gap))
        at = src.at(number * (length + 32 * a["src_stride"]))
        if machine.atomic and (src.data.kind, dst.data.kind) == ("UB", "GM"):
            for offset in range(0, length, 4):
                to.at(offset).put(to.at(offset).get() + at.at(offset).get())
            continue
        # A GM tensor may end inside the last block.
        to.store(at.load(min(length, len(to.data) - to.address, len(at.data) - at.address)))


def leave_l0c(a: dict[str, Any]) -> None:
    """Move fractals out of L0C, or the first row of each in mode "v"."""
    dst, src, factor, relu = a["dst"], a["src"], a.get("deqscale"), a.get("relu")
    burst, count = (1, 16) if a.get("block_mode") == "v" else (a["burst"], 256)
    for number in range(a["nburst"]):
        to = dst.at(number * (burst * count * dst.size + 32 * a["dst_stride"]))
        at = src.at(number * (burst + a["src_stride"]) * 256 * src.size)
        for element in range(burst * count):
            target, source = to.at(element * dst.size), at.at(element * src.size)
            if factor is not None:
                target.put(source.get() * factor)
            elif relu:
                target.put(ONE["relu"](source.get()))
            elif src.dtype != dst.dtype:
                target.put(source.get())
            else:
                target.store(source.load(src.size))


def broadcast(a: dict[str, Any]) -> None:
    """Run broadcast_ub_to_l0c: 16 elements become the 16 rows of a fractal."""
    width = 16 * a["dst"].size
    for number in range(a["nburst"]):
        for turn in range(a["burst_len"]):
            to = a["dst"].at((number * (a["burst_len"] + a["dst_gap"]) + turn) * 16 * width)
            to.store(16 * a["src"].at(number * (a["burst_len"] * width + 32 * a["src_gap"]) + turn * width).load(width))


def load2d(a: dict[str, Any]) -> None:
    """Run load2dv1: fractals of 512 bytes."""
    for number in range(a["repeat_times"]):
        down = a["addr_mode"] == "dec" and (a["src"].data.kind, a["dst"].data.kind) == ("GM", "L1")
        at = a["src"].at(512 * (a["index"] + number * a["src_stride"] * (-1 if down else 1)))
        to = a["dst"].at(512 * number)
        if a["if_transpose"]:
            transpose_fractal(to, at)
        else:
            to.store(at.load(512))


def load3d(a: dict[str, Any]) -> None:
    """Run load3dv1: the loop of cube.md 9 as printed."""
    left, right, _, _ = a["padding"]
    height, width, pad = a["l1_h"], a["l1_w"], a["pad_value"] or 0
    x, y, fw, fh, c1 = a["left_top_w"], a["left_top_h"], a["fetch_filter_w"], a["fetch_filter_h"], a["c1_index"]
    padding = struct.pack(CODES[a["src"].dtype], pad) * (32 // a["src"].size)
    for number in range(a["repeat_time"]):
        xx, yy = x, y
        for row in range(16):
            hh, ww = yy + fh * a["dilation_filter_h"], xx + fw * a["dilation_filter_w"]
            inside = 0 <= hh < height and 0 <= ww < width
            block = a["src"].at(32 * ((c1 * height + hh) * width + ww)).load(32) if inside else padding
            a["dst"].at(512 * number * a["jump_stride"] + 32 * row).store(block)
            xx += a["stride_w"]
            if xx + (a["filter_w"] - 1) * a["dilation_filter_w"] > width - 1 + right:
                xx, yy = -left, yy + a["stride_h"]
        if a["repeat_mode"] == 1:
            x, y = xx, yy
            continue
        fw += 1
        if fw == a["filter_w"]:
            fw, fh = 0, fh + 1
        if fh == a["filter_h"]:
            fh, c1 = 0, c1 + 1


def element(matrix: Pointer, depth: int, row: int, column: int, pitch: int, down: bool) -> Pointer:
    """Return the place of a matrix's element. Fractals of 16 rows and ``depth`` columns follow each other along the
    rows, or ``down`` the columns, ``pitch`` of them in a line.
    """
    across, along = (column // depth, row // 16) if down else (row // 16, column // depth)
    return matrix.at(((across * pitch + along) * 16 * depth + row % 16 * depth + column % depth) * matrix.size)


def multiply(a: dict[str, Any]) -> None:
    """Run mmad: blocks of 32 bytes along K, in ascending order; each sum is rounded once, each update saturates."""
    m, k, n, dst = a["matrix_m"], a["matrix_k"], a["matrix_n"], a["dst_fm"]
    depth = 32 // a["src_fm"].size
    if m == 1:  # one row is k elements behind each other
        left = [[a["src_fm"].at(c * a["src_fm"].size).get() for c in range(k)]]
    else:
        left = [[element(a["src_fm"], depth, r, c, -(-k // depth), False).get() for c in range(k)] for r in range(m)]
    right = [[element(a["src_filter"], depth, c, r, -(-n // 16), True).get() for r in range(k)] for c in range(n)]
    for r in range(m):
        for c in range(n):
            target = element(dst, 16, r, c, -(-m // 16), True)
            total = target.get() if a["is_bias"] else 0
            for first in range(0, k, depth):
                block = sum(x * y for x, y in zip(left[r][first : first + depth], right[c][first : first + depth]))
                if dst.dtype in LARGEST:
                    total = stored(total + struct.unpack("f", struct.pack("f", block))[0], "float32")
                else:
                    low = 0 if dst.dtype == "uint32" else -(2**31)
                    total = limited(total + block, low, low + 2**32 - 1)
            target.put(total)


def compare_to_register(machine: Any, a: dict[str, Any], function: Callable[[Any, Any], bool]) -> None:
    """Run vcmp: the bits of masked-off lanes stay."""
    for lane in lanes(a["mask"], 256 // a["src0"].size):
        x, y = (place(a, name, 0, lane, True).get() for name in ("src0", "src1"))
        machine.register = machine.register & ~(1 << lane) | function(x, y) << lane


def load_register(machine: Any, a: dict[str, Any]) -> None:
    """Run mov_tensor_to_cmpmask."""
    machine.register = int.from_bytes(a["src"].load(16), "little")


def store_register(machine: Any, a: dict[str, Any]) -> None:
    """Run mov_cmpmask_to_tensor."""
    a["dst"].store(machine.register.to_bytes(16, "little"))


def switch_atomic(machine: Any, a: dict[str, Any]) -> None:
    """Run set_atomic_add."""
    machine.atomic = a["value"] != 0


def _table() -> Iterator[tuple[str, Callable[[Any, dict[str, Any]], None]]]:
    """Yield every instruction by name, as a function of the interpreter and the arguments."""
    for legacy, prefix in ((False, "vec_"), (True, "v")):
        for name, function in ONE.items():
            yield prefix + name, lambda _, a, f=function, k=legacy: vector(a, f, ("src",), k)
        for name, function in TWO.items():
            yield prefix + name, lambda _, a, f=function, k=legacy: vector(a, f, ("src0", "src1"), k)
        for name, key in (("adds", "add"), ("muls", "mul"), ("shl", "shl"), ("shr", "shr")):
            yield (
                f"{prefix}{name}",
                lambda _, a, f=TWO[key], k=legacy: vector(
                    a, lambda x: f(x, stored(a["scalar"], a["dst"].dtype)), ("src",), k
                ),
            )
        yield (
            prefix + "axpy",
            lambda _, a, k=legacy: vector(
                a, multiply_add("axpy", a["dst"].dtype, stored(a["scalar"], a["src"].dtype)), ("src",), k, True
            ),
        )
        yield prefix + "conv", lambda _, a, k=legacy: convert(a, k)
        yield prefix + "sel", lambda machine, a, k=legacy: select(a, k, machine.register)
        for name, function in COMPARE.items():
            yield f"{prefix}cmpv_{name}", lambda _, a, f=function, k=legacy: compare(a, f, k)
    yield "vec_dup", lambda _, a: fill(a, False)
    yield "vector_dup", lambda _, a: fill(a, True)
    for name in ("mla", "madd"):
        yield f"v{name}", lambda _, a, n=name: vector(a, multiply_add(n, a["dst"].dtype), ("src0", "src1"), True, True)
    for name, function in COMPARE.items():
        yield f"vcmp_{name}", lambda machine, a, f=function: compare_to_register(machine, a, f)
    yield "mov_tensor_to_cmpmask", load_register
    yield "mov_cmpmask_to_tensor", store_register
    for name in ("vcadd", "vcmax", "vcmin", "vcgadd", "vcgmax", "vcgmin", "vcpadd"):
        yield name, lambda _, a, n=name: reduce(a, n)
    yield "vec_reduce_add", lambda _, a: reduce_add(a)
    yield "vec_reduce_max", lambda _, a: reduce_extreme(a, 1)
    yield "vec_reduce_min", lambda _, a: reduce_extreme(a, -1)
    yield (
        "vec_trans",
        lambda _, a: transpose(a["dst"], a["src"], a["repeat_times"], a["dst_rep_stride"], a["src_rep_stride"]),
    )
    yield "vtranspose", lambda _, a: transpose(a["dst"], a["src"], 1, 0, 0)
    yield "vnchwconv", lambda _, a: scatter(a)
    yield "vec_trans_scatter", lambda _, a: scatter(a)
    yield "data_move", move
    yield "tensor_mov", move
    yield "broadcast_ub_to_l0c", lambda _, a: broadcast(a)
    yield "set_atomic_add", switch_atomic
    yield "load2dv1", lambda _, a: load2d(a)
    yield "load3dv1", lambda _, a: load3d(a)
    yield "mmad", lambda _, a: multiply(a)


#: By name.
INSTRUCTIONS: dict[str, Callable[[Any, dict[str, Any]], None]] = dict(_table())
