"""The ``with`` blocks of a program: loops, conditions, statement scopes (core.md 3)."""

from __future__ import annotations

from typing import Any, Literal

from ..errors import TikBuildError, TikCallError, did_you_mean
from ..program import ir
from ..program.dtypes import INTEGERS
from ..program.location import fail, here
from .expr import Expr, InputScalar, Scalar, as_int, condition_of, integer_node
from .recorder import Frame, PublicObject, Recorder
from .tracebacks import short_operators

MAX_TRIP = 2147483647
MAX_BLOCKS = 65535
MAX_BRANCHES = 400
_ARGUMENTS = ("begint", "endt", "name", "thread_num", "thread_type", "block_num", "dtype", "for_type")
_RESERVED_LATER = ("subblock_num", "sub_dtype", "sub_name", "sub_thread_num", "enable_subblk")


@short_operators
class _Block(PublicObject):
    """A ``with`` block that opens a statement scope."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._frame: Frame | None = None

    def _open(self, body: ir.Body, kind: str, statement: Any = None, dropped: bool = False) -> None:
        self._frame = self._recorder.open(body, kind, statement, dropped)

    def __exit__(self, *exception: Any) -> Literal[False]:
        self._recorder.close(self._frame)
        return False


@short_operators
class ForRange(_Block):
    """``for_range``; entering it gives the loop variable."""

    def __init__(
        self,
        recorder: Recorder,
        begin: Any,
        end: Any,
        name: Any,
        thread_num: Any,
        thread_type: Any,
        block_num: Any,
        dtype: Any,
        for_type: Any,
        later: dict[str, Any],
    ) -> None:
        super().__init__(recorder)
        unknown = [key for key in later if key not in _RESERVED_LATER]
        if unknown:
            known = (*_ARGUMENTS, *_RESERVED_LATER)
            fail(f"for_range has no argument {unknown[0]!r}{did_you_mean(unknown[0], known)}", TikCallError)
        for label, value, allowed in (
            ("thread_type", thread_type, "whole"),
            ("dtype", dtype, "int32"),
            ("for_type", for_type, "serial"),
        ):
            if value != allowed:
                fail(f"{label} of for_range must be {allowed!r}, got {value!r}")
        if not isinstance(name, str):
            fail(f"name of for_range must be a str, got {name!r}")
        begin, end = self._bound(begin, "begint"), self._bound(end, "endt")
        if isinstance(begin, int) and isinstance(end, int) and begin > end:
            fail(f"for_range needs begint <= endt, got begint {begin} and endt {end}")
        threads = as_int(thread_num)
        if threads is None or not 0 <= threads <= 4:
            fail(f"thread_num must be an immediate in [0, 4], got {thread_num!r}")
        if isinstance(block_num, (Scalar, InputScalar)):
            recorder.require_alive(block_num)
            if block_num.dtype not in INTEGERS:
                fail(f"block_num must be an integer, got a Scalar of {block_num.dtype}")
            blocks = block_num._node
        else:
            blocks = as_int(block_num)
            if blocks is None or not 1 <= blocks <= MAX_BLOCKS:
                fail(f"block_num must be an immediate in [1, {MAX_BLOCKS}] or a Scalar, got {block_num!r}")
        multi_core = not (isinstance(blocks, int) and blocks == 1)
        if multi_core:
            self._check_multi_core(begin, end, blocks, threads)
        self._statement = ir.For(
            here(), ir.Variable(name, "int32", "loop", recorder.uid()), begin, end, ir.Body(), threads, blocks
        )
        self._multi_core = multi_core

    def _bound(self, value: Any, label: str) -> ir.Value:
        if isinstance(value, Expr):
            self._recorder.require_alive(value)
            return integer_node(value, f"{label} of for_range")
        number = as_int(value)
        if number is None:
            fail(f"{label} of for_range must be an integer, a Scalar or an Expr, got {value!r}")
        if not 0 <= number <= MAX_TRIP:
            fail(f"{label} of for_range must be in [0, {MAX_TRIP}], got {number}")
        return number

    def _check_multi_core(self, begin: ir.Value, end: ir.Value, blocks: ir.Value, threads: int) -> None:
        recorder = self._recorder
        if begin != 0 or not ir.is_immediate(begin):
            fail(f"the multi-core loop must begin at 0, got begint {begin!r}")
        if end is not blocks and (not isinstance(end, int) or end != blocks):
            fail(f"endt of the multi-core loop must equal block_num, got endt {end!r} and block_num {blocks!r}")
        if threads > 1:
            fail("block_num and thread_num cannot be enabled on the same for_range; nest two loops")
        if recorder.block_loop is not None:
            fail(
                "only one for_range of an operator may have block_num > 1; the first is at "
                f"{recorder.block_loop.location}"
            )
        if recorder.enclosing_loop() is not None:
            recorder.questionable(
                "block-loop",
                "the multi-core loop must be the outermost for_range; it is taken as if it were: every block runs the "
                "loops around it, each with its own memory",
            )

    def __enter__(self) -> Expr:
        recorder, statement = self._recorder, self._statement
        recorder.append(statement)
        if self._multi_core:
            recorder.set_block_loop(statement)
        self._open(statement.body, "for", statement)
        variable = Expr(statement.variable, self._frame.scope)
        self._frame.names[statement.variable.name] = variable
        return variable


class _Chain:
    """An if with its elifs and else, resolved as far as conditions are known.

    Attributes:
        statement: the If in the program once a run-time condition came up.
        decided: a branch that is always taken has been seen; later branches are dropped.
        dropped: the latest branch is never taken.
        length: number of branches.
        closed: an else has ended it.
    """

    def __init__(self, frame: Frame, location: ir.Location) -> None:
        self.frame, self.location = frame, location
        self.statement: ir.If | None = None
        self.decided = self.dropped = self.closed = False
        self.length = 0

    def branch(self, recorder: Recorder, condition: Any) -> ir.Body:
        """Return the body of the next branch, which is dropped if the branch cannot run."""
        body = ir.Body()
        self.length += 1
        self.dropped = self.decided or condition is False
        if self.dropped:
            return body
        if condition is True:
            self.decided = True
            if self.statement is None:
                recorder.append(ir.Scope(self.location, body))
            else:
                self.statement.otherwise = body
            return body
        if self.statement is None:
            self.statement = ir.If(self.location, [])
            recorder.append(self.statement)
        self.statement.branches.append((condition._node, body))
        return body


@short_operators
class _Branch(_Block):
    """One branch of an if chain."""

    _chain: _Chain
    _condition: bool | Expr

    def __enter__(self) -> None:
        chain = self._chain
        if self._recorder.frame is not chain.frame:
            fail("a branch must be entered where it was made", TikBuildError)
        self._open(chain.branch(self._recorder, self._condition), "if", dropped=chain.dropped)

    def __exit__(self, *exception: Any) -> Literal[False]:
        super().__exit__(*exception)
        frame = self._recorder.frame
        frame.chain, frame.chain_length = self._chain, len(frame.body.statements)
        return False

    def _continue(self, what: str, loads: bool = False) -> None:
        """Continue the chain directly before this statement. With ``loads``, loads of the condition's elements may
        stand between.
        """
        frame = self._recorder.frame
        chain, follows = frame.chain, frame.chain_length == len(frame.body.statements)
        if chain is not None and loads and not follows and self._recorder.only_loads(frame.chain_length):
            follows = True
            if chain.statement is not None:
                # At most one branch of a chain runs, so nothing changes the operands of its conditions between them.
                self._recorder.hoist_loads(frame.chain_length, chain.statement)
        if chain is None or not follows or chain.closed:
            fail(f"{what} must directly follow an if_scope or elif_scope at the same level", TikBuildError)
        if chain.length > MAX_BRANCHES:
            fail(f"at most {MAX_BRANCHES} elif_scope and else_scope can follow one if_scope")
        self._chain = chain


class IfScope(_Branch):
    """``if_scope``."""

    def __init__(self, recorder: Recorder, condition: Any) -> None:
        super().__init__(recorder)
        self._condition = _known_alive(recorder, condition, "if_scope")
        self._chain = _Chain(recorder.frame, here())


class ElifScope(_Branch):
    """``elif_scope``."""

    def __init__(self, recorder: Recorder, condition: Any) -> None:
        super().__init__(recorder)
        self._condition = _known_alive(recorder, condition, "elif_scope")
        self._continue("elif_scope", loads=True)


class ElseScope(_Branch):
    """``else_scope``."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._continue("else_scope")
        self._chain.closed = True
        self._condition = True


def _known_alive(recorder: Recorder, condition: Any, what: str) -> bool | Expr:
    value = condition_of(condition, what)
    if isinstance(value, Expr):
        recorder.require_alive(value)
    return value


@short_operators
class StatementScope(_Block):
    """``new_stmt_scope``."""

    def __init__(self, recorder: Recorder, disable_sync: Any) -> None:
        super().__init__(recorder)
        if not isinstance(disable_sync, (bool, int)):
            fail(f"disable_sync must be a bool, got {disable_sync!r}")
        if recorder.unsynchronised:
            fail("new_stmt_scope cannot be used inside new_stmt_scope(disable_sync=True)")
        self._statement = ir.Scope(here(), ir.Body(), bool(disable_sync))

    def __enter__(self) -> None:
        self._recorder.append(self._statement)
        self._open(self._statement.body, "scope", self._statement)
