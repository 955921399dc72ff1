"""Recording: the statements so far, the scopes that are open, and what was found questionable.

One :class:`Recorder` belongs to one ``Tik`` instance. Tensors and values hold the :class:`Scope` in which they were
defined and reach the recorder through it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from ..errors import TikBuildError, TikError, TikParamError, TikScopeError, TikUnknownApiError, did_you_mean
from ..findings import Finding
from ..options import default_options
from ..program import ir
from ..program.location import fail, here, warn
from ..program.nodes import as_number, within_64_bits
from ..soc import SocProfile
from .tracebacks import short_operators


class Scope:
    """The life time of the tensors and values that one ``with`` block defines."""

    __slots__ = ("recorder", "depth", "alive")

    def __init__(self, recorder: Recorder, depth: int) -> None:
        self.recorder, self.depth, self.alive = recorder, depth, True


@short_operators
class PublicObject:
    """An object that programs use: a name that it lacks is a TikError with the program's line."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        kind = type(self)
        if name.startswith("_"):  # Python's own, and names of the emulator that are not set yet
            raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")
        known = [entry for entry in dir(kind) if not entry.startswith("_")]
        fail(f"{self._unknown(name)}{did_you_mean(name, known)}", TikUnknownApiError)

    def _unknown(self, name: str) -> str:
        """Return the start of the message about a name that there is not."""
        return f"{type(self).__name__} has no attribute {name!r}"


class ScopedValue(PublicObject):
    """Represent a run-time value or tensor, usable until the scope that defined it ends.

    Attributes:
        _kind: "value" or "tensor", for messages.
        _label: its text or name, for messages.
    """

    __slots__ = ("_scope",)

    _kind: str
    _scope: Scope
    _node: Any  # ir.Value or ir.View

    @property
    def _label(self) -> str:
        raise NotImplementedError

    def _as_source(self, dtype: str, what: str) -> ir.Value | ir.View:
        """Return the node that assigns this value to a Scalar or tensor element.

        Raises:
            TikUnsupportedArgumentError: Ascend 910 has no such assignment.
        """
        raise NotImplementedError


def scope_error(label: str, kind: str) -> NoReturn:
    """Report the use of a tensor or value after its scope has ended."""
    fail(
        f"{kind} {label!r} is used outside the statement scope that defined it; it was released at the "
        "end of its with block",
        TikScopeError,
    )


class Frame:
    """An open statement scope.

    Attributes:
        body: where its statements go.
        kind: "kernel", "for", "if" or "scope".
        statement: its For, If or Scope statement.
        dropped: the scope is a branch that is never taken, or lies inside such a branch.
        dead: nothing in it ever runs: it is dropped, or a loop without iterations is around it.
        names: what it defined, by name.
        chain: the if chain that an elif_scope or else_scope may continue, and the length of ``body`` behind it.
    """

    __slots__ = ("body", "scope", "kind", "statement", "dropped", "dead", "names", "chain", "chain_length")

    def __init__(self, body: ir.Body, scope: Scope, kind: str, statement: Any = None, dropped: bool = False) -> None:
        self.body, self.scope, self.kind, self.statement, self.dropped = body, scope, kind, statement, dropped
        self.dead = dropped
        self.names: dict[str, Any] = {}
        self.chain: Any = None
        self.chain_length = 0


