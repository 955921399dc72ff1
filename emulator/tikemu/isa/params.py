"""Kinds of instruction parameters: each knows how to check a value at the call and again when it is resolved.

A parameter is checked twice. At the call (:meth:`Param.check`) immediates are checked completely, run-time values only
for their type. When the call is bound (:meth:`Param.resolve`) every value is a number and every tensor an
:class:`~tikemu.isa.micro_op.Operand`; the result is what the instruction sees. Out-of-range immediates raise
``TikParamError``, out-of-range run-time values ``TikBoundsError`` (tik/README.md D29).
"""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Mapping, Sequence
from typing import Any, Callable

import numpy as np

from ..errors import TikAlignError, TikParamError, TikUnsupportedArgumentError
from ..program import ir
from ..program.dtypes import size_of
from ..program.nodes import as_integer
from . import numerics
from .call import Call
from .micro_op import Operand

REQUIRED = inspect.Parameter.empty
COUNT_DTYPES = ("int16", "int32", "int64", "uint16", "uint32", "uint64")
# Start address of an operand, in bytes, unless the page of the instruction says otherwise (core.md 2.2).
DEFAULT_ALIGNMENT: Mapping[str, int] = {"GM": 1, "UB": 32, "L1": 512, "L0A": 512, "L0B": 512, "L0C": 512}
MEMORY_NAMES = {
    "GM": "global memory (scope_gm)",
    "UB": "the Unified Buffer (scope_ubuf)",
    "L1": "L1 (scope_cbuf)",
    "L0A": "L0A (scope_ca)",
    "L0B": "L0B (scope_cb)",
    "L0C": "L0C (scope_cc, scope_cbuf_out)",
}


def is_tensor(value: Any) -> bool:
    """Return whether ``value`` is a tensor, recorded or resolved."""
    return isinstance(value, (ir.View, Operand))


class Param:
    """A parameter without checks; base of the kinds below.

    Args:
        name: keyword and argument name.
        default: value when omitted; a parameter without default is required.
    """

    kind: Any = inspect.Parameter.POSITIONAL_OR_KEYWORD
    first = False  # tensors are checked before everything that depends on their dtypes
    aliases: tuple[str, ...] = ()  # other keywords that programs use

    def __init__(self, name: str, default: Any = REQUIRED) -> None:
        self.name, self.default = name, default

    def signature(self) -> inspect.Parameter:
        return inspect.Parameter(self.name, self.kind, default=self.default)

    def check(self, value: Any, call: Call) -> None:
        """Check a value as recorded."""

    def resolve(self, value: Any, call: Call) -> Any:
        """Check a run-time value and return it in the form that instructions work with."""
        return value


class Rest(Param):
    """``*args`` / ``**kwargs`` of the real signature: passed on as a tuple / dict."""

    def __init__(self, name: str, keywords: bool = False) -> None:
        super().__init__(name)
        self.kind = inspect.Parameter.VAR_KEYWORD if keywords else inspect.Parameter.VAR_POSITIONAL


class Integer(Param):
    """An integer in a range: immediate, Scalar or Expr.

    Args:
        low, high: inclusive range of an immediate.
        immediate: True if only an immediate is allowed.
    """

    def __init__(self, name: str, low: int, high: int, *, default: Any = REQUIRED, immediate: bool = False) -> None:
        super().__init__(name, default)
        self.low, self.high, self.immediate = low, high, immediate
        self.runtime_low = low

    def check(self, value: Any, call: Call) -> None:
        if value is None and self.default is None:
            return
        if not ir.is_immediate(value):
            if self.immediate:
                call.fail(f"{self.name} must be an immediate, got a run-time value")
            if value.dtype not in COUNT_DTYPES:
                call.fail(
                    f"{self.name} must be an int or a Scalar/Expr of {', '.join(COUNT_DTYPES)}, "
                    f"got one of {value.dtype}"
                )
            return
        number = as_integer(value)
        if number is None:
            call.fail(f"{self.name} must be an integer, got {shown(value)}")
        elif not self.low <= number <= self.high:
            call.fail_range(self.name, number, f"in [{self.low}, {self.high}]")

    def resolve(self, value: Any, call: Call) -> int | None:
        if value is None:
            return None
        if not self.runtime_low <= value <= self.high:
            call.fail_range(self.name, value, f"in [{self.runtime_low}, {self.high}]")
        return int(value)


class Count(Integer):
    """Describe a count: immediate low..high, run-time 0..high. With 0 the call does nothing (D16c)."""

    def __init__(self, name: str, high: int, low: int = 1, default: Any = REQUIRED) -> None:
        super().__init__(name, low, high, default=default)
        self.runtime_low = 0


def repeat(name: str = "repeat_times", high: int = 255, low: int = 1) -> Integer:
    """Repeat count (vector.md 1.2); of a few instructions the pages allow an immediate 0."""
    return renamed(Count(name, high, low), "repeat")


def stride(name: str, high: int = 255, default: Any = REQUIRED) -> Integer:
    """Return the parameter of a stride or gap: 0..high in the unit of its instruction."""
    return renamed(Integer(name, 0, high, default=default), name.replace("_stride", ""))


