"""Element-wise vector instructions: one and two sources, with a scalar, multiply-add, fill, bit operations, shifts.

Two families share their semantics: ``vec_*`` (blocks of a repeat are contiguous) and the legacy ``v*`` with block
strides. Signatures and dtypes: vector.md 1.6, 2.1-2.5, 3.1, 3.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Callable

import numpy as np

from ..program.dtypes import size_of
from . import numerics
from .call import Call
from .params import Fixed, MaskMode, Number, Param, Tensor, repeat, stride
from .registry import instruction
from .vector_engine import (
    BLOCK,
    Arithmetic,
    Walk,
    element_wise,
    finish,
    make_rescalable,
    require_different,
    span_access,
)
from .vector_mask import Lanes, Mask

FLOATS = ("float16", "float32")
BITS16 = ("int16", "uint16")
BLK_WIDE = 65535  # block strides have 16 bits in one-source instructions, 8 bits in two-source instructions (D16a)


def legacy_tail() -> tuple[Param, ...]:
    """Return the trailing arguments of legacy wrappers. Only the defaults exist on Ascend 910 (D16f)."""
    return (Fixed("stride_unit", 0, "strides count blocks of 32 bytes on Ascend 910"), MaskMode())


def walks(call: Call, a: Any, names: tuple[str, ...], lanes: Lanes, repeats: int, legacy: bool) -> list[Walk]:
    """Return the walks of the named operands, strides taken from ``<name>_rep_stride`` and ``<name>_blk_stride``."""
    return [
        Walk(
            name,
            getattr(a, name),
            lanes,
            repeats,
            BLOCK * getattr(a, f"{name}_rep_stride"),
            BLOCK * (_block_stride(call, a, name, lanes) if legacy else 1),
        )
        for name in names
    ]


def _block_stride(call: Call, a: Any, name: str, lanes: Lanes) -> int:
    """Return an operand's block stride. 0 broadcasts a block of a source; for dst it is taken as 1 (D16g)."""
    step = getattr(a, f"{name}_blk_stride")
    if step == 0 and name == "dst" and lanes.extent * size_of(a.dst.dtype) > BLOCK:
        call.questionable(
            "argument", "dst_blk_stride 0 has no described meaning for more than one block; it is taken as 1"
        )
        return 1
    return step


# ------------------------------------------------------------------------------------------- parameter lists
def strides(names: tuple[str, ...], legacy: bool, blk_high: int) -> tuple[Param, ...]:
    """Return the parameters for strides of the named operands. In the legacy family block strides come first."""
    blocks = tuple(stride(f"{name}_blk_stride", blk_high) for name in names) if legacy else ()
    return blocks + tuple(stride(f"{name}_rep_stride") for name in names)


def parameters(names: tuple[str, ...], legacy: bool, *scalar: Param, tail: tuple[Param, ...] = ()) -> tuple[Param, ...]:
    """List mask, operands, scalar, repeats and strides. ``tail`` ends the list of ``vec_*``, the legacy one has its
    own.
    """
    high = BLK_WIDE if len(names) < 3 else 255
    end = legacy_tail() if legacy else tail
    return (Mask(), *map(Tensor, names), *scalar, repeat(), *strides(names, legacy, high), *end)


# ------------------------------------------------------------------------------------------- arithmetic
def unary(name: str, a: Any) -> Arithmetic:
    """Return the arithmetic of a function of ``numerics.UNARY``: on float16 a table, on float32 computed."""
    if name == "not":
        return Arithmetic(np.invert, "bits16", "not")
    dtype = a.dst.dtype
    if dtype == "float16":
        table = numerics.half_table(name)
        return Arithmetic(numerics.look_up(table), "bits16", "table", table, raw=True)
    if dtype == "int32":
        return Arithmetic(lambda x: np.maximum(x, 0))
    function = numerics.UNARY[name]
    tables = {"rec": numerics.reciprocal_table, "rsqrt": numerics.rsqrt_table}
    table = tables[name]() if name in tables else None
    compiled = "float" if name in ("abs", "relu", "sqrt", *tables) else None
    return Arithmetic(lambda x: finish(function(x), dtype), compiled, name, table)


def binary(name: str, a: Any) -> Arithmetic:
    if name in numerics.BITWISE:
        return Arithmetic(numerics.BITWISE[name], "bits16", name)
    function, dtype = numerics.BINARY[name], a.dst.dtype
    if dtype == "int32":
        return Arithmetic(numerics.INTEGER[name], "int32", name)
    return Arithmetic(lambda x, y: finish(function(x, y), dtype), "float", name)


