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

Calls without run-time arguments are prepared once and run as a group.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass, field, replace
from functools import partial
from types import CodeType
from typing import Any, Callable

import numpy as np

from ..errors import Moment, TikError, TikUnsupportedError
from ..program import ir
from ..program.dtypes import is_float, limits, size_of
from ..program.location import GENERATED
from .alloc import Placement
from .backward_slice import Needs
from .calls.arguments import beyond_reserve
from .calls.compiler import CallCompiler
from .code_size import code_bytes
from .element_site import ElementSite
from .expressions import Text, convert, name_of
from .progress import Progress
from .runtime import Runtime, TensorPlace
from .values import Undefined, pick


@dataclass
class Compiled:
    """A program ready to run.

    Attributes:
        main: runs one block; a generator function that yields at every ``block_barrier`` if ``barriers`` is set.
        names: global names of the program; InputScalars are among them.
        runtime: the run.
        lines: by line of ``source``, the user's line and the loops around it.
        code_bytes: computes the estimated size of the machine code, after a run.
    """

    main: Callable[[], Any]
    barriers: bool
    source: str
    code: CodeType
    names: dict[str, Any]
    runtime: Runtime
    lines: dict[int, tuple[ir.Location | None, tuple[ir.For, ...]]] = field(default_factory=dict)
    code_bytes: Callable[[], int] = int

    def locate(self, error: TikError) -> TikError:
        """Return ``error`` with the user's line, the block and the loop variables."""
        trace = error.__traceback__
        while trace is not None:
            frame = trace.tb_frame
            if frame.f_code.co_filename == self.code.co_filename and trace.tb_lineno in self.lines:
                location, loops = self.lines[trace.tb_lineno]
                op = frame.f_locals.get("x")
                # Inside a group of calls, the operation knows its line.
                place = op.location if location is None and op is not None else location
                return error.at(place, self._moment(loops, frame.f_locals))
            trace = trace.tb_next
        return error

    def moment(self) -> Moment | None:
        """Block and loop variables, while the program runs."""
        frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != self.code.co_filename:
            frame = frame.f_back
        if frame is None or frame.f_lineno not in self.lines:
            return None
        return self._moment(self.lines[frame.f_lineno][1], frame.f_locals)

    def _moment(self, loops: tuple[ir.For, ...], values: dict[str, Any]) -> Moment | None:
        names = [loop.variable.name for loop in loops]
        shown = tuple(
            (name if names.count(name) == 1 else f"{name} (line {loop.location.line})", values[name_of(loop.variable)])
            for name, loop in zip(names, loops)
        )
        count = self.runtime.block_count
        if count == 1 and not shown:
            return None
        return Moment(None if count == 1 else self.runtime.block, count, shown)


