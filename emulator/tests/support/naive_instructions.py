"""Instructions of the naive interpreter, one element at a time.

``INSTRUCTIONS[name](machine, a)``: ``machine.register`` is the compare-mask register, ``a`` holds the arguments by
name, tensors as :class:`Pointer`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from typing import Any

from emulator.tests.support.naive_values import (
    CODES,
    COMPARE,
    ONE,
    TWO,
    Pointer,
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


def vector(
    a: dict[str, Any], function: Callable[..., Any], sources: tuple[str, ...], legacy: bool, reads_dst: bool = False
) -> None:
    """Compute element by element, a repeat's sources before its destination."""
    dst, inputs = a["dst"], [a[name] for name in sources]
    width = 256 // max(p.size for p in (dst, *inputs))
    for repeat in range(a["repeat_times"]):
        results = []
        for lane in lanes(a["mask"], width):
            values = [
                p.lane(repeat, lane, a[f"{name}_rep_stride"], a[f"{name}_blk_stride"] if legacy else 1).get()
                for name, p in zip((*sources, *(["dst"] if reads_dst else [])), (*inputs, dst))
            ]
            results.append((lane, function(*values)))
        for lane, value in results:
            dst.lane(repeat, lane, a["dst_rep_stride"], a["dst_blk_stride"] if legacy else 1).put(value)


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
            place = dst.lane(repeat, lane, a["dst_rep_stride"], a["dst_blk_stride"] if legacy else 1)
            place.copy_from(Pointer(pattern, 0, dst.dtype), dst.size)


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
            x, y = (
                a[name].lane(repeat, lane, a[f"{name}_rep_stride"], a[f"{name}_blk_stride"] if legacy else 1).get()
                for name in ("src0", "src1")
            )
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
            name = "src0" if bits >> lane & 1 else "src1"
            to, source = (
                a[key].lane(repeat, lane, a[f"{key}_rep_stride"], a[f"{key}_blk_stride"] if legacy else 1)
                for key in ("dst", name)
            )
            to.copy_from(source, to.size)


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
                clean = {lane: 0.0 if values[lane] != values[lane] else values[lane] for lane in inside}
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
            value = src.lane(repeat, lane, a["src_rep_stride"]).get()
            value = 0.0 if value != value else value
            if best is None or sign * value > sign * best[0]:
                best = (value, repeat * 128 + lane)
    if best is not None:
        a["dst"].put(best[0])
        if a["cal_index"]:
            a["dst"].at(2, "uint16").put(best[1])


def transpose(dst: Pointer, src: Pointer, repeats: int, dst_stride: int, src_stride: int) -> None:
    """Run vec_trans: blocks of 16 by 16."""
    for repeat in range(repeats):
        tile = bytes(src.data[src.address + repeat * src_stride * 512 :][:512])
        for i in range(16):
            for j in range(16):
                at = dst.address + repeat * dst_stride * 512 + 2 * (16 * j + i)
                dst.data[at : at + 2] = tile[2 * (16 * i + j) : 2 * (16 * i + j) + 2]


def scatter(a: dict[str, Any]) -> None:
    """Run vnchwconv: 16 blocks of lists transposed."""
    repeats, size = a["repeat_times"], a["dst_list"][0].size
    high, low = (16 * bool(a[name]) if size == 1 else 0 for name in ("dst_high_half", "src_high_half"))
    for repeat in range(repeats):
        step = 1 if repeats == 1 else repeat  # with one repeat the stride is applied once
        first = 32 * step * a["src_rep_stride"] + low
        block = [[bytes(p.data[p.address + first + size * e :][:size]) for e in range(16)] for p in a["src_list"]]
        for e, p in enumerate(a["dst_list"]):
            for k in range(16):
                at = p.address + 32 * step * a["dst_rep_stride"] + high + size * k
                p.data[at : at + size] = block[k][e]


def move(a: dict[str, Any]) -> None:
    """Run data_move and tensor_mov between global memory, the Unified Buffer and L1: bursts and gaps of 32 bytes."""
    length = 32 * a["burst"]
    for number in range(a["nburst"]):
        to = a["dst"].at(number * (length + 32 * a["dst_stride"]))
        at = a["src"].at(number * (length + 32 * a["src_stride"]))
        # A GM tensor may end inside the last block.
        count = min(length, len(to.data) - to.address, len(at.data) - at.address)
        to.copy_from(at, count)


def compare_to_register(machine: Any, a: dict[str, Any], function: Callable[[Any, Any], bool]) -> None:
    """Run vcmp: the bits of masked-off lanes stay."""
    for lane in lanes(a["mask"], 256 // a["src0"].size):
        x, y = (a[name].lane(0, lane, 0, a[f"{name}_blk_stride"]).get() for name in ("src0", "src1"))
        machine.register = machine.register & ~(1 << lane) | function(x, y) << lane


def load_register(machine: Any, a: dict[str, Any]) -> None:
    """Run mov_tensor_to_cmpmask."""
    machine.register = int.from_bytes(a["src"].data[a["src"].address : a["src"].address + 16], "little")


def store_register(machine: Any, a: dict[str, Any]) -> None:
    """Run mov_cmpmask_to_tensor."""
    a["dst"].data[a["dst"].address : a["dst"].address + 16] = machine.register.to_bytes(16, "little")


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
    yield "data_move", lambda _, a: move(a)
    yield "tensor_mov", lambda _, a: move(a)


#: By name.
INSTRUCTIONS: dict[str, Callable[[Any, dict[str, Any]], None]] = dict(_table())
