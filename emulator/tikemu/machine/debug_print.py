"""``tikdb.debug_print``."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..program import ir
from .runtime import Runtime, TensorPlace


class DebugPrint:
    """``tikdb.debug_print``: evaluates an expression over tensors and scalars, and prints it."""

    def __init__(
        self, runtime: Runtime, statement: ir.DebugPrint, tensors: dict[str, tuple[TensorPlace, ir.View]]
    ) -> None:
        self.runtime, self.statement, self.tensors = runtime, statement, tensors
        self.code = compile(statement.expression, "<debug_print>", "eval")

    def __call__(self, scalars: dict[str, Any], copies: dict[str, int]) -> None:
        names: dict[str, Any] = dict(scalars)
        for name, (place, view) in self.tensors.items():
            start = place.address + copies.get(name, 0) * place.stride
            array = place.memory.data[start : start + place.size].view(view.dtype)
            fixed = all(ir.is_immediate(extent) for extent in view.shape)
            names[name] = array.reshape(view.shape).copy() if fixed else array.copy()
        try:
            value = eval(self.code, {"np": np}, names)
        except (NameError, IndexError, TypeError, ValueError, ZeroDivisionError) as error:
            value = f"{type(error).__name__}: {error}"
        print(f"{self.statement.expression} = {value}")