def by_scalar(name: str, a: Any) -> Arithmetic:
    """Compute ``adds`` or ``muls``."""
    dtype = a.dst.dtype
    wide, compiled = (np.int32, "int32") if dtype == "int32" else (np.float32, "float")
    value: Any = wide(numerics.scalar(a.scalar, dtype))
    function = (numerics.INTEGER if dtype == "int32" else numerics.BINARY)[name[:-1]]
    return Arithmetic(lambda x: finish(function(x, value), dtype), compiled, name, scalar=float(value))


def multiply_add(name: str, a: Any) -> Arithmetic:
    """Return the arithmetic of axpy, mla or madd: the product is rounded to the destination's type, then the sum."""
    dst = a.dst.dtype
    rounded = numerics.round_half if dst == "float16" else numerics.saturate  # D7c
    computed = partial(Arithmetic, family="float", op=name, reads_dst=True)
    if name == "axpy":
        value = np.float32(numerics.scalar(a.scalar, a.src.dtype))
        return computed(lambda x, d: finish(rounded(x * value) + d, dst), scalar=float(value))
    if name == "mla":
        return computed(lambda x, y, d: finish(rounded(x * y) + d, dst))
    return computed(lambda x, y, d: finish(rounded(x * d) + y, dst))


def report_unspecified(call: Call, name: str) -> Callable[..., None] | None:
    """Return strict mode's check for inputs that have no specified result (D10c), or None."""
    if name not in numerics.UNSPECIFIED:
        return None
    what, test = numerics.UNSPECIFIED[name]

    def inspect(*sources: np.ndarray) -> None:
        if test(sources[-1]).any():
            call.questionable("unspecified", f"the result for {what} is not specified")

    return inspect


Compute = Callable[[str, Any], Arithmetic]


def _compute(call: Call, a: Any, *, name: str, names: tuple[str, ...], compute: Compute, legacy: bool) -> Any:
    dst, *sources = walks(call, a, names, a.mask, a.repeat_times, legacy)
    result = element_wise(
        call,
        compute(name, a),
        dst,
        sources,
        mask=a.mask,
        accumulates=compute is binary and name != "div",
        inspect=report_unspecified(call, name),
    )
    if "scalar" not in call.args:
        return result
    return make_rescalable(result, (a.src if compute is multiply_add else a.dst).dtype)


ONE, TWO = ("dst", "src"), ("dst", "src0", "src1")
FLOATS_AND_INT32 = (*FLOATS, "int32")
MIXED = ("float32", "float16")  # dst, src: 64 lanes, each repeat reads the first 4 blocks of the source
_Row = tuple[str, tuple[str, ...], Compute, tuple[Any, ...], str, str]
_rows: tuple[_Row, ...] = (
    ("abs", ONE, unary, FLOATS, "simple", "absolute value"),
    ("relu", ONE, unary, ("float16",), "simple", "max(x, 0)"),
    ("exp", ONE, unary, FLOATS, "transcendental", "e^x"),
    ("ln", ONE, unary, FLOATS, "transcendental", "natural logarithm"),
    ("sqrt", ONE, unary, FLOATS, "transcendental", "square root"),
    ("rec", ONE, unary, FLOATS, "simple", "1/x by table, about 8 valid bits"),
    ("rsqrt", ONE, unary, FLOATS, "simple", "1/sqrt(x) by table, about 8 valid bits"),
    ("not", ONE, unary, BITS16, "simple", "bitwise not"),
    ("add", TWO, binary, FLOATS_AND_INT32, "simple", "x0 + x1"),
    ("sub", TWO, binary, FLOATS_AND_INT32, "simple", "x0 - x1"),
    ("mul", TWO, binary, FLOATS_AND_INT32, "simple", "x0 * x1"),
    ("max", TWO, binary, FLOATS_AND_INT32, "simple", "larger of x0, x1"),
    ("min", TWO, binary, FLOATS_AND_INT32, "simple", "smaller of x0, x1"),
    ("and", TWO, binary, BITS16, "simple", "bitwise and"),
    ("or", TWO, binary, BITS16, "simple", "bitwise or"),
    ("div", TWO, binary, FLOATS, "div", "x0 / x1, correctly rounded"),
    ("adds", ONE, by_scalar, FLOATS, "simple", "x + scalar"),
    ("muls", ONE, by_scalar, FLOATS, "simple", "x * scalar"),
    ("axpy", ONE, multiply_add, (*FLOATS, MIXED), "axpy", "dst = scalar * src + dst"),
    ("mla", TWO, multiply_add, (*FLOATS, ("float32", "float16", "float16")), "mla", "dst = src0 * src1 + dst"),
    ("madd", TWO, multiply_add, FLOATS, "mla", "dst = src0 * dst + src1"),
)
_TOLERATED = {"relu": ("float32", "int32"), "adds": ("int32",), "muls": ("int32",)}
_SCALARS = {"adds": Number("scalar", "dst"), "muls": Number("scalar", "dst"), "axpy": Number("scalar", "src")}
for _name, _names, _by, _dtypes, _cost, _doc in _rows:
    for _legacy in (True,) if _name in ("div", "mla", "madd") else (False, True):
        instruction(
            f"{'v' if _legacy else 'vec_'}{_name}",
            params=parameters(
                _names,
                _legacy,
                *((_SCALARS[_name],) if _name in _SCALARS else ()),
                tail=(MaskMode(),) if _name in ("adds", "muls") else (),
            ),
            dtypes=_dtypes,
            tolerated=_TOLERATED.get(_name, ()),
            pipe="V",
            cost=_cost,
            doc=_doc,
        )(partial(_compute, name=_name, names=_names, compute=_by, legacy=_legacy))


