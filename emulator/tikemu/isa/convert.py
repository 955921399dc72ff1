"""Conversions between dtypes with rounding modes (vector.md 2.9, 3.2)."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ..errors import TikUnsupportedArgumentError
from . import numerics
from .call import Call
from .params import Choice, Fixed, Number, Tensor, repeat
from .registry import instruction
from .vector import BLK_WIDE, legacy_tail, strides, walks
from .vector_engine import Arithmetic, element_wise, finish
from .vector_mask import Mask

DEFAULT = ("", "none")
TO_INTEGER = ("round", "floor", "ceil", "ceiling", "away-zero", "to-zero")
# (dst, src) -> round modes (D15a)
PAIRS: dict[tuple[str, str], tuple[str, ...]] = {
    ("float32", "float16"): DEFAULT,
    ("float16", "float32"): (*DEFAULT, "odd"),
    ("int32", "float16"): TO_INTEGER,
    ("int32", "float32"): TO_INTEGER,
    ("float32", "int32"): DEFAULT,
    ("int8", "float16"): DEFAULT,
    ("uint8", "float16"): DEFAULT,
    ("float16", "int8"): DEFAULT,
    ("float16", "uint8"): DEFAULT,
    ("float16", "int32"): DEFAULT,
}
#: Rounding modes that AKG's table has for this chip, and no page of TIK (D15a).
UNDOCUMENTED = {(dst, "float16"): TO_INTEGER[1:] for dst in ("int8", "uint8")}
ROUND_MODES = (*DEFAULT, *TO_INTEGER, "odd")


def conversion(dst: str, src: str, mode: str, deqscale: float | None) -> Arithmetic:
    """Return the conversion of one element; the default rounding is to nearest even."""
    if (dst, src) == ("float16", "int32"):
        return Arithmetic(lambda x: numerics.dequantise(x, deqscale))
    if mode == "odd":
        return Arithmetic(numerics.to_half_odd)
    mode = "ceil" if mode == "ceiling" else mode
    if dst == "int32":
        return Arithmetic(lambda x: numerics.to_integer(x, mode, dst), "to_int32", mode)
    if dst in ("int8", "uint8"):
        mode = "round" if mode in DEFAULT else mode
        return Arithmetic(lambda x: numerics.to_integer(x, mode, dst))
    if src == "int32":
        return Arithmetic(lambda x: x.astype(np.float32), "from_int32")
    return Arithmetic(lambda x: finish(x.astype(np.float32), dst), "float" if src.startswith("float") else None, "conv")


def check_round_mode(call: Call) -> tuple[str, str]:
    """Return the dtypes of a conversion, dst and src. Its rounding must exist for them."""
    args = call.args
    pair = (args["dst"].dtype, args["src"].dtype)
    if args["round_mode"] in UNDOCUMENTED.get(pair, ()):
        call.questionable(
            "undocumented",
            f"no page lists round_mode {args['round_mode']!r} for {pair[1]} to {pair[0]} on Ascend 910",
            TikUnsupportedArgumentError,
        )
    elif args["round_mode"] not in PAIRS[pair]:
        call.fail(
            f"round_mode for {pair[1]} to {pair[0]} must be one of {list(PAIRS[pair])}, got {args['round_mode']!r}",
            TikUnsupportedArgumentError,
        )
    return pair


def _check(call: Call) -> None:
    args = call.args
    pair = check_round_mode(call)
    if (args["deqscale"] is not None) != (pair == ("float16", "int32")):
        call.fail(
            "deqscale must be given for int32 to float16, and only there; "
            f"got {args['deqscale']!r} for {pair[1]} to {pair[0]}"
        )


def _convert(call: Call, a: Any, *, legacy: bool) -> Any:
    dst, src = walks(call, a, ("dst", "src"), a.mask, a.repeat_times, legacy)
    arithmetic = conversion(a.dst.dtype, a.src.dtype, a.round_mode, a.deqscale)
    return element_wise(call, arithmetic, dst, (src,), mask=a.mask)


for _legacy in (False, True):
    instruction(
        "vconv" if _legacy else "vec_conv",
        params=(
            Mask(("dst", "src")),
            Choice("round_mode", ROUND_MODES),
            Tensor("dst"),
            Tensor("src"),
            repeat(),
            *strides(("dst", "src"), _legacy, BLK_WIDE),
            Number("deqscale", dtypes=("float16",), default=None),
            Fixed("ldst_high_half", False, "Ascend 910 has no description of it"),
            *(legacy_tail() if _legacy else ()),
        ),
        dtypes=tuple(PAIRS),
        pipe="V",
        cost="conv",
        checker=_check,
        doc="conversion between dtypes, saturating, with a rounding mode",
    )(partial(_convert, legacy=_legacy))