def renamed(param: Param, *aliases: str) -> Any:
    """Return the parameter, also known by other keywords."""
    param.aliases = aliases
    return param


class Choice(Param):
    """One of a few immediates."""

    def __init__(self, name: str, options: Sequence[Any], default: Any = REQUIRED, error: type = TikParamError) -> None:
        super().__init__(name, default)
        self.options, self.error = tuple(options), error

    def check(self, value: Any, call: Call) -> None:
        if not any(type(value) is type(option) and value == option for option in self.options):
            call.fail(f"{self.name} must be one of {list(self.options)!r}, got {shown(value)}", self.error)


class Flag(Param):
    """A bool; integers 0 and 1 pass."""

    def check(self, value: Any, call: Call) -> None:
        if not isinstance(value, (bool, np.bool_)) and as_integer(value) not in (0, 1):
            call.fail(f"{self.name} must be a bool, got {shown(value)}")


class Fixed(Param):
    """Describe an argument with one legal value on this SoC; refuse others with the reason."""

    def __init__(self, name: str, default: Any, reason: str) -> None:
        super().__init__(name, default)
        self.reason = reason

    def check(self, value: Any, call: Call) -> None:
        if not ir.is_immediate(value) or value != self.default:
            call.fail(
                f"{self.name} must be {self.default!r} ({self.reason}), got {shown(value)}", TikUnsupportedArgumentError
            )


class MaskMode(Param):
    """``mask_mode``: Ascend 910 takes every call as "normal" (D16f)."""

    def __init__(self) -> None:
        super().__init__("mask_mode", "normal")

    def check(self, value: Any, call: Call) -> None:
        if value == "counter":
            call.questionable(
                "undocumented",
                'mask_mode="counter" does not exist on Ascend 910; the call is taken as "normal"',
                TikUnsupportedArgumentError,
            )
        elif value != "normal":
            call.fail(f'mask_mode must be "normal" or "counter", got {shown(value)}')


class Tensor(Param):
    """A tensor operand; resolves to an Operand.

    Args:
        scopes: memories it may live in ("GM", "UB", ...).
        dtypes: legal dtypes; None: any (combinations are checked by the instruction's ``dtypes``).
        like: name of a tensor parameter, which must have the same dtype.
        align: alignment of the start address in bytes: an int, a mapping by memory, or ``f(view, call) -> int``.
        default: pass None to make the operand optional.
    """

    first = True

    def __init__(
        self,
        name: str,
        scopes: Sequence[str] = ("UB",),
        dtypes: Sequence[str] | None = None,
        *,
        like: str | None = None,
        default: Any = REQUIRED,
        align: int | Mapping[str, int] | Callable[[Any, Call], int] | None = None,
    ) -> None:
        super().__init__(name, default)
        self.scopes = tuple(scopes)
        self.dtypes = None if dtypes is None else tuple(dtypes)
        self.like, self.align = like, align

    def alignment(self, value: Any, call: Call) -> int:
        """Return the alignment of the start address in bytes."""
        memory = memory_kind(value)
        if self.align is None:
            return DEFAULT_ALIGNMENT[memory]
        if callable(self.align):
            return self.align(value, call)
        return self.align if isinstance(self.align, int) else self.align.get(memory, DEFAULT_ALIGNMENT[memory])

    def check(self, value: Any, call: Call) -> None:
        if value is None and self.default is None:
            return
        self.check_tensor(value, call, self.name)

    def check_tensor(self, value: Any, call: Call, label: str) -> None:
        """Check type, memory, dtype and, for an immediate offset, alignment of a recorded tensor."""
        if not is_tensor(value):
            call.fail(f"{label} must be a Tensor, got {describe(value)}")
        memory = memory_kind(value)
        if memory not in self.scopes:
            call.fail(
                f"{label} must be in {' or '.join(MEMORY_NAMES[s] for s in self.scopes)}, "
                f"but tensor {value.tensor.name!r} is in {MEMORY_NAMES[memory]}"
            )
        if self.dtypes is not None and value.dtype not in self.dtypes:
            call.fail(f"{label} must be of {', '.join(self.dtypes)}, got {value.dtype}", TikUnsupportedArgumentError)
        if self.like is not None and is_tensor(call.args[self.like]) and call.args[self.like].dtype != value.dtype:
            call.fail(f"{label} must have the dtype of {self.like} ({call.args[self.like].dtype}), got {value.dtype}")
        offset = as_integer(value.offset)
        if offset is not None:
            self._check_alignment(offset * size_of(value.dtype), value.tensor.name, value, call, label)

    def resolve(self, value: Any, call: Call) -> Any:
        if value is not None:
            self._check_alignment(value.address, value.name, value, call, self.name)
        return value

    def _check_alignment(self, address: int, tensor: str, value: Any, call: Call, label: str) -> None:
        unit = self.alignment(value, call)
        if address % unit:
            what = "address" if call.runtime else "offset"
            call.fail(
                f"{label} (tensor {tensor!r}) must start at a multiple of {unit} bytes in "
                f"{memory_kind(value)}, got byte {what} {address}",
                TikAlignError,
            )


