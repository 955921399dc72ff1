"""What stands behind one call of the compiled program.

A :class:`CallSite` turns the run-time arguments of a call into bound operations, once per distinct set of values.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ..errors import TikError
from ..isa.call import BindContext
from ..program import ir
from ..timing.reuse import Reusable
from .arguments import KeyField, OperandTemplate, RuntimeArguments, resolve
from .binding_cache import BindingCache
from .relocation import KEPT, Relocator
from .runtime import BoundOp, Ops, Runtime
from .tally import Tally, reset


class CallSite(Reusable):
    """One call of an instruction.

    Attributes:
        bound: the operations of earlier executions.
        run_time: the run-time values.
        computed: its numerics are run.
        number: its place among the sites of the run.
        relocator: uses bound operations again at other addresses; None where that does not work.
    """

    def __init__(
        self, runtime: Runtime, statement: ir.Instruction, run_time: RuntimeArguments, arguments: dict[str, Any]
    ) -> None:
        self.runtime, self.statement, self.arguments = runtime, statement, arguments
        self.run_time = run_time
        self.location = statement.location
        self.bound = BindingCache(runtime.options.reuse, self.retire)
        self.retired = Tally()
        self.code_bytes: int | None = None
        self.computed = True
        self.relocator = self._relocator()
        self.number = len(runtime.sites)
        runtime.sites.append(self)

    def _relocator(self) -> Relocator | None:
        options = self.runtime.options
        if not self.run_time.sources or not options.reuse or options.sync == "optimistic" or options.l2:
            return None  # in the last two cases every address has a footprint, or lines, of its own
        entries = list(self.arguments.values())
        views = [entry for entry in entries if isinstance(entry, OperandTemplate)]
        if any(isinstance(entry, (list, dict)) and entry for entry in entries) or not any(view.moves for view in views):
            return None
        floats = {entry.index for entry in entries if isinstance(entry, KeyField)} & self.run_time.floats
        return Relocator(self, views, floats.pop() if len(floats) == 1 else None)

    def bind(self, key: Any) -> Ops:
        """Bind the call for a set of run-time values, and keep it."""
        values = key if len(self.run_time.sources) != 1 else (key,)
        if self.relocator is not None and len(self.bound) >= KEPT:
            ops = self.relocator.find(values)
            if ops is not None:
                if not self.computed and not self.bound.full:
                    self.bound.store(key, ops)  # nothing is moved, so they serve this key as they are
                return ops
        ops = self.prepare(values)
        self.keep(key, ops)
        return ops

    def keep(self, key: Any, ops: Ops) -> None:
        """Keep what was bound for ``key``."""
        if self.bound.full:
            self.forget()
        self.bound.store(key, ops)

    def prepare(self, values: tuple, offset: int | None = None) -> Ops:
        """Check the call and build its operations."""
        runtime, location = self.runtime, self.location
        if runtime.journal is not None:
            runtime.journal.site = self.number

        def fault(error: type[TikError], message: str) -> None:
            raise error(message, location)

        result = self.statement.result
        context = BindContext(
            runtime.soc,
            runtime.options,
            runtime.core.core,
            partial(runtime.report, location),
            fault,
            not self.run_time.sources,
            None if result is None else result.uid,
            runtime.plan.free[id(self.statement)],
        )
        try:
            arguments = {name: resolve(entry, values, offset) for name, entry in self.arguments.items()}
            micros = self.statement.spec.bind(context, arguments)
        except TikError as error:
            raise error.at(location) from None
        ops = tuple(runtime.prepare(micro, location) for micro in micros)
        if self.code_bytes is None:
            self.code_bytes = sum(micro.code_bytes for micro in micros)
        return ops

    def prepared(self) -> list[Ops]:
        """All operations that are kept, each once."""
        kept = [*self.bound.entries.values(), *(self.relocator.prepared() if self.relocator is not None else ())]
        return list({id(ops): ops for ops in kept}.values())

    def forget(self) -> None:
        self.bound.forget()
        if self.relocator is not None:
            self.relocator.forget()

    def retire(self, ops: Ops) -> None:
        """Keep what ``ops`` have counted so far."""
        if self.runtime.clock is not None:
            self.runtime.clock.settle()
        self.retired.add(ops)
        reset(ops)

    def restart(self) -> None:
        self.retired = Tally()
        for ops in self.prepared():
            reset(ops)

    def tally(self) -> Tally:
        """Everything that was executed here."""
        total = Tally()
        total.merge(self.retired)
        for ops in self.prepared():
            total.add(ops)
        return total


class AlignedCallSite(CallSite):
    """A call with one operand in global memory at a run-time offset, in a run without numerics.

    Its time depends on the offset only through the alignment to the lines of the L2 buffer, so all offsets that are
    equal in this respect share the prepared operations; the key holds the offset modulo ``unit``.
    """

    def __init__(
        self,
        runtime: Runtime,
        statement: ir.Instruction,
        run_time: RuntimeArguments,
        arguments: dict[str, Any],
        view: OperandTemplate,
    ) -> None:
        super().__init__(runtime, statement, run_time, arguments)
        self.relocator = None
        self.view = view
        self.unit = int(runtime.soc.timing.gm_line) // view.itemsize
        self.limits: dict[Any, int] = {}

    def bind_at(self, key: Any, offset: int) -> Ops:
        """Prepare the call at ``offset`` elements, and remember up to which offset it stays inside the tensor."""
        ops = self.prepare(key if len(self.run_time.sources) != 1 else (key,), offset)
        reach = 0
        for op in ops:
            for access in (*op.micro.reads, *op.micro.writes):
                if access.operand.memory is self.view.place.memory:
                    reach = max(reach, access.region.end - access.operand.address)
        self.keep(key, ops)
        self.limits[key] = (self.view.place.size - reach) // self.view.itemsize
        return ops

    def forget(self) -> None:
        super().forget()
        self.limits.clear()


class CallGroup(Reusable):
    """Consecutive calls without run-time arguments."""

    def __init__(self, runtime: Runtime, sites: list[CallSite]) -> None:
        self.sites, self.reuse = sites, runtime.options.reuse
        self.ops: Ops | None = None
        runtime.sites.append(self)

    def first(self) -> Ops:
        """Prepare and run call after call, so that each is bound with the registers as the one before left them."""
        self.ops = ()
        prepared: list[BoundOp] = []
        for site in self.sites:
            ops = site.bound.get(())
            if ops is None:
                ops = site.bind(())
            prepared += ops
            if site.computed:
                for op in ops:
                    try:
                        op.run()
                    except TikError as error:
                        raise error.at(op.location) from None
        # None: something has asked for everything to be prepared again meanwhile.
        if self.ops is not None:
            self.ops = tuple(prepared) if self.reuse else None
        return tuple(prepared)

    def forget(self) -> None:
        self.ops = None
