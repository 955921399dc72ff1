"""Define an entry of the instruction table.

The front end turns every :class:`InstructionSpec` into a method of ``Tik`` (its signature comes from ``params``) and
calls :meth:`InstructionSpec.check` when the call is recorded. The machine calls :meth:`InstructionSpec.bind` once per
distinct set of resolved arguments; the resulting micro-operations are cached and executed many times.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any, Callable, Union

from ..errors import TikUnsupportedArgumentError
from ..options import Options
from .call import BindContext, Call, Report
from .micro_op import MicroOp
from .params import Count, Param

Binder = Callable[[Call, Any], Union[MicroOp, Iterable[MicroOp], None]]


@dataclass(frozen=True, eq=False)
class InstructionSpec:
    """One row of the instruction table.

    Attributes:
        name: API name (a method of ``Tik``).
        params: parameters in positional order.
        binder: ``f(call, arguments) -> MicroOp | iterable of MicroOp | None``; for kind "scalar" unused.
        typed: tensor parameters whose dtypes are checked together: unless given, those without a rule of their own.
        dtypes: legal dtypes on Ascend 910: a string if all of ``typed`` have the same dtype, else a tuple in the order
            of ``typed``.
        tolerated: dtypes with a clear meaning that the documents leave out: warning, strict mode: error (D13b).
        pipe: executing pipe, for lists ("" if it depends on the operands).
        cost: cost class in ``soc.timing`` (for lists, and for ``vector_cycles``).
        kind: "instruction", or "scalar" (``evaluate`` gives the value assigned to ``destination``).
        returns: None, or "cmpmask" for calls that return a compare-mask handle.
        composite: not allowed inside ``new_stmt_scope(disable_sync=True)``.
        checker: further check of the recorded call, ``f(call)``; ``call.args`` holds the arguments.
        evaluate, destination: for kind "scalar".
        doc: one line.
    """

    name: str
    params: tuple[Param, ...]
    binder: Binder | None
    typed: tuple[str, ...] = ()
    dtypes: tuple[Any, ...] = ()
    tolerated: tuple[Any, ...] = ()
    pipe: str = ""
    cost: str = ""
    kind: str = "instruction"
    returns: str | None = None
    composite: bool = False
    checker: Callable[[Call], None] | None = None
    evaluate: Callable[[dict[str, Any]], Any] | None = None
    destination: str | None = None
    doc: str = ""

    @property
    def signature(self) -> inspect.Signature:
        """Return the documented signature (without ``self``)."""
        return inspect.Signature([param.signature() for param in self.params])

    @property
    def aliases(self) -> dict[str, str]:
        """Return the parameter's name for every other keyword that programs use."""
        return {alias: param.name for param in self.params for alias in param.aliases}

    def arguments(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return all arguments by name, defaults filled in. Raises TypeError as any Python call does."""
        aliases = self.aliases
        kwargs = {aliases.get(name, name): value for name, value in kwargs.items()}
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}() {error}") from None
        bound.apply_defaults()
        return dict(bound.arguments)

    def check(self, args: Mapping[str, Any], soc: Any, options: Options, report: Report, dead: bool = False) -> None:
        """Check the recorded call: types, memories, dtypes, immediates. ``dead``: it never runs."""
        call = Call(self.name, self.pipe, self.cost, args, soc, options, report, dead=dead)
        for param in self._check_order:
            param.check(args[param.name], call)
            if param is self._last_tensor:
                self._check_dtypes(call)
        if self.checker is not None:
            self.checker(call)

    def bind(self, ctx: BindContext, args: Mapping[str, Any]) -> tuple[MicroOp, ...]:
        """Check the resolved arguments and build the micro-operations."""
        call = Call(self.name, self.pipe, self.cost, args, ctx.soc, ctx.options, ctx.report, ctx)
        values = SimpleNamespace(**{param.name: param.resolve(args[param.name], call) for param in self.params})
        result = None if any(getattr(values, name) == 0 for name in self._counts) else self.binder(call, values)
        if result is None:
            return ()
        return (result,) if isinstance(result, MicroOp) else tuple(result)

    def supported(self, dtype: str = "") -> bool:
        """Return whether Ascend 910 has the API, for a dtype or a direction like "src2dst"."""
        if not dtype or not self.dtypes:
            return True
        return any(
            dtype == entry if isinstance(entry, str) else dtype in entry or dtype == "2".join(reversed(entry))
            for entry in self.dtypes
        )

    @cached_property
    def _check_order(self) -> list[Param]:
        """Return the parameters, tensors first: other parameters depend on their dtypes."""
        return sorted(self.params, key=lambda param: not param.first)

    @cached_property
    def _counts(self) -> list[str]:
        return [param.name for param in self.params if isinstance(param, Count)]

    @cached_property
    def _last_tensor(self) -> Param | None:
        tensors = [param for param in self.params if param.first]
        return tensors[-1] if tensors else None

    def _check_dtypes(self, call: Call) -> None:
        if not self.dtypes:
            return
        typed = (call.args[name] for name in self.typed)
        came = tuple((value[0] if isinstance(value, (list, tuple)) else value).dtype for value in typed)
        same = came[0] if len(set(came)) == 1 else None
        if came in self.dtypes or (same is not None and same in self.dtypes):
            return
        listing = ", ".join(f"{name} {dtype}" for name, dtype in zip(self.typed, came))
        if came in self.tolerated or (same is not None and same in self.tolerated):
            call.questionable(
                "undocumented", f"no document lists {same or listing} for Ascend 910", TikUnsupportedArgumentError
            )
            return
        legal = ", ".join(entry if isinstance(entry, str) else "(" + ", ".join(entry) + ")" for entry in self.dtypes)
        if same is None and all(isinstance(entry, str) for entry in self.dtypes):
            call.fail(f"{' and '.join(self.typed)} must have the same dtype, got {listing}")
        call.fail(f"Ascend 910 takes {legal} for {', '.join(self.typed)}; got {listing}", TikUnsupportedArgumentError)
