"""Execute one call of the compiled program."""

from __future__ import annotations

from functools import partial
from typing import Any

from ...errors import TikError
from ...isa.call import BindContext
from ...program import ir
from ..counters import Tally, reset
from ..runtime import BoundOp, Ops, Reusable, Runtime
from .arguments import RuntimeArguments, resolve
from .relocation import Relocator

#: Keys kept per call, and footprints kept per element access.
LIMIT = 4096
#: Keys that a call with numerics has before its operations are relocated. Without numerics the first key is enough.
KEPT = 128


class CallSite(Reusable):
    """One call of an instruction.

    Args:
        runtime: the run.
        statement: the call as recorded.
        run_time: its run-time values.
        arguments: templates of its arguments.
        computed: whether its numerics are run.

    Attributes:
        bound: the operations by key, for the compiled program. The key is the tuple of the run-time values, or the
            value itself if there is one, or () if there is none.
        retired: what dropped operations have counted.
        number: its place among the sites of the run.
        relocator: uses operations again at other addresses and with another scalar; None if neither is a run-time
            value.
    """

    def __init__(
        self,
        runtime: Runtime,
        statement: ir.Instruction,
        run_time: RuntimeArguments,
        arguments: dict[str, Any],
        computed: bool,
    ) -> None:
        self.runtime, self.statement, self.arguments = runtime, statement, arguments
        self.run_time, self.computed = run_time, computed
        self.location = statement.location
        self.bound: dict[Any, Ops] = {}
        self.retired = Tally()
        self.code_bytes: int | None = None
        self.relocator = self._relocator()
        self.number = len(runtime.sites)
        runtime.sites.append(self)

    def _relocator(self) -> Relocator | None:
        options = self.runtime.options
        if not options.reuse or options.sync == "optimistic" or options.l2:
            return None  # in the last two cases every address has a footprint, or lines, of its own
        relocator = Relocator(self.runtime, self.prepare, self.retire, self.arguments, self.computed)
        return relocator if relocator.possible else None

    def bind(self, key: Any) -> Ops:
        """Return the operations for a set of run-time values that are not in ``bound``."""
        values = key if len(self.run_time.sources) != 1 else (key,)
        ops = None
        if self.relocator is not None and len(self.bound) >= (KEPT if self.computed else 0):
            ops = self.relocator.find(values)
            if ops is not None and (self.computed or len(self.bound) >= LIMIT):
                return ops  # without numerics they need no change for this key, and are kept for it
        if ops is None:
            ops = self.prepare(values)
            if len(self.bound) >= (LIMIT if self.runtime.options.reuse else 1):
                self.forget()
        self.bound[key] = ops
        return ops

    def prepare(self, values: tuple) -> Ops:
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
            arguments = {name: resolve(entry, values) for name, entry in self.arguments.items()}
            micros = self.statement.spec.bind(context, arguments)
        except TikError as error:
            raise error.at(location) from None
        ops = tuple(runtime.prepare(micro, location) for micro in micros)
        if self.code_bytes is None:
            size = self.runtime.soc.timing.instruction_bytes
            self.code_bytes = int(sum(micro.instructions for micro in micros) * size)
        return ops

    def prepared(self) -> list[Ops]:
        """Return all operations that are kept, each once."""
        kept = [*self.bound.values(), *(self.relocator.prepared() if self.relocator is not None else ())]
        return list({id(ops): ops for ops in kept}.values())

    def forget(self) -> None:
        for ops in self.prepared():
            self.retire(ops)
        self.bound.clear()
        if self.relocator is not None:
            self.relocator.templates.clear()

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
        """Return the counts of everything that was executed here."""
        total = Tally()
        total.merge(self.retired)
        for ops in self.prepared():
            total.add(ops)
        return total


class CallGroup(Reusable):
    """Consecutive calls without run-time arguments."""

    def __init__(self, runtime: Runtime, sites: list[CallSite]) -> None:
        self.sites, self.reuse = sites, runtime.options.reuse
        self.ops: Ops | None = None
        runtime.sites.append(self)

    def first(self) -> Ops:
        """Prepare and run call after call. Each is bound with the registers as the call before left them."""
        self.ops = ()
        prepared: list[BoundOp] = []
        for site in self.sites:
            ops = site.bound.get(()) if self.reuse else None
            if ops is None:
                ops = site.bind(())
            prepared += ops
            if site.computed:
                for op in ops:
                    try:
                        op.run()
                    except TikError as error:
                        raise error.at(op.location) from None
        # None: meanwhile all operations were dropped, to be prepared again.
        if self.ops is not None:
            self.ops = tuple(prepared) if self.reuse else None
        return tuple(prepared)

    def forget(self) -> None:
        self.ops = None
