"""The recorded program as Python source, compiled once and run once per block.

Loops, branches and scalar arithmetic become plain Python. A call of an instruction becomes a look-up of its prepared
operations by the values of its run-time arguments::

    for v3 in range(0, 16):
        _iteration(1)
        k = (v3 * 128)
        p = C2.get(k)
        if p is None: p = B2(k)
        for x in p: x.run()
        _step(p)

Calls whose arguments are all known are prepared once and run as a group.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any, Callable

from .. import ir
from ..dtypes import is_float, limits, size_of
from ..errors import TikError, TikScopeError
from ..location import GENERATED
from .alloc import copies_of
from .arguments import OperandTemplate, RuntimeArguments, float_key, text_of_copy
from .call_site import AlignedCallSite, CallGroup, CallSite
from .debug_print import DebugPrint
from .definitions import define, reserve
from .element_site import ElementSite
from .expressions import HELPERS, Expressions, Text, convert, name_of
from .needs import Needs
from .progress import Progress
from .runtime import Runtime
from .values import Undefined, pick

_INDENT = " "


@dataclass
class Compiled:
    """A program ready to run.

    Attributes:
        main: runs one block; a generator function that yields at every ``block_barrier`` if ``barriers`` is set.
        names: global names of the program; InputScalars are among them.
        code_bytes: computes the estimated size of the machine code, after a run.
    """

    main: Callable[[], Any]
    barriers: bool
    source: str
    code: CodeType
    names: dict[str, Any]
    lines: dict[int, ir.Location] = field(default_factory=dict)
    code_bytes: Callable[[], int] = int

    def locate(self, error: TikError) -> TikError:
        """``error`` with the user's line."""
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == self.code.co_filename and trace.tb_lineno in self.lines:
                location = self.lines[trace.tb_lineno]
                op = trace.tb_frame.f_locals.get("x")
                # Inside a group of calls, the operation knows its line.
                return error.at(op.location if location is None and op is not None else location)
            trace = trace.tb_next
        return error