class Recorder:
    """State of one kernel while it is written.

    Attributes:
        soc: SoC profile the kernel is built for.
        program: the program; its body grows with every statement.
        frames: open statement scopes, outermost first.
        block_loop: the multi-core loop; None until the program opens it.
        candidates: GM tensors and InputScalars, which may become arguments of the kernel.
        built: BuildCCE was called.
    """

    def __init__(self, soc: SocProfile, debug_enabled: bool) -> None:
        self.soc = soc
        self.options = default_options()
        self.program = ir.Program("", [], [], ir.Body(), soc, debug_enabled)
        self.frames = [Frame(self.program.body, Scope(self, 0), "kernel")]
        self.block_loop: ir.For | None = None
        self.candidates: list[Any] = []
        self.built = False
        self._uid = 0
        self._default_names: dict[str, int] = {}
        self._unsynchronised = 0
        self._bounds: list[tuple[ir.For, set[ir.Variable]]] = []
        self._outside_warned = False
        self._loads: set[ir.Statement] = set()
        self._warned: dict[Any, Any] = {}

    # -------------------------------------------------------------------------------------------- small services
    def uid(self) -> int:
        self._uid += 1
        return self._uid

    def default_name(self, stem: str) -> str:
        """Return the next of the default names ``stem0``, ``stem1``, ..."""
        number = self._default_names.get(stem, 0)
        self._default_names[stem] = number + 1
        return f"{stem}{number}"

    @property
    def frame(self) -> Frame:
        return self.frames[-1]

    @property
    def scope(self) -> Scope:
        return self.frames[-1].scope

    @property
    def unsynchronised(self) -> bool:
        """Return whether a ``new_stmt_scope(disable_sync=True)`` is open."""
        return self._unsynchronised > 0

    def questionable(self, kind: str, message: str, error: type[TikError] = TikParamError) -> None:
        """Note questionable use at the user's line: a TikWarning, in strict mode ``error``.

        A run in strict mode finds it too, if the program was recorded in default mode.
        """
        finding = Finding(kind, error, message, here())
        if self.options.raises(kind):
            raise finding.exception()
        self.program.findings.append(finding)
        if not self.options.checks(kind):
            self.warn(message)

    def warn(self, message: str) -> None:
        """Issue a TikWarning at the user's line."""
        warn(message, told=self._warned)

    def _report(self, kind: str, error: type[TikError], message: str) -> None:
        self.questionable(kind, message, error)

    def require_alive(self, value: ScopedValue) -> None:
        """Refuse a value or tensor of another kernel, or of a scope that has ended."""
        scope = value._scope
        if scope.recorder is not self:
            fail(f"{value!r} belongs to another Tik instance")
        if not scope.alive:
            scope_error(value._label, value._kind)

    def lower(self, value: Any, name: str = "an argument") -> Any:
        """Return the argument ``name`` as the program holds it: numbers and strings as they are, tensors as views,
        values as nodes.
        """
        kind = type(value)
        if kind is int:
            return within_64_bits(value, name)
        if kind is str or kind is float or kind is bool or value is None:
            return value
        if isinstance(value, ScopedValue):
            scope = value._scope
            if scope.recorder is not self or not scope.alive:
                self.require_alive(value)
            return value._node
        if kind is list or kind is tuple:
            return [self.lower(item, name) for item in value]
        if kind is dict:
            return {key: self.lower(item, name) for key, item in value.items()}
        if kind is ir.CmpMask:
            return value
        number = as_number(value)
        if number is None:
            fail(f"a {kind.__name__} cannot be an argument: {value!r}")
        return within_64_bits(number, name)

    # -------------------------------------------------------------------------------------------- statements
    def record(self, statement: Callable[..., ir.Statement], **fields: Any) -> Any:
        """Append a statement at the user's line."""
        return self.append(statement(here(), **fields))

    def record_load(self, variable: ir.Variable, view: ir.View) -> None:
        """Append the load of a hidden Scalar, which the condition of an elif_scope may need."""
        for statement in (ir.DefineScalar(here(), (variable,)), ir.Assign(here(), variable, view)):
            self._loads.add(self.append(statement))

    def hoist_loads(self, start: int, target: ir.Statement) -> None:
        """Move loads from place ``start`` of the open scope in front of statement ``target``."""
        statements = self.frame.body.statements
        place = statements.index(target)
        statements[place:] = [*statements[start:], *statements[place:start]]

    def only_loads(self, start: int) -> bool:
        """Return whether only loads of hidden Scalars follow place ``start`` of the open scope."""
        return self._loads.issuperset(self.frame.body.statements[start:])

    def append(self, statement: ir.Statement) -> ir.Statement:
        if self.built:
            raise TikBuildError("no statement can follow BuildCCE", statement.location)
        if self.block_loop is not None and len(self.frames) == 1 and not self._outside_warned:
            self._warn_outside(statement)
        if self._bounds and isinstance(statement, (ir.Assign, ir.AssignElement)):
            self._check_bounds(statement)
        self.frames[-1].body.statements.append(statement)
        return statement

    def _check_bounds(self, statement: ir.Assign | ir.AssignElement) -> None:
        """Refuse a changed end of a loop: the task would hang (core.md 3.1)."""
        targets = (statement.target,) if isinstance(statement, ir.Assign) else statement.targets
        for loop, used in self._bounds:
            if not used.isdisjoint(targets):
                self.questionable(
                    "loop",
                    f"{targets[0].name!r} takes part in endt of the for_range at {loop.location} and must not be "
                    "modified in its body",
                )

    def set_block_loop(self, loop: ir.For) -> None:
        """Note the multi-core loop, which was just appended; warn about what stands before it (D4a)."""
        if self.frame.dropped:
            return
        for frame in self.frames:
            # The last statement is the loop, or holds it.
            for statement in frame.body.statements[:-1]:
                self._warn_outside(statement)
        self.block_loop = loop

    def _warn_outside(self, statement: ir.Statement) -> None:
        harmless = isinstance(statement, ir.DebugPrint) or (
            isinstance(statement, ir.Define) and statement.tensor.memory == "GM"
        )
        if not harmless and not self._outside_warned:
            self._outside_warned = True
            self.questionable(
                "block-loop",
                "on-chip tensors, Scalars and statements belong inside the multi-core loop; what stands outside "
                f"is executed once per block, each with its own memory (first: {statement.location})",
            )

    def instruction(self, spec: Any, args: dict[str, Any]) -> ir.CmpMask | None:
        """Check and append one call of the instruction table."""
        lower = self.lower
        for name, value in args.items():
            args[name] = lower(value, name)
        location = here()
        if self._unsynchronised and spec.composite:
            raise TikParamError(f"{spec.name} cannot be used inside new_stmt_scope(disable_sync=True)", location)
        try:
            spec.check(args, self.soc, self.options, self._report, self.frame.dead)
        except TikError as error:
            raise error.at(location) from None
        result = ir.CmpMask(self.uid()) if spec.returns == "cmpmask" else None
        self.append(ir.Instruction(location, spec, args, result))
        return result

    # -------------------------------------------------------------------------------------------- scopes
    def open(self, body: ir.Body, kind: str, statement: Any = None, dropped: bool = False) -> Frame:
        frame = Frame(body, Scope(self, len(self.frames)), kind, statement, dropped or self.frame.dropped)
        frame.dead = frame.dropped or self.frame.dead
        self.frames.append(frame)
        if isinstance(statement, ir.For):
            frame.dead = frame.dead or (ir.is_immediate(statement.end) and statement.begin == statement.end)
            if not ir.is_immediate(statement.end):
                self._bounds.append((statement, set(ir.leaves(statement.end))))
        if isinstance(statement, ir.Scope) and statement.disable_sync:
            self._unsynchronised += 1
        return frame

    def close(self, frame: Frame) -> None:
        if self.frames.pop() is not frame:
            fail("with blocks of a Tik instance must be nested", TikBuildError)
        frame.scope.alive = False
        if self._bounds and self._bounds[-1][0] is frame.statement:
            self._bounds.pop()
        if isinstance(frame.statement, ir.Scope) and frame.statement.disable_sync:
            self._unsynchronised -= 1

    def enclosing_loop(self) -> ir.For | None:
        """Return the innermost open for_range."""
        for frame in reversed(self.frames):
            if frame.kind == "for":
                return frame.statement
        return None

    def visible(self) -> dict[str, Any]:
        """Return the tensors and scalars in scope, by name."""
        names: dict[str, Any] = {}
        for frame in self.frames:
            names.update(frame.names)
        return names
