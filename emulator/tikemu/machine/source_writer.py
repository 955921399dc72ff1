"""The source text that a program is translated into, line by line."""

from __future__ import annotations

from typing import Any

from ..errors import TikScopeError
from ..program import ir
from .expressions import HELPERS, Expressions
from .runtime import Runtime, TensorPlace

INDENT = " "


class SourceWriter:
    """Collect the lines of the translated program, and the values that they name.

    Attributes:
        names: global names of the program, with their values.
        lines: the lines so far; ``locations`` has the user's line for the number of each, and the loops around it.
        depth: indentation of the next line.
        enclosing: the loops around it, outermost first.
        live: uids of the on-chip tensors that are defined here.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.expressions = Expressions()
        self.names: dict[str, Any] = dict(
            HELPERS, _range=runtime.loop_range, _blocks=runtime.enter_blocks, _core=runtime.core.core
        )
        if runtime.timing:
            clock = runtime.clock
            self.names.update(
                _scalar=clock.scalar,
                _iteration=clock.iteration,
                _step=clock.step,
                _await=clock.await_value,
                _step_unsynced=clock.simulator.step_unsynced,
                _enter=clock.enter_unsynced,
                _leave=clock.simulator.leave_unsynced,
            )
        self.lines: list[str] = []
        self.locations: dict[int, tuple[ir.Location | None, tuple[ir.For, ...]]] = {}
        self.depth = 1
        self.enclosing: tuple[ir.For, ...] = ()
        self.live: set[int] = set()

    def emit(self, text: str, location: ir.Location | None = None) -> None:
        self.lines.append(INDENT * self.depth + text)
        self.locations[len(self.lines)] = location, self.enclosing

    def name(self, prefix: str, value: Any) -> str:
        """Return a fresh global name for ``value``."""
        name = f"{prefix}{len(self.names)}"
        self.names[name] = value
        return name

    def scalar_cost(self, operations: int) -> None:
        """Charge the scalar unit for ``operations``."""
        if operations and self.runtime.timing:
            self.emit(f"_scalar({operations * self.runtime.soc.timing.scalar_cycles!r})")

    def place(self, view: ir.View) -> TensorPlace:
        tensor = view.tensor
        if tensor.memory != "GM" and tensor.uid not in self.live:
            raise TikScopeError(f"tensor {tensor.name!r} is used outside the statement scope that defined it")
        return self.runtime.place(view)

    def copy(self, tensor: ir.TensorInfo) -> str:
        placement = self.runtime.plan.placements.get(tensor.uid)
        return "" if placement is None else self.expressions.copy_number(placement.selectors)