class Compiler(CallCompiler):
    """Translate one program for one run."""

    def __init__(self, runtime: Runtime, needs: Needs, progress: Progress) -> None:
        super().__init__(runtime, needs)
        self.progress = progress
        self.loops = 0
        #: Variables that were read from the Unified Buffer and not used yet.
        self.loaded: set[int] = set()

    def compile(self) -> Compiled:
        """Translate the whole program."""
        program = self.runtime.program
        self.body(program.body)
        head = "def main():"
        if self.barriers:
            head += "\n if False: yield"
        source = "\n".join([head, *(self.lines or [" pass"])]) + "\n"
        offset = head.count("\n") + 1
        try:
            code = compile(source, f"{GENERATED}{program.name}>", "exec")
        except (SyntaxError, RecursionError) as error:
            # Python has limits of its own: 19 loops inside each other, 99 levels of blocks, expressions 200 deep.
            before = range((getattr(error, "lineno", None) or 0) - offset, 0, -1)
            location = next(filter(None, (self.locations[line][0] for line in before)), None)
            message = f"the program is nested too deeply for tikemu, whose Python refuses it: {error.args[0]}"
            raise TikUnsupportedError(message, location) from None
        exec(code, self.names)
        return Compiled(
            self.names["main"],
            self.barriers,
            source,
            code,
            self.names,
            self.runtime,
            {line + offset: entry for line, entry in self.locations.items()},
            partial(code_bytes, program, self.sites, self.expressions),
        )

    # -------------------------------------------------------------------------------------------- statements
    def await_value(self, statement: ir.Statement) -> None:
        """Wait for scalar reads of the Unified Buffer that ``statement`` uses."""
        used = [leaf for leaf in ir.leaves(statement) if leaf.uid in self.loaded]
        if used:
            self.flush()
            is_call = isinstance(statement, ir.Instruction) and statement.spec.kind != "scalar"
            self.emit(self.timed("_await", is_call and all(is_float(leaf.dtype) for leaf in used)))
            self.loaded.clear()

    def body(self, body: ir.Body) -> None:
        """Compile all statements of one scope."""
        live, loaded = set(self.live), set(self.loaded)
        before = len(self.lines)
        for statement in body.statements:
            if not (isinstance(statement, ir.Instruction) and statement.spec.kind != "scalar"):
                self.flush()
            if self.loaded:
                self.await_value(statement)
            handler = getattr(self, f"_on_{type(statement).__name__}")
            try:
                handler(statement)
            except TikError as error:
                raise error.at(statement.location) from None
        self.flush()
        if len(self.lines) == before:
            self.emit("pass")
        self.live = live
        self.loaded |= loaded  # the program may not enter this scope

    def nested(self, body: ir.Body) -> None:
        self.depth += 1
        self.body(body)
        self.depth -= 1

    def _on_Define(self, statement: ir.Define) -> None:
        tensor = statement.tensor
        self.live.add(tensor.uid)
        if tensor.memory != "GM" and not all(ir.is_immediate(extent) for extent in tensor.shape):
            extents = " * ".join(self.expressions.wrapped(extent).source for extent in tensor.shape)
            self.emit(f"{self.name('N', partial(_check_reserve, tensor))}({extents})", statement.location)
        if tensor.memory != "GM" and self.runtime.marks:  # default mode leaves the old contents, as the chip does
            fresh = self.name("D", partial(self._define, self.runtime.plan.placements[tensor.uid], tensor.memory))
            self.emit(f"{fresh}({self.copy(tensor) or 0})", statement.location)

    def _define(self, placement: Placement, memory: str, copy: int) -> None:
        """Give a tensor fresh contents."""
        start = placement.address + copy * placement.stride
        self.runtime.core.clear(memory, start, start + placement.size)

    def _on_DefineScalar(self, statement: ir.DefineScalar) -> None:
        for variable in statement.variables:
            # Without numerics a value that decides nothing is never computed.
            if self.runtime.options.checks("undefined") and self.needs.variable(variable):
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
        if isinstance(value, ir.View) and value.tensor.memory == "UB" and self.runtime.timing:
            self.loaded.update(target.uid for target in targets)
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
        """Return the source of an element's value as a variable of ``dtype`` takes it: bits of equal width are copied
        (D5c).
        """
        if size_of(view.dtype) == size_of(dtype):
            view = replace(view, dtype=dtype)
        source = self.element(view, location, write=False, needed=needed)
        low, high = (0, 0) if is_float(view.dtype) else limits(view.dtype)
        return convert(Text(source, view.dtype, low, high), dtype).source if needed else source

    def element(self, view: ir.View, location: ir.Location, write: bool, needed: bool, value: str = "") -> str:
        """Return the source of an element access by the scalar unit."""
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
            self.loop_body(statement)
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
        self.loop_body(statement)
        self.loops -= 1

    def loop_body(self, loop: ir.For) -> None:
        """Compile the body of a loop. Errors inside can name its variable."""
        around, self.enclosing = self.enclosing, (*self.enclosing, loop)
        self.nested(loop.body)
        self.enclosing = around

    def _on_If(self, statement: ir.If) -> None:
        conditions = [self.expressions.wrapped(condition) for condition, _ in statement.branches]
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
            self.emit(self.timed("_enter", None))
            leave.append(self.timed("_leave", None))
        if self.runtime.pipe_races is not None:
            self.names["_races"] = self.runtime.pipe_races
            self.emit("_races.enter()")
        self.emit("try:")
        self.nested(statement.body)
        self.emit("finally: " + ("; ".join(leave) or "pass"))
        self.synced = True

    def _jump(self, statement: ir.Break | ir.Continue | ir.Return) -> None:
        self.emit(type(statement).__name__.lower())

    _on_Break = _on_Continue = _on_Return = _jump

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
        show = self.name("G", _debug_print(statement.expression, tensors))
        self.emit(f"{show}({{{', '.join(scalars)}}}, {{{', '.join(copies)}}})", statement.location)


def _checked_index(index: int, length: int) -> int:
    pick(range(length), index)
    return index


def _debug_print(
    expression: str, tensors: dict[str, tuple[TensorPlace, ir.View]]
) -> Callable[[dict[str, Any], dict[str, int]], None]:
    """Return ``f(scalars, copies)``: evaluates an expression over tensors and scalars, and prints it."""
    code = compile(expression, "<debug_print>", "eval")

    def show(scalars: dict[str, Any], copies: dict[str, int]) -> None:
        names: dict[str, Any] = dict(scalars)
        for name, (place, view) in tensors.items():
            start = place.address + copies.get(name, 0) * place.stride
            array = place.memory.data[start : start + place.size].view(view.dtype)
            fixed = all(ir.is_immediate(extent) for extent in view.shape)
            names[name] = array.reshape(view.shape).copy() if fixed else array.copy()
        try:
            value = eval(code, {"np": np}, names)
        except (NameError, IndexError, TypeError, ValueError, ZeroDivisionError) as error:
            value = f"{type(error).__name__}: {error}"
        print(f"{expression} = {value}")

    return show


def _check_reserve(tensor: ir.TensorInfo, elements: int) -> None:
    """Check the run-time size of a tensor when its definition is reached."""
    needed = elements * size_of(tensor.dtype)
    if needed > tensor.max_mem_size:
        raise beyond_reserve(tensor, needed)