class TensorList(Tensor):
    """A list of exactly ``count`` tensor operands that share a dtype."""

    def __init__(self, name: str, count: int, *, like: str | None = None) -> None:
        super().__init__(name)
        self.count, self.same_as = count, like

    def check(self, value: Any, call: Call) -> None:
        if not isinstance(value, (list, tuple)):
            call.fail(f"{self.name} must be a list of {self.count} tensors, got {describe(value)}")
        if len(value) != self.count:
            call.fail(f"{self.name} must hold exactly {self.count} tensors, got {len(value)}")
        for position, tensor in enumerate(value):
            self.check_tensor(tensor, call, f"{self.name}[{position}]")
        dtypes = {tensor.dtype for tensor in value}
        if self.same_as is not None:
            dtypes |= {tensor.dtype for tensor in call.args[self.same_as]}
        if len(dtypes) > 1:
            call.fail(f"{self.name} mixes dtypes {', '.join(sorted(dtypes))}; one is allowed")

    def resolve(self, value: Any, call: Call) -> Any:
        for position, operand in enumerate(value):
            self._check_alignment(operand.address, operand.name, operand, call, f"{self.name}[{position}]")
        return value


class Number(Param):
    """A scalar value operand: an immediate, converted to the dtype of a tensor, or a Scalar of that dtype.

    A run-time integer of another type is converted too, which is questionable (D5g).

    Args:
        like: name of the tensor parameter that gives the dtype.
        dtypes: legal dtypes instead of ``like`` (an immediate is converted to the first dtype).

    Resolves to the number as it came; the instruction converts it (``numerics.scalar``).
    """

    def __init__(self, name: str, like: str | None = None, dtypes: Sequence[str] = (), default: Any = REQUIRED) -> None:
        super().__init__(name, default)
        self.like, self.dtypes = like, tuple(dtypes)

    def allowed(self, call: Call) -> tuple[str, ...]:
        return self.dtypes if self.like is None else (call.args[self.like].dtype,)

    def check(self, value: Any, call: Call) -> None:
        if value is None and self.default is None:
            return
        allowed = self.allowed(call)
        if not ir.is_immediate(value):
            if value.dtype not in allowed:
                message = (
                    f"{self.name} must be an immediate or a Scalar of {' or '.join(allowed)}, got one of {value.dtype}"
                )
                if np.dtype(value.dtype).kind not in "iu":
                    call.fail(message)
                call.questionable("value", f"{message}; it is converted to {allowed[0]}")
            return
        real = isinstance(value, numbers.Real) and not isinstance(value, (bool, np.bool_))
        if not real:
            call.fail(f"{self.name} must be a number or a Scalar of {' or '.join(allowed)}, got {describe(value)}")
        kind: np.dtype[Any] = np.dtype(allowed[0])
        if kind.kind in "iu":
            if not float(value).is_integer():
                call.fail(f"{self.name} must be an integer for {kind.name}, got {value!r}")
            limits = np.iinfo(kind)
            if not limits.min <= value <= limits.max:
                call.fail_range(self.name, value, f"in [{limits.min}, {limits.max}] for {kind.name}")
        elif np.isfinite(value) and abs(value) > float(np.finfo(kind).max):
            call.questionable("value", f"{self.name} {value!r} does not fit {kind.name} and becomes the largest number")

    def resolve(self, value: Any, call: Call) -> Any:
        dtypes = self.allowed(call)
        if type(value) is int and np.dtype(dtypes[0]).kind == "f":
            return float(numerics.scalar(value, dtypes[0]))
        return value


class Destination(Param):
    """A Scalar that the instruction assigns to."""

    def __init__(self, name: str, dtypes: Sequence[str]) -> None:
        super().__init__(name)
        self.dtypes = tuple(dtypes)

    def check(self, value: Any, call: Call) -> None:
        if not isinstance(value, ir.Variable) or value.kind != "scalar":
            call.fail(f"{self.name} must be a Scalar, got {describe(value)}")
        if value.dtype not in self.dtypes:
            call.fail(f"{self.name} must be a Scalar of {', '.join(self.dtypes)}, got one of {value.dtype}")


def describe(value: Any) -> str:
    """Describe a value for an error message."""
    if is_tensor(value):
        return f"a Tensor of {value.dtype}"
    if isinstance(value, (ir.Variable, ir.Operation)):
        return f"a run-time {value.dtype} value"
    if isinstance(value, ir.CmpMask):
        return "a compare mask"
    return f"{type(value).__name__} {value!r}"


def shown(value: Any) -> str:
    """Return the text of a value for messages: a number or string as it came, else the kind of recorded value."""
    recorded = is_tensor(value) or isinstance(value, (ir.Variable, ir.Operation, ir.CmpMask))
    return describe(value) if recorded else repr(value)


def memory_kind(value: Any) -> str:
    """Return the kind of memory of a recorded or resolved tensor."""
    return value.tensor.memory if isinstance(value, ir.View) else value.memory.kind
