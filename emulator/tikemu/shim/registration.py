"""``tbe.common.register``: decorators that announce operators. Here they only keep a list."""

from __future__ import annotations

from typing import Any, Callable

Function = Callable[..., Any]

_operators: dict[str, Function] = {}
_computes: dict[str, Function] = {}


def register_operator(op_type: str, pattern: str | None = None, **_options: Any) -> Callable[[Function], Function]:
    """Announce the entry function of an operator."""
    return _into(_operators, op_type)


def register_op_compute(
    op_type: str, op_mode: str = "static", support_fusion: bool = True, **_options: Any
) -> Callable[[Function], Function]:
    """Announce the compute function of an operator."""
    return _into(_computes, op_type)


def register_param_generalization(op_type: str, **_options: Any) -> Callable[[Function], Function]:
    """Announce the function that generalises an operator's shapes; not used here."""
    return lambda function: function


def get_operator(op_type: str) -> Function | None:
    """Return the function that ``register_operator`` announced."""
    return _operators.get(op_type)


def get_op_compute(op_type: str, op_mode: str = "static") -> Function | None:
    """Return the function that ``register_op_compute`` announced."""
    return _computes.get(op_type)


def _into(table: dict[str, Function], op_type: Any) -> Callable[[Function], Function]:
    if not isinstance(op_type, str):
        raise RuntimeError(f"an operator is announced by its type, a string, got {op_type!r}")

    def decorate(function: Function) -> Function:
        table[op_type] = function
        return function

    return decorate


__all__ = [
    "get_op_compute",
    "get_operator",
    "register_op_compute",
    "register_operator",
    "register_param_generalization",
]
