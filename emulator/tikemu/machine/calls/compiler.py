"""Translation of the calls of instructions: a look-up of the bound operations, then their execution."""

from __future__ import annotations

from typing import Any

from ...errors import TikScopeError
from ...program import ir
from ..backward_slice import Needs
from ..expressions import HELPERS, Expressions, name_of
from ..runtime import Runtime, TensorPlace
from .arguments import OperandTemplate, RuntimeArguments, float_key
from .site import CallGroup, CallSite


class CallCompiler:
    """Translate calls into source text, line by line.

    Attributes:
        names: global names of the translated program, with their values.
        lines: the lines so far; ``locations`` has the user's line for the number of each, and the loops around it.
        depth: indentation of the next line.
        enclosing: the loops around it, outermost first.
        live: uids of the on-chip tensors that are defined here.
        synced: whether the automatic synchronisation works here.
        sites: by ``id`` of a call's statement, its site.
    """

    def __init__(self, runtime: Runtime, needs: Needs) -> None:
        self.runtime = runtime
        self.needs = needs
        self.expressions = Expressions()
        self.names: dict[str, Any] = dict(
            HELPERS, _range=runtime.loop_range, _blocks=runtime.enter_blocks, _core=runtime.core.core, _key=float_key
        )
        if runtime.timing:
            clock = runtime.clock
            self.names.update(
                _scalar=clock.scalar,
                _iteration=clock.iteration if clock.later is None else clock.note_iteration,
                _step=clock.step,
                _await=clock.await_value,
                _step_unsynced=clock.simulator.step_unsynced,
                _enter=clock.enter_unsynced,
                _leave=clock.simulator.leave_unsynced,
                _later=clock.later,
            )
        self.lines: list[str] = []
        self.locations: dict[int, tuple[ir.Location | None, tuple[ir.For, ...]]] = {}
        self.depth = 1
        self.enclosing: tuple[ir.For, ...] = ()
        self.live: set[int] = set()
        self.synced = True
        self.sites: dict[int, CallSite] = {}
        self._group: list[CallSite] = []
        called = {
            statement.spec.name
            for statement in ir.statements(runtime.program.body)
            if isinstance(statement, ir.Instruction)
        }
        self.barriers = "block_barrier" in called
        self.atomics = "set_atomic_add" in called

    def emit(self, text: str, location: ir.Location | None = None) -> None:
        self.lines.append(" " * self.depth + text)
        self.locations[len(self.lines)] = location, self.enclosing

    def timed(self, action: str, argument: Any) -> str:
        """Return the source of an action of the clock."""
        return f"{action}({argument})" if self.runtime.clock.later is None else f"_later(({action}, {argument}))"

    def name(self, prefix: str, value: Any) -> str:
        """Return a fresh global name for ``value``."""
        name = f"{prefix}{len(self.names)}"
        self.names[name] = value
        return name

    def scalar_cost(self, operations: int) -> None:
        """Charge the scalar unit for ``operations``."""
        if operations and self.runtime.timing:
            self.emit(self.timed("_scalar", operations * self.runtime.soc.timing.scalar_cycles))

    def place(self, view: ir.View) -> TensorPlace:
        tensor = view.tensor
        if tensor.memory != "GM" and tensor.uid not in self.live:
            raise TikScopeError(f"tensor {tensor.name!r} is used outside the statement scope that defined it")
        return self.runtime.place(view)

    def copy(self, tensor: ir.TensorInfo) -> str:
        placement = self.runtime.plan.placements.get(tensor.uid)
        return "" if placement is None else self.expressions.copy_number(placement.selectors)

    def _on_Instruction(self, statement: ir.Instruction) -> None:
        """Compile any call; one without run-time arguments waits for :meth:`flush`."""
        if statement.spec.kind == "scalar":
            self.scalar_instruction(statement)
            return
        needed = self.needs.instruction(statement)
        run_time = RuntimeArguments(self.expressions)
        arguments = {name: self.argument(value, run_time, needed) for name, value in statement.args.items()}
        if self.atomics and any(
            isinstance(value, ir.View) and value.tensor.memory == "GM" for value in statement.args.values()
        ):
            run_time.source("_core.atomic_add")
        site = self.sites[id(statement)] = CallSite(self.runtime, statement, run_time, arguments, needed)
        if statement.spec.name == "block_barrier":
            self.flush()
            self.call(site)
            self.emit("yield")
        elif run_time.sources:
            self.flush()
            self.call(site)
        else:
            self._group.append(site)

    def argument(self, value: Any, run_time: RuntimeArguments, needed: bool) -> Any:
        """Return a template of an argument."""
        if isinstance(value, ir.View):
            anywhere = self.runtime.options.bounds == "buffer" and value.tensor.memory != "GM"
            return OperandTemplate(self.place(value), value, run_time, self.copy(value.tensor), anywhere)
        if isinstance(value, (ir.Variable, ir.Operation)):
            if not needed and value.dtype.startswith("float"):
                return 1.0  # the computed numbers do not matter
            return run_time.add(value)
        if isinstance(value, (list, tuple)):
            return [self.argument(item, run_time, needed) for item in value]
        if isinstance(value, dict):
            return {name: self.argument(item, run_time, needed) for name, item in value.items()}
        return value

    def call(self, site: CallSite) -> None:
        """Compile a call with run-time arguments."""
        sources = site.run_time.sources
        key = sources[0] if len(sources) == 1 else f"({', '.join(sources)})"
        location, bind = site.location, self.name("B", site.bind)
        if self.runtime.options.reuse:
            self.emit(f"k = {key}", location)
            self.emit(f"p = {self.name('C', site.bound)}.get(k)", location)
            self.emit(f"if p is None: p = {bind}(k)", location)
        else:
            self.emit(f"p = {bind}({key})", location)
        if site.computed:
            self.emit("for x in p: x.run()", location)
        self.account(location)

    def flush(self) -> None:
        """Emit the calls that were collected since the last statement of another kind."""
        group, self._group = self._group, []
        while group:
            computed = group[0].computed
            count = next((number for number, site in enumerate(group) if site.computed != computed), len(group))
            name = self.name("S", CallGroup(self.runtime, group[:count]))
            self.emit(f"p = {name}.ops")
            self.emit(f"if p is None: p = {name}.first()")
            if computed:
                self.emit("else:")
                self.emit(" for x in p: x.run()")
            self.account(None)
            group = group[count:]

    def account(self, location: ir.Location | None) -> None:
        """Time and races of the prepared operations ``p``."""
        if not self.synced and self.runtime.pipe_races is not None:
            self.names["_race"] = self.runtime.race
            self.emit("for x in p: _race(x)", location)
        if self.runtime.timing and self.synced:
            self.emit(self.timed("_step", "p"), location)
        elif self.runtime.timing:
            self.emit("for x in p: " + self.timed("_step_unsynced", "x"), location)

    def scalar_instruction(self, statement: ir.Instruction) -> None:
        """Compile a function of the scalar unit: its result is assigned to a Scalar."""
        spec, target = statement.spec, statement.args[statement.spec.destination]
        if self.needs.instruction(statement):
            entries = []
            for name, value in statement.args.items():
                if name == spec.destination or ir.is_immediate(value):
                    entries.append(f"{name!r}: {self.name('A', value)}")
                else:
                    entries.append(f"{name!r}: {self.expressions.wrapped(value).source}")
            function = self.name("E", spec.evaluate)
            self.emit(f"{name_of(target)} = {function}({{{', '.join(entries)}}})", statement.location)
        self.scalar_cost(1)