class Compiler:
    """Translates one program for one run."""

    def __init__(self, runtime: Runtime, needs: Needs, progress: Progress) -> None:
        self.runtime, self.needs, self.progress = runtime, needs, progress
        self.expressions = Expressions()
        self.names: dict[str, Any] = dict(
            HELPERS, _key=float_key, _range=runtime.loop_range, _blocks=runtime.enter_blocks, _core=runtime.core.core
        )
        if runtime.timing:
            clock = runtime.clock
            self.names.update(
                _scalar=clock.scalar,
                _iteration=clock.iteration,
                _step=clock.step,
                _step_unsynced=clock.step_unsynced,
                _enter=clock.enter_unsynced,
                _leave=clock.leave_unsynced,
            )
        self.lines: list[str] = []
        self.locations: dict[int, ir.Location] = {}
        self.depth = 1
        self.loops = 0
        self.synced = True
        self.live: set[int] = set()
        self.group: list[CallSite] = []
        self.sizes: dict[int, CallSite] = {}
        called = {
            statement.spec.name
            for statement in ir.statements(runtime.program.body)
            if isinstance(statement, ir.Instruction)
        }
        self.barriers = "block_barrier" in called
        self.atomics = "set_atomic_add" in called

    def compile(self) -> Compiled:
        """Translate the whole program."""
        program = self.runtime.program
        self.body(program.body)
        head = "def main():"
        if self.barriers:
            head += "\n if False: yield"
        source = "\n".join([head, *(self.lines or [" pass"])]) + "\n"
        offset = head.count("\n") + 1
        code = compile(source, f"{GENERATED}{program.name}>", "exec")
        exec(code, self.names)
        return Compiled(
            self.names["main"],
            self.barriers,
            source,
            code,
            self.names,
            {line + offset: location for line, location in self.locations.items()},
            self.code_bytes,
        )

    # -------------------------------------------------------------------------------------------- emitting
    def emit(self, text: str, location: ir.Location | None = None) -> None:
        self.lines.append(_INDENT * self.depth + text)
        self.locations[len(self.lines)] = location

    def name(self, prefix: str, value: Any) -> str:
        """A fresh global name for ``value``."""
        name = f"{prefix}{len(self.names)}"
        self.names[name] = value
        return name

    def scalar_cost(self, operations: int) -> None:
        """Charge the scalar unit for ``operations``."""
        if operations and self.runtime.timing:
            self.emit(f"_scalar({operations * self.runtime.soc.timing.scalar_cycles!r})")

    # -------------------------------------------------------------------------------------------- statements
    def body(self, body: ir.Body) -> None:
        """All statements of one scope."""
        live = set(self.live)
        before = len(self.lines)
        for statement in body.statements:
            if not (isinstance(statement, ir.Instruction) and statement.spec.kind != "scalar"):
                self.flush()
            handler = getattr(self, f"_on_{type(statement).__name__}")
            try:
                handler(statement)
            except TikError as error:
                raise error.at(statement.location) from None
        self.flush()
        if len(self.lines) == before:
            self.emit("pass")
        self.live = live

    def nested(self, body: ir.Body) -> None:
        self.depth += 1
        self.body(body)
        self.depth -= 1

    def _on_Define(self, statement: ir.Define) -> None:
        tensor = statement.tensor
        self.live.add(tensor.uid)
        if tensor.memory != "GM" and not all(ir.is_immediate(extent) for extent in tensor.shape):
            extents = " * ".join(self.expressions.wrapped(extent).source for extent in tensor.shape)
            self.emit(f"{self.name('N', reserve(tensor))}({extents})", statement.location)
        if tensor.memory != "GM" and self.runtime.checks:  # default mode run_time what is there, as the chip does
            selectors = self.runtime.plan.placements[tensor.uid].selectors
            fresh = self.name("D", define(self.runtime, tensor))
            self.emit(f"{fresh}({text_of_copy(selectors, self.expressions) or 0})", statement.location)

    def _on_DefineScalar(self, statement: ir.DefineScalar) -> None:
        for variable in statement.variables:
            # Without numerics a value that decides nothing is never computed.
            if self.runtime.options.strict and self.needs.variable(variable):
                initial = self.name("U", Undefined(variable.name))
            else:
                initial = "0.0" if variable.dtype.startswith("float") else "0"
            self.emit(f"{name_of(variable)} = {initial}")

    def _on_Assign(self, statement: ir.Assign) -> None:
        self.assign(statement, (statement.target,), None)

    def _on_AssignElement(self, statement: ir.AssignElement) -> None:
        index = self.expressions.wrapped(statement.index)
        self.emit(f"i = _index({index.source}, {len(statement.targets)})", statement.location)
        self.names["_index"] = _checked_index
        self.assign(statement, statement.targets, "i")

    def assign(self, statement: Any, targets: tuple[ir.Variable, ...], index: str | None) -> None:
        """Assign ``statement.value`` to one of ``targets``."""
        value, needed = statement.value, any(self.needs.variable(target) for target in targets)
        dtype = targets[0].dtype
        if isinstance(value, ir.View):
            source, cost = self.load(value, dtype, statement.location, needed), 0
        else:
            text = self.expressions.converted(value, dtype)
            source, cost = text.source, text.cost + 1
            if not needed:
                self.scalar_cost(cost)
                return
        if index is None:
            self.emit(f"{name_of(targets[0])} = {source}" if needed else source, statement.location)
        else:
            self.emit(f"t = {source}", statement.location)
            for number, target in enumerate(targets):
                self.emit(f"{'el' if number else ''}if {index} == {number}: {name_of(target)} = t")
        self.scalar_cost(cost)

    def _on_Store(self, statement: ir.Store) -> None:
        needed = self.needs.tensor(statement.target.tensor)
        dtype = statement.target.dtype
        if isinstance(statement.value, ir.View):
            source, cost = self.load(statement.value, dtype, statement.location, needed), 0
        elif needed:
            text = self.expressions.converted(statement.value, dtype)
            source, cost = text.source, text.cost
        else:
            source, cost = "0", self.expressions.text(statement.value).cost
        self.emit(
            self.element(statement.target, statement.location, write=True, needed=needed, value=source),
            statement.location,
        )
        self.scalar_cost(cost)

    def load(self, view: ir.View, dtype: str, location: ir.Location, needed: bool) -> str:
        """Source of an element's value as a variable of ``dtype`` takes it: bits of equal width are copied (D5c)."""
        if size_of(view.dtype) == size_of(dtype):
            view = replace(view, dtype=dtype)
        source = self.element(view, location, write=False, needed=needed)
        low, high = (0, 0) if is_float(view.dtype) else limits(view.dtype)
        return convert(Text(source, view.dtype, low, high), dtype).source if needed else source

    def element(self, view: ir.View, location: ir.Location, write: bool, needed: bool, value: str = "") -> str:
        """Source of an element access by the scalar unit."""
        site = ElementSite(self.runtime, view, self.place(view), location, self.synced, needed)
        function = self.name("W" if write else "R", site.writer() if write else site.reader())
        offset = self.expressions.wrapped(view.offset).source
        return f"{function}({offset}, {self.copy(view.tensor) or 0}{', ' + value if write else ''})"

    def _on_For(self, statement: ir.For) -> None:
        begin, end = (self.expressions.wrapped(bound) for bound in (statement.begin, statement.end))
        variable = statement.variable
        self.expressions.ranges[variable.uid] = (max(0, begin.low), max(0, end.high - 1, begin.low))
        name = name_of(variable)
        count = statement.block_num
        if not ir.is_immediate(count) or count != 1:
            blocks = self.expressions.wrapped(count).source
            self.emit(f"for {name} in _blocks({blocks}):", statement.location)
            self.nested(statement.body)
            return
        self.loops += 1
        bounds = f"{begin.source}, {end.source}"
        if ir.is_immediate(statement.begin) and ir.is_immediate(statement.end):
            loop = f"range({bounds})"
        else:
            self.scalar_cost(begin.cost + end.cost)
            loop = f"_range({bounds}, {self.name('L', statement.location)})"
        if self.progress.enabled and self.loops <= self.progress.LEVELS:
            loop = f"{self.name('P', self.progress.loop(self.loops))}({loop})"
        self.emit(f"for {name} in {loop}:", statement.location)
        if self.runtime.timing:
            self.depth += 1
            self.emit(f"_iteration({self.loops})")
            self.depth -= 1
        self.nested(statement.body)
        self.loops -= 1

    def _on_If(self, statement: ir.If) -> None:
        conditions = [self.expressions.condition(condition) for condition, _ in statement.branches]
        self.scalar_cost(sum(condition.cost + 1 for condition in conditions))
        for number, (condition, (_, body)) in enumerate(zip(conditions, statement.branches)):
            self.emit(f"{'el' if number else ''}if {condition.source}:", statement.location)
            self.nested(body)
        if statement.otherwise is not None:
            self.emit("else:")
            self.nested(statement.otherwise)

    def _on_Scope(self, statement: ir.Scope) -> None:
        if not statement.disable_sync or not self.synced:
            self.body(statement.body)
            return
        self.synced = False
        leave = []
        if self.runtime.timing:
            self.emit("_enter()")
            leave.append("_leave()")
        if self.runtime.pipe_races is not None:
            self.names["_races"] = self.runtime.pipe_races
            self.emit("_races.enter()")
        self.emit("try:")
        self.nested(statement.body)
        self.emit("finally: " + ("; ".join(leave) or "pass"))
        self.synced = True

    def _on_Break(self, statement: ir.Break) -> None:
        self.emit("break")

    def _on_Continue(self, statement: ir.Continue) -> None:
        self.emit("continue")

    def _on_Return(self, statement: ir.Return) -> None:
        self.emit("return")

    def _on_DebugPrint(self, statement: ir.DebugPrint) -> None:
        if not self.runtime.numerics:
            return
        tree = ast.parse(statement.expression, mode="eval")
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        tensors, scalars, copies = {}, [], []
        for name in sorted(used & statement.scope.keys()):
            node = statement.scope[name]
            if isinstance(node, ir.View):
                tensors[name] = self.place(node), node
                copies.append(f"{name!r}: {self.copy(node.tensor) or 0}")
            elif isinstance(node, list):
                scalars.append(f"{name!r}: [{', '.join(name_of(variable) for variable in node)}]")
            else:
                scalars.append(f"{name!r}: {self.expressions.wrapped(node).source}")
        show = self.name("G", DebugPrint(self.runtime, statement, tensors))
        self.emit(f"{show}({{{', '.join(scalars)}}}, {{{', '.join(copies)}}})", statement.location)

    # -------------------------------------------------------------------------------------------- instructions
    def _on_Instruction(self, statement: ir.Instruction) -> None:
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
        self.sizes[id(statement)] = site
        if statement.spec.name == "block_barrier":
            self.flush()
            self.call(site, None)
            self.emit("yield")
        elif run_time.sources:
            self.flush()
            self.call(site, moving)
        else:
            self.group.append(site)

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
        group, self.group = self.group, []
        while group:
            computed = group[0].computed
            count = next((number for number, site in enumerate(group) if site.computed != computed), len(group))
            name = self.name("S", CallGroup(self.runtime, group[:count]))
            self.emit(f"p = {name}.ops")
            self.emit(f"if p is None: p = {name}.first()")
            if computed:
                self.emit("else:")
                self.emit(f"{_INDENT}for x in p: x.run()")
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

    # -------------------------------------------------------------------------------------------- tensors
    def place(self, view: ir.View) -> Any:
        tensor = view.tensor
        if tensor.memory != "GM" and tensor.uid not in self.live:
            raise TikScopeError(f"tensor {tensor.name!r} is used outside the statement scope that defined it")
        return self.runtime.place(view)

    def copy(self, tensor: ir.TensorInfo) -> str:
        placement = self.runtime.plan.placements.get(tensor.uid)
        return "" if placement is None else text_of_copy(placement.selectors, self.expressions)

    # -------------------------------------------------------------------------------------------- code size
    def code_bytes(self) -> int:
        """Estimated bytes of machine code: every call counts as often as multi-buffered loops unroll it."""
        timing = self.runtime.soc.timing

        def of_value(value: Any) -> int:
            return self.expressions.text(value).cost if not isinstance(value, ir.View) else 1

        def of_body(body: ir.Body) -> float:
            total = 0.0
            for statement in body.statements:
                if isinstance(statement, ir.Instruction):
                    site = self.sizes.get(id(statement))
                    size = None if site is None else site.code_bytes
                    total += timing.instruction_bytes if size is None else size
                elif isinstance(statement, ir.For):
                    total += 3 * timing.scalar_instruction_bytes + copies_of(statement) * of_body(statement.body)
                elif isinstance(statement, ir.If):
                    for condition, inner in statement.branches:
                        total += (of_value(condition) + 2) * timing.scalar_instruction_bytes + of_body(inner)
                    total += of_body(statement.otherwise) if statement.otherwise is not None else 0
                elif isinstance(statement, ir.Scope):
                    total += of_body(statement.body)
                elif isinstance(statement, (ir.Assign, ir.AssignElement, ir.Store)):
                    total += (of_value(statement.value) + 1) * timing.scalar_instruction_bytes
            return total

        return round(of_body(self.runtime.program.body))


def _checked_index(index: int, length: int) -> int:
    pick(range(length), index)
    return index