# ------------------------------------------------------------------------------------------- fill
def _dup(call: Call, a: Any, *, legacy: bool) -> Any:
    (dst,) = walks(call, a, ("dst",), a.mask, a.repeat_times, legacy)
    dtype = a.dst.dtype
    values = np.full(dst.lanes.extent, numerics.scalar(a.scalar, dtype))
    bits = values.view(np.uint16) if dtype == "float16" else values
    result = element_wise(call, Arithmetic(lambda: bits), dst, (), mask=a.mask)
    run = result.run

    def moved(addresses: Sequence[int]) -> tuple[Callable[[], None], None]:
        assert run is not None
        if addresses[0] == dst.operand.address:
            return run, None
        store = dst.storer(addresses[0])
        return lambda: store(slice(None), bits), None

    def rescale(number: float) -> None:
        values.fill(numerics.scalar(number, dtype))

    result.rescale = rescale
    if run is not None:
        result.operands, result.moved = (dst.operand,), moved
    return result


DUP_DTYPES = ("uint16", "int16", "float16", "uint32", "int32", "float32")
for _legacy in (False, True):
    instruction(
        "vector_dup" if _legacy else "vec_dup",
        params=parameters(("dst",), _legacy, Number("scalar", "dst")),
        dtypes=DUP_DTYPES,
        pipe="V",
        cost="dup",
        doc="fill with a scalar",
    )(partial(_dup, legacy=_legacy))


# ------------------------------------------------------------------------------------------- shifts
class _Amount(Number):
    """Check the distance of a shift: at most the bits of an element."""

    def resolve(self, value: Any, call: Call) -> int:
        dtype = call.args["dst"].dtype
        bits = 8 * np.dtype(dtype).itemsize
        if not 0 <= int(value) <= bits:
            call.fail_range(self.name, int(value), f"in [0, {bits}] for {dtype}")
        return int(value)


def _shift(call: Call, a: Any, *, name: str) -> Any:
    bits, amount = 8 * np.dtype(a.dst.dtype).itemsize, a.scalar
    dst, src = walks(call, a, ("dst", "src"), a.mask, a.repeat_times, True)
    function = np.left_shift if name == "shl" else np.right_shift
    kind = np.dtype(a.dst.dtype).type
    arithmetic = Arithmetic(
        lambda x: (
            function(x, kind(amount))
            if amount < bits
            else np.zeros_like(x)
            if name == "shl"
            else function(function(x, kind(bits - 1)), kind(1))
        )
    )
    return element_wise(call, arithmetic, dst, (src,), mask=a.mask)


