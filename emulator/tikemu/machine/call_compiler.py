"""Translation of the calls of instructions.

A call with run-time arguments becomes a look-up of its bound operations; consecutive calls whose arguments are all
known are bound once and run as a group.
"""

from __future__ import annotations

from typing import Any

from ..program import ir
from ..program.dtypes import size_of
from .arguments import OperandTemplate, RuntimeArguments
from .call_site import AlignedCallSite, CallGroup, CallSite
from .expressions import name_of
from .needs import Needs
from .runtime import Runtime
from .source_writer import INDENT, SourceWriter


class CallCompiler(SourceWriter):
    """Translates calls.

    Attributes:
        synced: whether the automatic synchronisation works here.
        sites: by ``id`` of a call's statement, what stands behind it.
    """

    def __init__(self, runtime: Runtime, needs: Needs) -> None:
        super().__init__(runtime)
        self.needs = needs
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

    def instruction(self, statement: ir.Instruction) -> None:
        """Any call; one without run-time arguments waits for :meth:`flush`."""
        if statement.spec.kind == "scalar":
            self.scalar_instruction(statement)
            return
        needed = self.needs.instruction(statement)
        run_time = RuntimeArguments(self.expressions)
        moving = None if needed else self.moving_view(statement)
        arguments = {name: self.argument(value, run_time, needed, moving) for name, value in statement.args.items()}
        if self.atomics and any(
            isinstance(value, ir.View) and value.tensor.memory == "GM" for value in statement.args.values()
        ):
            run_time.source("_core.atomic_add")
        if moving is None:
            site = CallSite(self.runtime, statement, run_time, arguments)
        else:
            view = next(entry for entry in arguments.values() if isinstance(entry, OperandTemplate) and entry.moving)
            site = AlignedCallSite(self.runtime, statement, run_time, arguments, view)
        site.computed = needed
        self.sites[id(statement)] = site
        if statement.spec.name == "block_barrier":
            self.flush()
            self.call(site, None)
            self.emit("yield")
        elif run_time.sources:
            self.flush()
            self.call(site, moving)
        else:
            self._group.append(site)

    def moving_view(self, statement: ir.Instruction) -> ir.View | None:
        """The only operand in global memory if its offset is a run-time value and matters only for its alignment."""
        options = self.runtime.options
        if options.sync == "optimistic" or options.l2:
            return None
        views = [
            value for value in statement.args.values() if isinstance(value, ir.View) and value.tensor.memory == "GM"
        ]
        return views[0] if len(views) == 1 and not ir.is_immediate(views[0].offset) else None

    def argument(self, value: Any, run_time: RuntimeArguments, needed: bool, moving: ir.View | None) -> Any:
        """A template of an argument."""
        if isinstance(value, ir.View):
            text = f"(o % {int(self.runtime.soc.timing.gm_line) // size_of(value.dtype)})" if value is moving else ""
            anywhere = self.runtime.options.bounds == "buffer" and value.tensor.memory != "GM"
            return OperandTemplate(self.place(value), value, run_time, self.copy(value.tensor), text, anywhere)
        if isinstance(value, (ir.Variable, ir.Operation)):
            if not needed and value.dtype.startswith("float"):
                return 1.0  # what is computed does not matter
            return run_time.add(value)
        if isinstance(value, (list, tuple)):
            return [self.argument(item, run_time, needed, moving) for item in value]
        if isinstance(value, dict):
            return {name: self.argument(item, run_time, needed, moving) for name, item in value.items()}
        return value

    def call(self, site: Any, moving: ir.View | None) -> None:
        """A call with run-time arguments."""
        sources = site.run_time.sources
        key = sources[0] if len(sources) == 1 else f"({', '.join(sources)})"
        location, reuse = site.location, self.runtime.options.reuse
        if moving is None:
            bind = self.name("B", site.bind)
            if reuse:
                self.emit(f"k = {key}", location)
                self.emit(f"p = {self.name('C', site.bound.entries)}.get(k)", location)
                self.emit(f"if p is None: p = {bind}(k)", location)
            else:
                self.emit(f"p = {bind}({key})", location)
        else:
            bind, limits = self.name("B", site.bind_at), self.name("M", site.limits)
            self.emit(f"o = {self.expressions.wrapped(moving.offset).source}", location)
            self.emit(f"k = {key}", location)
            if reuse:
                self.emit(f"p = {self.name('C', site.bound.entries)}.get(k)", location)
                self.emit(f"if p is None or not 0 <= o <= {limits}[k]: p = {bind}(k, o)", location)
            else:
                self.emit(f"p = {bind}(k, o)", location)
        self.run_all(site.computed, location)

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
                self.emit(f"{INDENT}for x in p: x.run()")
            self.account(None)
            group = group[count:]

    def run_all(self, computed: bool, location: ir.Location | None) -> None:
        """Run the prepared operations ``p`` one after another."""
        if computed:
            self.emit("for x in p: x.run()", location)
        self.account(location)

    def account(self, location: ir.Location | None) -> None:
        """Time and races of the prepared operations ``p``."""
        if not self.synced and self.runtime.pipe_races is not None:
            self.names["_race"] = self.runtime.race
            self.emit("for x in p: _race(x)", location)
        if self.runtime.timing and self.synced:
            self.emit("_step(p)", location)
        elif self.runtime.timing:
            self.emit("for x in p: _step_unsynced(x)", location)

    def scalar_instruction(self, statement: ir.Instruction) -> None:
        """A function of the scalar unit: its result is assigned to a Scalar."""
        spec, target = statement.spec, statement.args[statement.spec.destination]
        if self.needs.instruction(statement):
            entries, cost = [], 1
            for name, value in statement.args.items():
                if name == spec.destination or ir.is_immediate(value):
                    entries.append(f"{name!r}: {self.name('A', value)}")
                else:
                    text = self.expressions.wrapped(value)
                    cost += text.cost
                    entries.append(f"{name!r}: {text.source}")
            function = self.name("E", spec.evaluate)
            self.emit(f"{name_of(target)} = {function}({{{', '.join(entries)}}})", statement.location)
        self.scalar_cost(1)
