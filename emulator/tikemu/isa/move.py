"""Moves between memories: ``data_move``, ``tensor_mov``, ``broadcast_ub_to_l0c``, ``set_atomic_add``
(core.md 4, cube.md 8)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable

import numpy as np

from ..errors import TikUnsupportedArgumentError, TikUnsupportedError, did_you_mean
from ..program.dtypes import BITS, size_of
from ..program.nodes import as_integer
from . import numerics
from .access import BLOCK, bursts, copier, copiers, defined_view, l0c_alignment
from .call import Call
from .micro_op import MicroOp, Operand, Transfer
from .params import Choice, Count, Fixed, Flag, Integer, Number, Rest, Tensor, is_tensor, memory_kind
from .registry import instruction

ALL = ("GM", "UB", "L1", "L0A", "L0B", "L0C")
#: What the memory can add to (D24).
ATOMIC_DTYPES = ("float32",)
MOVE_ALIGNMENT = {"GM": 1, "UB": BLOCK, "L1": BLOCK}


@dataclass(frozen=True)
class Path:
    """A data path of one core: executing pipe, and the names of its constants in ``soc.timing``."""

    pipe: str
    bandwidth: str
    latency: str
    direction: str = ""  # of GM traffic


PATHS = {
    ("GM", "UB"): Path("MTE2", "gm_read_bandwidth", "gm_read_latency", "read"),
    ("GM", "L1"): Path("MTE2", "gm_read_bandwidth", "gm_read_latency", "read"),
    ("UB", "GM"): Path("MTE3", "gm_write_bandwidth", "gm_write_latency", "write"),
    ("L1", "GM"): Path("MTE3", "gm_write_bandwidth", "gm_write_latency", "write"),
    ("UB", "UB"): Path("V", "ub_ub_bandwidth", "ub_ub_latency"),
    ("UB", "L1"): Path("MTE3", "ub_l1_bandwidth", "ub_l1_latency"),
    ("L1", "UB"): Path("MTE1", "l1_ub_bandwidth", "ub_l1_latency"),
    ("L0C", "UB"): Path("V", "l0c_ub_bandwidth", "l0c_to_ub_latency"),
    ("UB", "L0C"): Path("V", "ub_l0c_bandwidth", "l0c_to_ub_latency"),
}
_MISSING = {
    ("L0C", "GM"): "L0C reaches global memory only through the Unified Buffer (or with fixpipe)",
    ("L0C", "L1"): "L0C reaches L1 only through the Unified Buffer",
}


def _check_path(call: Call) -> tuple[str, str]:
    path = memory_kind(call.args["src"]), memory_kind(call.args["dst"])
    if path == ("UB", "L0C") and call.api != "data_move":
        call.fail("no move from UB to L0C: use data_move or broadcast_ub_to_l0c", TikUnsupportedArgumentError)
    if path not in PATHS:
        reason = _MISSING.get(path, "Ascend 910 has no such data path")
        call.fail(f"no move from {path[0]} to {path[1]}: {reason}", TikUnsupportedArgumentError)
    check_documented(call, path)
    return path


def check_documented(call: Call, path: tuple[str, str]) -> None:
    """Note a move that the documents leave out: it is questionable."""
    if path == ("L1", "GM") and not call.runtime:
        call.questionable(
            "undocumented", "the product list of Ascend 910 has no move from L1 to GM", TikUnsupportedArgumentError
        )


def _alignment(value: Any, call: Call) -> int:
    memory = memory_kind(value)
    return l0c_alignment(value, call) if memory == "L0C" else MOVE_ALIGNMENT.get(memory, 1)


def _check_plain(call: Call) -> None:
    """Require one dtype on both sides of a plain copy."""
    src, dst = call.args["src"].dtype, call.args["dst"].dtype
    if src != dst:
        call.fail(f"src and dst must have the same dtype, got src {src}, dst {dst}")


# ------------------------------------------------------------------------------------------------------ plain copies
def move_blocks(call: Call, dst: Operand, src: Operand, nburst: int, burst: int, src_gap: int, dst_gap: int) -> MicroOp:
    """Copy ``nburst`` bursts of ``burst`` bytes; gaps in bytes, end to start."""
    memories = src.memory.kind, dst.memory.kind
    path = PATHS[memories]
    direction = path.direction
    src_pitch, dst_pitch = burst + src_gap, burst + dst_gap
    reads = bursts(call, "src", src, nburst, burst, src_pitch)
    writes = bursts(call, "dst", dst, nburst, burst, dst_pitch)
    overlap = reads.region.overlaps(writes.region)
    if src_gap == dst_gap == 0 and not overlap:
        nburst, burst, src_pitch, dst_pitch = 1, nburst * burst, 0, 0
    shape = (nburst, burst)

    def moved(addresses: Sequence[int]) -> tuple[Callable[[], None], Callable[[], None] | None]:
        to, origin = addresses
        return copiers(dst.memory, to, src.memory, origin, shape, (dst_pitch, 1), (src_pitch, 1))

    run, run_defined = moved((dst.address, src.address))
    if overlap:
        call.questionable("overlap", "source and destination overlap inside one call; the result is not defined")
        run = _burst_by_burst(
            dst.memory.view("uint8", dst.address, shape, (dst_pitch, 1)),
            src.memory.view("uint8", src.address, shape, (src_pitch, 1)),
        )
    if direction == "write" and call.core.atomic_add and memories == ("UB", "GM"):
        if dst.dtype not in ATOMIC_DTYPES:
            call.fail(f"atomic add into GM exists for float32 only, got {dst.dtype}", TikUnsupportedError)
        direction, run_defined = "atomic", None
        run = atomic_add(
            dst.memory.view("float32", dst.address, (nburst, burst // 4), (dst_pitch, 4)),
            src.memory.view("float32", src.address, (nburst, burst // 4), (src_pitch, 4)),
        )
    timing, transfer, cycles = call.soc.timing, None, 0.0
    if direction:
        transfer = Transfer(direction, nburst, burst, src_pitch if direction == "read" else dst_pitch)
    else:
        cycles = nburst * burst / getattr(timing, path.bandwidth)
        if path.pipe == "V":  # a burst takes whole beats of the vector unit
            cycles = nburst * math.ceil(cycles / nburst)
    touched = (reads, writes) if direction == "atomic" else (reads,)
    cycles = max(timing.vector_minimum, cycles)
    result = call.operation(
        cycles, path.latency, touched, (writes,), run, pipe=path.pipe, transfer=transfer, constants=(path.bandwidth,)
    )
    result.run_defined, result.operands = run_defined, (dst, src)
    if not overlap and direction != "atomic":
        result.moved = moved
    return result


def _burst_by_burst(target: np.ndarray, source: np.ndarray) -> Callable[[], None]:
    """Move bursts in ascending order, each read completely before it is written (D21c)."""

    def run() -> None:
        for row in range(len(target)):
            target[row] = source[row].copy()

    return run


def atomic_add(target: np.ndarray, source: np.ndarray) -> Callable[[], None]:
    """Return a function that adds in float32, ``GM += UB``: round to nearest even, saturating (D6, D24)."""

    def run() -> None:
        target[...] = numerics.saturate(target + source)

    return numerics.watched(run)


# ----------------------------------------------------------------------------------------------------- moves from L0C
def _cast(src: np.dtype, dst: np.dtype, factor: float | None, relu: bool) -> Callable[[np.ndarray], np.ndarray]:
    """Return the conversion on the path from L0C to the Unified Buffer (D23b, D23d)."""

    def convert(values: np.ndarray) -> np.ndarray:
        if factor is not None:
            return numerics.dequantise(values, factor).view(np.float16)
        if src.kind != "f":
            return np.maximum(values, dst.type(0))
        values = values.astype(np.float32, order="C")
        if relu:
            values = numerics.UNARY["relu"](values)
        return numerics.saturate(values) if dst.itemsize == 4 else numerics.narrow(values).view(np.float16)

    return convert


def move_from_l0c(
    call: Call,
    dst: Operand,
    src: Operand,
    nburst: int,
    elements: int,
    src_pitch: int,
    dst_pitch: int,
    *,
    factor: float | None = None,
    relu: bool = False,
) -> MicroOp:
    """Move ``nburst`` bursts of ``elements`` elements from L0C to the Unified Buffer; pitches in bytes."""
    src_size, dst_size = size_of(src.dtype), size_of(dst.dtype)
    reads = bursts(call, "src", src, nburst, elements * src_size, src_pitch)
    writes = bursts(call, "dst", dst, nburst, elements * dst_size, dst_pitch)
    source = src.memory.view(src.dtype, src.address, (nburst, elements), (src_pitch, src_size))
    target = dst.memory.view(dst.dtype, dst.address, (nburst, elements), (dst_pitch, dst_size))
    select = None
    if src.memory.defined is not None:  # undefined elements of the padding are no results
        bits = defined_view(src.memory, src.address, (nburst, elements), (src_pitch, src_size))

        def select(where: np.ndarray) -> np.ndarray:
            return where & (bits != 0)

    if factor is None and not relu and src.dtype == dst.dtype:
        run = copier(target.view(f"u{src_size}"), source.view(f"u{src_size}"))
    else:
        convert = _cast(source.dtype, target.dtype, factor, relu)

        def run() -> None:
            target[...] = convert(source)

        run = numerics.watched(run, select)

    run_defined = None
    if dst.memory.defined is not None and src.memory.defined is not None:
        # L0C is written by whole elements: the bit of an element's first byte stands for the element.
        shape = (nburst, elements, dst_size)
        run_defined = copier(
            defined_view(dst.memory, dst.address, shape, (dst_pitch, dst_size, 1)),
            defined_view(src.memory, src.address, shape, (src_pitch, src_size, 0)),
        )
    timing = call.soc.timing
    cycles = max(timing.vector_minimum, nburst * elements * src_size / timing.l0c_ub_bandwidth)
    constants = ("l0c_ub_bandwidth",)
    return call.operation(
        cycles, "l0c_to_ub_latency", (reads,), (writes,), run, pipe="V", run_defined=run_defined, constants=constants
    )


def move_fractals(
    call: Call,
    dst: Operand,
    src: Operand,
    nburst: int,
    burst: int,
    src_gap: int,
    dst_gap: int,
    *,
    factor: float | None = None,
    relu: bool = False,
) -> MicroOp:
    """Move fractals from L0C in matrix mode: bursts of ``burst`` fractals of 256 elements; ``src_gap`` in fractals,
    ``dst_gap`` in blocks.
    """
    return move_from_l0c(
        call,
        dst,
        src,
        nburst,
        burst * 256,
        (burst + src_gap) * 256 * size_of(src.dtype),
        burst * 256 * size_of(dst.dtype) + dst_gap * BLOCK,
        factor=factor,
        relu=relu,
    )


# -------------------------------------------------------------------------------------------------------- data_move
def _move_mode(call: Call) -> int | None:
    """Return the mode, which is the 8th argument: 1 converts float32 to float16 on the path from L0C. None without."""
    extra = tuple(call.args["args"])
    keywords = dict(call.args["argv"])
    if "mode" in keywords and not extra:
        extra = (keywords.pop("mode"),)
    if keywords:
        name = next(iter(keywords))
        hint = did_you_mean(name, call.args)
        call.fail(f"extension argument {name!r} has no specification{hint}", TikUnsupportedArgumentError)
    if len(extra) > 1 or (extra and extra[0] not in (None, 0, 1)):
        call.fail(
            f"the only extension argument with a specification is the 8th, 0 or 1, got {extra!r}",
            TikUnsupportedArgumentError,
        )
    return None if not extra or extra[0] is None else int(extra[0])


def _check_data_move(call: Call) -> None:
    path = _check_path(call)
    mode = _move_mode(call)
    if path[0] != "L0C" and mode is not None:
        call.questionable(
            "argument",
            f"the 8th argument counts on the path from L0C only; {mode} has no effect from {path[0]} to {path[1]}",
            TikUnsupportedArgumentError,
        )
        mode = None
    if not mode:
        _check_plain(call)
    elif (call.args["src"].dtype, call.args["dst"].dtype) != ("float32", "float16"):
        call.fail(
            "the 8th argument 1 converts float32 in L0C to float16 in the Unified "
            f"Buffer, got {call.args['src'].dtype} in {path[0]} to "
            f"{call.args['dst'].dtype} in {path[1]}",
            TikUnsupportedArgumentError,
        )


def _gap(name: str) -> Integer:
    return Integer(name, 0, 65535)


@instruction(
    "data_move",
    params=(
        Tensor("dst", ALL, align=_alignment),
        Tensor("src", ALL, align=_alignment),
        Integer("sid", 0, 15),
        Count("nburst", 4095),
        Count("burst", 65535),
        _gap("src_stride"),
        _gap("dst_stride"),
        Rest("args"),
        Rest("argv", keywords=True),
    ),
    typed=("dst",),
    dtypes=tuple(BITS),
    checker=_check_data_move,
    pipe="MTE2/MTE3/MTE1/V",
)
def data_move(call: Call, a: Any) -> MicroOp:
    """Copy bursts of 32-byte blocks between memories, or fractals for L0C (D22)."""
    if a.src.memory.kind == "L0C":
        return move_fractals(call, a.dst, a.src, a.nburst, a.burst, a.src_stride, a.dst_stride)
    if a.dst.memory.kind == "L0C":
        fractal = 256 * size_of(a.dst.dtype)
        return move_blocks(
            call, a.dst, a.src, a.nburst, a.burst * fractal, a.src_stride * BLOCK, a.dst_stride * fractal
        )
    return move_blocks(call, a.dst, a.src, a.nburst, a.burst * BLOCK, a.src_stride * BLOCK, a.dst_stride * BLOCK)


# -------------------------------------------------------------------------------------------------------- tensor_mov
def _check_tensor_mov(call: Call) -> None:
    path = _check_path(call)
    args = call.args
    mode, deqscale, relu = args["block_mode"], args["deqscale"], args["relu"]
    src, dst = args["src"].dtype, args["dst"].dtype
    if args["extra"]:
        call.fail(f"argument {next(iter(args['extra']))!r} has no specification", TikUnsupportedArgumentError)
    if mode == "":
        if path[0] == "L0C":
            call.fail("block_mode '' does not move out of L0C; use 'm'", TikUnsupportedArgumentError)
        if deqscale is not None or relu:
            call.fail("deqscale and relu exist on the path from L0C only", TikUnsupportedArgumentError)
        _check_plain(call)
        return
    if path != ("L0C", "UB"):
        call.fail(f"block_mode {mode!r} moves from L0C to UB, got {path[0]} to {path[1]}", TikUnsupportedArgumentError)
    if mode == "v":
        _check_rows(call, as_integer(args["burst"]))
    if deqscale is not None:
        if (src, dst) not in (("int32", "float16"), ("float16", "float16")):
            call.fail(f"deqscale converts int32 or float16 to float16, got {src} to {dst}", TikUnsupportedArgumentError)
        if relu:
            call.fail("relu together with deqscale has no specification on Ascend 910", TikUnsupportedArgumentError)
    elif (src, dst) == ("int32", "float16"):
        call.fail("the move from int32 to float16 needs deqscale")
    elif src != dst and (src, dst) != ("float32", "float16"):
        call.fail(f"Ascend 910 does not convert {src} to {dst} on the path from L0C", TikUnsupportedArgumentError)


def _check_rows(call: Call, burst: int | None) -> None:
    """Check D23c; None stands for a value known at run time."""
    if burst not in (None, 1):
        call.fail(f"block_mode 'v' is specified for burst 1 only, got {burst}", TikUnsupportedArgumentError)


class _Deqscale(Number):
    """A scalar factor; packed and per-channel factors are for later chips."""

    def check(self, value: Any, call: Call) -> None:
        if isinstance(value, (list, tuple)) or is_tensor(value):
            call.fail(
                "deqscale must be a number or Scalar; vectors of factors are for Ascend 310P",
                TikUnsupportedArgumentError,
            )
        super().check(value, call)


_MODES = Choice("block_mode", ("", "m", "v"), error=TikUnsupportedArgumentError)


@instruction(
    "tensor_mov",
    params=(
        Tensor("dst", ALL, align=_alignment),
        Tensor("src", ALL, align=_alignment),
        _MODES,
        Count("nburst", 4095),
        Count("burst", 65535),
        _gap("dst_stride"),
        _gap("src_stride"),
        _Deqscale("deqscale", dtypes=("float16", "float32"), default=None),
        Fixed("sid_store_mode", 0, "other modes have no specification"),
        Flag("relu", False),
        Fixed("pad_mode", None, "padding has no specification"),
        Fixed("pad_value", None, "padding has no specification"),
        Rest("extra", keywords=True),
    ),
    typed=("dst",),
    dtypes=tuple(BITS),
    checker=_check_tensor_mov,
    pipe="MTE2/MTE3/MTE1/V",
)
def tensor_mov(call: Call, a: Any) -> MicroOp:
    """Move as data_move does, with dst_stride before src_stride. Modes 'm' and 'v' move out of L0C."""
    if a.block_mode == "":
        return move_blocks(call, a.dst, a.src, a.nburst, a.burst * BLOCK, a.src_stride * BLOCK, a.dst_stride * BLOCK)
    factor = None if a.deqscale is None else float(a.deqscale)
    relu = bool(a.relu)
    if a.block_mode == "m":
        return move_fractals(
            call, a.dst, a.src, a.nburst, a.burst, a.src_stride, a.dst_stride, factor=factor, relu=relu
        )
    _check_rows(call, a.burst)
    return move_from_l0c(
        call,
        a.dst,
        a.src,
        a.nburst,
        16,
        (1 + a.src_stride) * 256 * size_of(a.src.dtype),
        16 * size_of(a.dst.dtype) + a.dst_stride * BLOCK,
        factor=factor,
        relu=relu,
    )


# -------------------------------------------------------------------------------------------------------- broadcast
@instruction(
    "broadcast_ub_to_l0c",
    params=(
        Tensor("dst", ("L0C",), align=l0c_alignment),
        Tensor("src"),
        Count("nburst", 255),
        Count("burst_len", 255),
        _gap("src_gap"),
        _gap("dst_gap"),
    ),
    dtypes=("float16", "float32", "int32"),
    pipe="V",
)
def broadcast_ub_to_l0c(call: Call, a: Any) -> MicroOp:
    """Repeat each group of 16 Unified Buffer elements over 16 rows of an L0C fractal."""
    size = size_of(a.dst.dtype)
    src_pitch = a.burst_len * 16 * size + a.src_gap * BLOCK
    dst_pitch = (a.burst_len + a.dst_gap) * 256 * size
    reads = bursts(call, "src", a.src, a.nburst, a.burst_len * 16 * size, src_pitch)
    writes = bursts(call, "dst", a.dst, a.nburst, a.burst_len * 256 * size, dst_pitch)
    shape = (a.nburst, a.burst_len, 16, 16 * size)
    src_strides = (src_pitch, 16 * size, 0, 1)
    dst_strides = (dst_pitch, 256 * size, 16 * size, 1)
    to, at = a.dst.address, a.src.address
    run, run_defined = copiers(a.dst.memory, to, a.src.memory, at, shape, dst_strides, src_strides)
    cycles = a.nburst * a.burst_len * 256 * size / call.soc.timing.ub_l0c_bandwidth
    constants = ("ub_l0c_bandwidth",)
    return call.operation(
        cycles, "l0c_to_ub_latency", (reads,), (writes,), run, run_defined=run_defined, constants=constants
    )


# -------------------------------------------------------------------------------------------------------- atomic add
@instruction(
    "set_atomic_add",
    params=(Choice("value", (0, 1, *ATOMIC_DTYPES), error=TikUnsupportedArgumentError),),
    dtypes=ATOMIC_DTYPES,
    pipe="S",
)
def set_atomic_add(call: Call, a: Any) -> MicroOp:
    """Switch atomic addition of later moves to GM: on (1, "float32") or off (0)."""
    core, on = call.core, a.value != 0

    def run() -> None:
        core.atomic_add = on

    return call.operation(call.soc.timing.scalar_cycles, run=run, constants=("scalar_cycles",))