for _name, _doc in (("shl", "logical shift left"), ("shr", "shift right, arithmetic for signed types")):
    instruction(
        f"v{_name}",
        params=(
            Mask(),
            Tensor("dst"),
            Tensor("src"),
            _Amount("scalar", dtypes=("int32", "int16", "int64", "uint16", "uint32", "uint64")),
            repeat(),
            *strides(("dst", "src"), True, BLK_WIDE),
            Fixed("round_en", False, "rounding shifts have no description"),
            *legacy_tail(),
        ),
        dtypes=("int16", "uint16", "int32", "uint32"),
        pipe="V",
        cost="simple",
        doc=_doc,
    )(partial(_shift, name=_name))


# ------------------------------------------------------------------------------------------- high precision
# Scratch: (dtype of work_tensor, units by source dtype, whether multipliers are documented). A unit is the extent of
# the source in elements, rounded up to a block (vector.md 2.1, D17).
SCRATCH: dict[str, tuple[str, dict[str, int], bool]] = {
    "rec": ("float32", {"float16": 4, "float32": 2}, True),
    "rsqrt": ("float32", {"float16": 6, "float32": 4}, False),
    "ln": ("float16", {"float16": 10}, True),
    "expm1": ("float16", {"float16": 11}, True),
}


def scratch_elements(name: str, dtype: str, extent: int, repeats: int, src_rep_stride: int) -> int:
    """Return how many elements of ``work_tensor`` ``vec_<name>_high_preci`` needs."""
    block = BLOCK // np.dtype(dtype).itemsize
    if name == "expm1":
        pitch, extent = 8 if 0 < src_rep_stride <= 8 else src_rep_stride, 128
    else:
        pitch = src_rep_stride
    span = (repeats - 1) * pitch * block + extent
    return SCRATCH[name][1][dtype] * (-(-span // block) * block)


# Dependent full-width instructions that the software sequence is taken to consist of (assumed; not published).
PASSES = {"rec": 8, "rsqrt": 12, "ln": 20, "expm1": 20}


def _high_precision(call: Call, a: Any, *, name: str) -> Any:
    dst, src = walks(call, a, ("dst", "src"), a.mask, a.repeat_times, False)
    if a.mask.extent == 0:
        return None
    work = a.work_tensor
    needed = scratch_elements(name, a.src.dtype, a.mask.extent, a.repeat_times, a.src_rep_stride)
    # The implementation slices its argument: it sees the view that was passed, not the tensor behind it.
    available = int(np.prod(work.shape))
    if available < needed:
        message = f"work_tensor must hold at least {needed} elements of {work.dtype}, got {available}" + (
            " (t[a] is one element: pass t[a:] or t[a:b])" if available == 1 else ""
        )
        if SCRATCH[name][2]:
            call.fail(message)
        call.questionable("work-tensor", message)
    for walk in (dst, src):
        if int(np.prod(walk.operand.shape)) == 1 < a.mask.extent:
            call.questionable(
                "argument", f"{walk.label} is one element (t[a]); an offset tensor must be passed as t[a:] or t[a:b]"
            )
    scratch = span_access(call, "work_tensor", work, min(needed, available))
    require_different(
        call,
        ("dst", dst.operand, *dst.span),
        ("src", src.operand, *src.span),
        ("work_tensor", work, scratch.region.start, scratch.region.end),
    )
    full = f"{name}_high_preci"
    result = element_wise(call, unary(full, a), dst, (src,), mask=a.mask, inspect=report_unspecified(call, full))
    # float16 is computed as float32: twice the repeats.
    width = 2 if name != "ln" and a.src.dtype == "float16" and work.dtype == "float32" else 1
    result.cycles = PASSES[name] * (width * result.cycles + result.latency)
    result.instructions = PASSES[name]
    result.writes += (scratch,)
    result.undefined = (scratch,)
    return result


for _name, _dtypes, _doc in (
    ("rec", FLOATS, "1/x, correctly rounded"),
    ("rsqrt", FLOATS, "1/sqrt(x), correctly rounded"),
    ("ln", ("float16",), "natural logarithm, correctly rounded"),
    ("expm1", ("float16",), "e^x - 1, correctly rounded"),
):
    instruction(
        f"vec_{_name}_high_preci",
        params=(
            Mask(),
            Tensor("dst"),
            Tensor("src"),
            Tensor("work_tensor", dtypes=(SCRATCH[_name][0],)),
            repeat(),
            *strides(("dst", "src"), False, BLK_WIDE),
        ),
        dtypes=_dtypes,
        pipe="V",
        cost="simple",
        composite=True,
        doc=_doc,
    )(partial(_high_precision, name=_name))
