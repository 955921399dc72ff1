"""``tbe.common.context``: where dynamic-shape programs leave information for the tiling function."""

from __future__ import annotations

from typing import Any, Literal


class OpContext:
    """Compile information of one operator; ``with OpContext("dynamic"):`` opens one of its own."""

    def __init__(self, op_mode: str = "static") -> None:
        self.op_mode = op_mode
        self._compile_info: dict[str, Any] = {}
        self._additions: dict[str, Any] = {}

    def __enter__(self) -> OpContext:
        _stack.append(self)
        return self

    def __exit__(self, *exception: Any) -> Literal[False]:
        _stack.remove(self)
        return False

    def get_op_mode(self) -> str:
        return self.op_mode

    def add_compile_info(self, key: str, value: Any) -> None:
        self._compile_info[key] = value

    def get_compile_info(self) -> dict[str, Any]:
        return self._compile_info

    def add_addition(self, key: str, value: Any) -> None:
        self._additions[key] = value

    def get_addition(self, key: str) -> Any:
        return self._additions.get(key)


_stack = [OpContext("dynamic")]


def get_context() -> OpContext:
    """Return the innermost context; there is always one."""
    return _stack[-1]


def add_compile_info(key: str, value: Any) -> None:
    """Add an entry to the innermost context."""
    get_context().add_compile_info(key, value)


def get_compile_info() -> dict[str, Any]:
    """Return the attribute of the innermost context."""
    return get_context().get_compile_info()


__all__ = ["OpContext", "add_compile_info", "get_compile_info", "get_context"]
