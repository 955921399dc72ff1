"""Functions of the scalar unit: conversion, square root, magnitude, maximum, minimum and bit counts (core.md 4.5).

``evaluate`` gets the arguments by name, values as Python numbers and the destination as its ``ir.Variable``, and
returns the number to assign.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Callable

import numpy as np

from ..errors import TikBoundsError, TikUnsupportedArgumentError
from ..program import ir
from ..program.dtypes import is_float, limits
from . import numerics
from .call import Call
from .params import Choice, Destination, Param, describe
from .registry import instruction

_DOCUMENTED = ("int64", "float32")
_TOLERATED = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "uint64", "float16")
_ROUND_MODES = ("", "none", "round", "floor", "ceil", "ceiling", "away-zero", "to-zero", "odd")
_CONVERSIONS = {
    ("float32", "int32"): ("round", "away-zero", "to-zero", "floor", "ceil", "ceiling"),
    ("int32", "float32"): ("", "none"),
    ("float16", "float32"): ("", "none"),
    ("float32", "float16"): ("", "none", "odd"),
}


class Value(Param):
    """A run-time value of one of ``dtypes``; with ``immediate``, a number too."""

    def __init__(self, name: str, dtypes: Sequence[str], immediate: bool = False) -> None:
        super().__init__(name)
        self.dtypes, self.immediate = tuple(dtypes), immediate

    def check(self, value: Any, call: Call) -> None:
        if isinstance(value, (ir.Variable, ir.Operation)):
            if value.dtype not in self.dtypes:
                call.fail(f"{self.name} must be of {', '.join(self.dtypes)}, got {value.dtype}")
        elif not self.immediate or isinstance(value, bool) or not isinstance(value, (int, float)):
            call.fail(f"{self.name} must be a Scalar{' or a number' if self.immediate else ''}, got {describe(value)}")


# ------------------------------------------------------------------------------------------------------- scalar_conv
def _check_conv(call: Call) -> None:
    source, target = call.args["src"].dtype, call.args["dst"].dtype
    modes = _CONVERSIONS.get((source, target))
    if modes is None:
        pairs = ", ".join(f"{a} to {b}" for a, b in _CONVERSIONS)
        call.fail(f"converts {pairs}; got {source} to {target}", TikUnsupportedArgumentError)
    if call.args["round_mode"] not in modes:
        call.fail(
            f"round_mode for {source} to {target} must be one of {list(modes)!r}, got {call.args['round_mode']!r}"
        )


@instruction(
    "scalar_conv",
    params=(
        Choice("round_mode", _ROUND_MODES),
        Destination("dst", ("float32", "float16", "int32")),
        Value("src", ("float32", "float16", "int32")),
    ),
    kind="scalar",
    destination="dst",
    checker=_check_conv,
    pipe="S",
)
def scalar_conv(values: dict[str, Any]) -> int | float:
    """Convert a Scalar to the dtype of another, rounding as told; results saturate."""
    value, target, mode = values["src"], values["dst"].dtype, values["round_mode"]
    if target == "int32":
        x = np.array([value], np.float64)
        if mode == "away-zero":
            x, mode = np.copysign(np.ceil(np.abs(x)), x), "to-zero"  # any fraction moves away from zero (D5f)
        return int(numerics.to_integer(x, "ceil" if mode == "ceiling" else mode, "int32")[0])
    if target == "float32":
        return float(np.float32(value))
    x = np.array([value], np.float32)
    return float((numerics.to_half_odd(x) if mode == "odd" else numerics.narrow(x)).view(np.float16)[0])


# --------------------------------------------------------------------------------------------- arithmetic functions
def _check_types(call: Call) -> None:
    """Require one dtype for all; documented are int64 and float32, other types are questionable."""
    dst = call.args["dst"].dtype
    for name, value in call.args.items():
        if isinstance(value, (ir.Variable, ir.Operation)):
            if is_float(value.dtype) != is_float(dst) or (is_float(dst) and value.dtype != dst):
                call.fail(f"{name} must have the dtype of dst ({dst}), got {value.dtype}")
        elif is_float(dst) is False and isinstance(value, float):
            call.fail(f"{name} must be an integer for a dst of {dst}, got {value!r}")
    other = sorted(
        {value.dtype for value in call.args.values() if isinstance(value, (ir.Variable, ir.Operation))}
        - set(_DOCUMENTED)
    )
    if other:
        call.questionable(
            "undocumented",
            f"documented for Scalars of int64 and float32, got {', '.join(other)}",
            TikUnsupportedArgumentError,
        )


def _function(names: tuple[str, ...], compute: Callable[..., int | float]) -> Callable[[dict[str, Any]], int | float]:
    """Return the function of named arguments. Integers wrap, floats round to nearest even (D5a, D5e)."""

    def evaluate(values: dict[str, Any]) -> int | float:
        value, dtype = compute(*(values[name] for name in names)), values["dst"].dtype
        if is_float(dtype):
            with np.errstate(all="ignore"):
                return float(np.dtype(dtype).type(value))
        low, high = limits(dtype)
        return (int(value) - low) % (high - low + 1) + low

    return evaluate


def _sqrt(value: int | float) -> int | float:
    if isinstance(value, int):
        if value < 0:
            raise TikBoundsError(f"scalar_sqrt: src must not be negative, got {value}")
        return math.isqrt(value)
    with np.errstate(invalid="ignore"):
        return float(np.sqrt(np.float32(value)))


_ANY = (*_DOCUMENTED, *_TOLERATED)
_UNARY = (Destination("dst", _ANY), Value("src", _ANY, immediate=True))
_BINARY = (Destination("dst", _ANY), Value("src0", _ANY, immediate=True), Value("src1", _ANY, immediate=True))
_FUNCTIONS = (
    ("scalar_sqrt", _UNARY, _sqrt, "dst = sqrt(src); integers round down."),
    ("scalar_abs", _UNARY, abs, "dst = |src|."),
    ("scalar_max", _BINARY, max, "dst = the larger of src0 and src1."),
    ("scalar_min", _BINARY, min, "dst = the smaller of src0 and src1."),
)
for _name, _params, _compute, _doc in _FUNCTIONS:
    _sources = tuple(param.name for param in _params[1:])
    instruction(_name, params=_params, kind="scalar", destination="dst", checker=_check_types, pipe="S", doc=_doc)(
        _function(_sources, _compute)
    )


# ------------------------------------------------------------------------------------------------------- bit counts
_BITS = ("uint64", "int64")
_COUNT_PARAMS = (Destination("dst", _BITS), Value("src", _BITS))


@instruction("scalar_countbit1", params=_COUNT_PARAMS, kind="scalar", destination="dst", pipe="S")
def scalar_countbit1(values: dict[str, Any]) -> int:
    """Count the ones among the 64 bits of src."""
    return bin(values["src"] & (1 << 64) - 1).count("1")


@instruction("scalar_countleading0", params=_COUNT_PARAMS, kind="scalar", destination="dst", pipe="S")
def scalar_countleading0(values: dict[str, Any]) -> int:
    """Count the zeros above the highest one among the 64 bits of src."""
    return 64 - (values["src"] & (1 << 64) - 1).bit_length()
