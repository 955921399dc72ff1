"""High-level Cube APIs: ``matmul`` and ``fixpipe`` as loads, products and moves (cube.md 5, 7, D28)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Callable

from ..errors import TikUnsupportedArgumentError
from ..program.dtypes import size_of
from .access import BLOCK, FRACTAL, l0c_alignment
from .call import Call
from .cube import load_fractals, multiply
from .highlevel import filled
from .lowering import Lowering, chunks, window
from .micro_op import MicroOp, Operand
from .move import move_blocks
from .params import Fixed, Flag, Integer, Param, Tensor, describe, is_tensor, memory_kind
from .registry import instruction

TILE = 32768 // FRACTAL  # most fractals of an operand tile: half of L0A or L0B, for double buffering (D28a)


@dataclass(frozen=True)
class Tile:
    """A tile of A or B in fractals: first and count along M or N, first and count along K; and its place in L0."""

    buffer: Operand
    first: int
    count: int
    first_k: int
    count_k: int


def _product(
    low: Lowering,
    a: Any,
    sizes: tuple[int, int, int],
    dtypes: tuple[str, str],
    load_left: Callable[[Tile], None],
    load_right: Callable[[Tile], None],
) -> list[MicroOp]:
    """Compute C (+)= A B, or bias + A B, over tiles. The ``mmad`` of a tile leaves it contiguous in L0C.

    ``a``: the arguments ``dst``, ``bias`` and ``init_l1out``.
    """
    dst, accumulate = a.dst, not a.init_l1out or a.bias is not None
    m, k, n = sizes
    k0 = BLOCK // size_of(dtypes[0])
    m1, k1, n1 = -(-m // 16), -(-k // k0), -(-n // 16)
    if a.bias is not None and a.init_l1out:
        _add_bias(low, dst, a.bias, m1, n1)
    limit = max(1, min(TILE, *(low.free(kind) // (2 * FRACTAL) for kind in ("L0A", "L0B"))))
    tile_m = min(m1, limit)
    # mmad packs the fractals of its result. So a tile that does not have all rows has one column of fractals.
    tile_n = min(n1, limit) if tile_m == m1 else 1
    tile_k = min(k1, max(1, limit // max(tile_m, tile_n)))
    single = (tile_m, tile_n, tile_k) == (m1, n1, k1)
    buffers = [
        [low.scratch(kind, dtype, tile * tile_k * FRACTAL // size_of(dtype)) for _ in range(1 if single else 2)]
        for kind, dtype, tile in zip(("L0A", "L0B"), dtypes, (tile_m, tile_n))
    ]
    turn = 0
    for first_m in range(0, m1, tile_m):
        count_m = min(tile_m, m1 - first_m)
        for first_n in range(0, n1, tile_n):
            count_n = min(tile_n, n1 - first_n)
            target = window(dst, (first_n * m1 + first_m) * 256 * size_of(dst.dtype))
            for first_k in range(0, k1, tile_k):
                count_k = min(tile_k, k1 - first_k)
                left, right = buffers[0][turn % len(buffers[0])], buffers[1][turn % len(buffers[1])]
                load_left(Tile(left, first_m, count_m, first_k, count_k))
                load_right(Tile(right, first_n, count_n, first_k, count_k))
                valid = (
                    min(16 * count_m, m - 16 * first_m),
                    min(k0 * count_k, k - k0 * first_k),
                    min(16 * count_n, n - 16 * first_n),
                )
                onto = accumulate or first_k > 0
                low.append("mmad", multiply(low.call, target, left, right, *valid, onto, gemv=False))
                turn += 1
    return low.ops


def _load_rows(low: Lowering, src: Operand, rows: int, tile: Tile) -> None:
    """Move a tile of a (K1, rows, K0) matrix into L0A, fractal rows outermost."""
    for row in range(tile.count):
        target = window(tile.buffer, row * tile.count_k * FRACTAL)
        start = src.address + (tile.first_k * rows + tile.first + row) * FRACTAL
        low.append("load2d", load_fractals(low.call, target, src, start, tile.count_k, rows * FRACTAL, False))


def _load_columns(low: Lowering, src: Operand, columns: int, tile: Tile) -> None:
    """Move a tile of a (K1, columns, K0) matrix into L0B, K blocks outermost."""
    start = src.address + (tile.first_k * columns + tile.first) * FRACTAL
    if tile.count == columns:
        count = tile.count * tile.count_k
        low.append("load2d", load_fractals(low.call, tile.buffer, src, start, count, FRACTAL, False))
        return
    for block in range(tile.count_k):
        target, source = window(tile.buffer, block * tile.count * FRACTAL), start + block * columns * FRACTAL
        low.append("load2d", load_fractals(low.call, target, src, source, tile.count, FRACTAL, False))


def _add_bias(low: Lowering, dst: Operand, bias: Operand, rows: int, columns: int) -> None:
    """Start values of the accumulator: ``bias`` in every row (D28c)."""
    size = 16 * columns * size_of(dst.dtype)
    if bias.memory.kind == "L1":
        held = low.scratch("UB", bias.dtype, 16 * columns)
        low.append("data_move", move_blocks(low.call, held, bias, 1, size, 0, 0))
    else:
        held = bias
    for row in range(rows):
        target = window(dst, row * 256 * size_of(dst.dtype))
        for first in range(0, columns, 255):
            low.emit(
                "broadcast_ub_to_l0c",
                window(target, first * rows * 256 * size_of(dst.dtype)),
                window(held, first * 16 * size_of(dst.dtype)),
                min(255, columns - first),
                1,
                0,
                rows - 1,
            )


# ------------------------------------------------------------------------------------------------------------ matmul
_PRODUCT_DTYPES = (("float32", "float16", "float16"), ("int32", "int8", "int8"))
_BIAS = Tensor("bias", ("L1", "UB"), align=BLOCK, like="dst", default=None)


def _check_matmul(call: Call) -> None:
    high = 32768 if call.args["a"].dtype == "int8" else 16384
    if not 1 <= call.args["k"] <= high:
        call.fail_range("k", call.args["k"], f"in [1, {high}] for {call.args['a'].dtype}")


@instruction(
    "matmul",
    params=(
        Tensor("dst", ("L0C",), align=l0c_alignment),
        Tensor("a", ("L1",), align=BLOCK),
        Tensor("b", ("L1",), align=BLOCK),
        Integer("m", 1, 4096, immediate=True),
        Integer("k", 1, 32768, immediate=True),
        Integer("n", 1, 4096, immediate=True),
        Flag("init_l1out", True),
        _BIAS,
    ),
    dtypes=_PRODUCT_DTYPES,
    composite=True,
    checker=_check_matmul,
    pipe="MTE1/M",
)
def matmul(call: Call, a: Any) -> list[MicroOp]:
    """Multiply matrices of L1 into dst [N1, M, 16].

    The left matrix is a [K1, M, K0], the right b [K1, N, K0], transposed; m, k, n may be odd.
    """
    low = Lowering(call)
    load_left = partial(_load_rows, low, a.a, -(-a.m // 16))
    load_right = partial(_load_columns, low, a.b, -(-a.n // 16))
    return _product(low, a, (a.m, a.k, a.n), (a.a.dtype, a.b.dtype), load_left, load_right)


# ----------------------------------------------------------------------------------------------------------- fixpipe
_QUANTISATION = {"fp322fp16": ("float32", "float16"), "int322fp16": ("int32", "float16")}
_EXTENSIONS = ("bias", "quantize_params", "relu")


class Extensions(Param):
    """``extend_params`` of fixpipe: a dict with "bias", "quantize_params" and "relu"."""

    def check(self, value: Any, call: Call) -> None:
        if value is None:
            return
        if not isinstance(value, dict):
            call.fail(f"{self.name} must be a dict or None, got {describe(value)}")
        for key in value:
            if key not in _EXTENSIONS:
                call.fail(f"{self.name} knows {', '.join(_EXTENSIONS)}, got {key!r}")
        bias = value.get("bias")
        if bias is not None:
            if not is_tensor(bias) or memory_kind(bias) != "L1":
                call.fail(f"bias in {self.name} must be a tensor in L1 (scope_cbuf), got {describe(bias)}")
            if bias.dtype != call.args["src"].dtype:
                call.fail(
                    f"bias in {self.name} must have the dtype of src ({call.args['src'].dtype}), got {bias.dtype}"
                )
        if not isinstance(value.get("relu", False), bool) and value["relu"] is not None:
            call.fail(f"relu in {self.name} must be a bool, got {describe(value['relu'])}")
        quantisation = value.get("quantize_params")
        if quantisation is not None and (
            not isinstance(quantisation, dict) or set(quantisation) - {"mode", "mode_param"}
        ):
            call.fail(f"quantize_params in {self.name} must be a dict with mode and mode_param, got {quantisation!r}")


#: Scratch memory is cut in pieces of so many bytes.
_ALIGNED = 1024
#: Bursts of one move at most.
_MOST_BURSTS = 4095


def _check_fixpipe(call: Call) -> None:
    src, dst = call.args["src"].dtype, call.args["dst"].dtype
    quantisation = (call.args["extend_params"] or {}).get("quantize_params") or {}
    mode, factor = quantisation.get("mode"), quantisation.get("mode_param")
    if mode is not None and mode not in _QUANTISATION:
        call.fail(
            f"quantize_params mode must be one of {list(_QUANTISATION)!r}, got {mode!r}", TikUnsupportedArgumentError
        )
    if is_tensor(factor):
        call.fail("mode_param per channel is not specified for Ascend 910; pass a number", TikUnsupportedArgumentError)
    expected = (src, src) if mode is None else _QUANTISATION[mode]
    if (src, dst) != expected:
        hint = "" if mode else "; a conversion needs quantize_params"
        call.fail(f"mode {mode!r} takes src {expected[0]} and dst {expected[1]}, got src {src} and dst {dst}{hint}")
    if mode == "int322fp16" and factor is None:
        call.fail("mode 'int322fp16' needs mode_param, the factor")
    if mode == "fp322fp16" and factor is not None:
        call.fail(f"mode 'fp322fp16' takes no mode_param, got {describe(factor)}")
    rows = call.args["burst_len"]
    if isinstance(rows, int) and rows % 2:
        call.fail(f"burst_len must be even (rows of 16 elements of {src} are 2 blocks), got {rows}")


@instruction(
    "fixpipe",
    params=(
        Tensor("dst", ("GM", "UB")),
        Tensor("src", ("L0C",), align=l0c_alignment),
        Integer("cburst_num", 1, 4095),
        Integer("burst_len", 1, 65535),
        Integer("dst_stride", 0, 65535),
        Fixed("src_stride", 0, "reserved; bursts of src follow one another, padded to 16 rows"),
        Extensions("extend_params", None),
    ),
    typed=("src",),
    dtypes=("float32", "int32"),
    composite=True,
    checker=_check_fixpipe,
    pipe="V/MTE3",
)
def fixpipe(call: Call, a: Any) -> list[MicroOp]:
    """Bring a product [N1, M, 16] from L0C to GM as [N1, m, 16]: bias, conversion, relu, without the padding rows."""
    extensions = a.extend_params or {}
    quantisation = extensions.get("quantize_params") or {}
    bias, relu = extensions.get("bias"), bool(extensions.get("relu"))
    src_size, dst_size = size_of(a.src.dtype), size_of(a.dst.dtype)
    rows, rest = divmod(a.burst_len * BLOCK, 16 * src_size)
    if rest:
        call.fail(f"burst_len must give whole rows of 16 elements of {a.src.dtype}, got {a.burst_len}")
    padded = -(-rows // 16) * 16
    low = Lowering(call)
    factor = quantisation.get("mode_param")
    convert = a.src.dtype != a.dst.dtype
    held = a.src.dtype if bias is not None or not convert else a.dst.dtype
    apart = bias is not None and convert
    # A move out of L0C and a move to GM for as many columns as the Unified Buffer has room for (D28b).
    room = low.free("UB") - _ALIGNED * (1 + apart + (bias is not None) + relu)
    columns = room // (padded * 16 * (size_of(held) + apart * dst_size))
    columns = max(1, min(a.cburst_num, columns, _MOST_BURSTS))
    column = low.scratch("UB", held, columns * padded * 16)
    converted = low.scratch("UB", a.dst.dtype, columns * padded * 16) if apart else column
    addend = low.scratch("UB", a.src.dtype, 64) if bias is not None else None
    zeros = filled(low, a.dst.dtype, 0) if relu else None
    for first_column in range(0, a.cburst_num, columns):
        count = min(columns, a.cburst_num - first_column)
        source = window(a.src, first_column * padded * 16 * src_size, count * padded * 16)
        deqscale = {"deqscale": factor} if held == "float16" and a.src.dtype == "int32" else {}
        low.emit("tensor_mov", column, source, "m", 1, count * padded // 16, 0, 0, **deqscale)
        for number in range(count):
            part = window(column, number * padded * 16 * size_of(held), padded * 16)
            result = window(converted, number * padded * 16 * dst_size, padded * 16)
            if bias is not None:
                at = (first_column + number) * 16 * src_size
                _add_to_rows(low, part, addend, window(bias, at, 16), rows)
            if apart:
                for first, mask, repeats in chunks(rows * 16, 64):
                    piece, origin = window(result, first * dst_size), window(part, first * src_size)
                    low.emit("vconv", mask, "none", piece, origin, repeats, 1, 1, 4, 8, factor)
            if relu:
                for first, mask, repeats in chunks(rows * 16, 256 // dst_size):
                    piece = window(result, first * dst_size)
                    low.emit("vmax", mask, piece, piece, zeros, repeats, 1, 1, 1, 8, 8, 0)
        size, gap = rows * 16 * dst_size, a.dst_stride * BLOCK
        target = window(a.dst, first_column * (size + gap), rows * 16)
        low.append("data_move", move_blocks(call, target, converted, count, size, (padded - rows) * 16 * dst_size, gap))
    return low.ops


def _add_to_rows(low: Lowering, column: Operand, addend: Operand, bias: Operand, rows: int) -> None:
    """Add 16 values to each of ``rows`` rows: four rows a repeat, the values held four times."""
    size = 16 * size_of(bias.dtype)
    for copy in range(4):
        low.append("data_move", move_blocks(low.call, window(addend, copy * size), bias, 1, size, 0, 0))
    for first, mask, repeats in chunks(16 * rows, 64):
        part = window(column, first * size // 16)
        low.emit("vadd", mask, part, part, addend, repeats, 1, 1, 1, 8, 8, 0)
