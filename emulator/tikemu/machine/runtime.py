"""State of one run, and the functions that the compiled program calls."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any, Callable

from ..errors import Moment, TikBoundsError, TikError, TikParamError, TikSyncError
from ..findings import Finding
from ..isa.micro_op import Access, MicroOp
from ..isa.region import Region
from ..options import Options
from ..program import ir
from ..program.dtypes import size_of
from ..program.location import warn
from ..timing import footprints
from ..timing.clock import CoreClock
from ..timing.gm import GlobalMemory
from ..timing.simulator import PIPE_INDEX, TimedOp, exact
from .access_log import Journal
from .alloc import Plan
from .memories import CoreMemories, GlobalTensor
from .races import BlockRaces, PipeRaces
from .strict import guarded


class BoundOp(TimedOp):
    """A micro-operation ready to run.

    Attributes:
        run: performs the numerics (with the checks of strict mode).
        micro: the micro-operation.
        status: its ``overflow`` counts executions in which a result saturated; None if none can.
    """

    __slots__ = ("run", "micro", "status")

    run: Callable[[], None]
    micro: MicroOp
    status: Any


class Reusable:
    """Keep something that later executions use again.

    So loops are bound and simulated once. With ``Options(reuse=False)`` nothing is kept: every call is checked and
    bound, and every operation simulated, each time it is executed. Results, checks and cycles are the same.
    """

    __slots__ = ()

    def forget(self) -> None:
        """Drop what is kept. What was counted stays."""
        raise NotImplementedError

    def restart(self) -> None:
        """Begin a new run: counts start at 0."""


_NUMBER = re.compile(r"\d+")
#: The operations of one call.
Ops = tuple[BoundOp, ...]


class Runtime:
    """One run of a program.

    Attributes:
        program, plan, options, soc: what runs, and how.
        numerics, timing: what is asked for.
        core: on-chip memories of the executing core.
        gm: global tensors by uid.
        clock: time on the executing core; None without timing.
        gm_cost: bandwidth of global memory; None without timing.
        block: index of the executing block.
        block_count: blocks of the multi-core loop; 1 without one; None until the program has said so.
        block_races, pipe_races: checks of strict mode, or None.
        sites: everything that keeps bound operations.
        journal: notes accesses to global memory, or None.
        moment: gives block and loop variables while the program runs.
        findings: of strict mode, if the program goes on after a finding: the first of each kind per line.
        warned: what was reported, by line and message.
    """

    def __init__(
        self,
        program: ir.Program,
        plan: Plan,
        options: Options,
        numerics: bool,
        timing: bool,
        gm: dict[int, GlobalTensor],
        block_count: int | None,
        journal: Journal | None = None,
    ) -> None:
        self.program, self.plan, self.options, self.soc = program, plan, options, program.soc
        self.numerics, self.timing = numerics, timing
        self.marks = options.checks("undefined") and numerics
        self.core = CoreMemories(self.soc, plan.peak, self.marks)
        self.gm, self.journal = gm, journal
        statements = ir.statements(program.body)
        called = {statement.spec.name for statement in statements if isinstance(statement, ir.Instruction)}
        self.clock = (
            CoreClock(
                self.soc,
                options.max_trace_events,
                lambda message, location: self.report(location, "synchronisation", TikParamError, message),
                options.reuse and not options.l2,
                not numerics or "wait_flag" in called,
            )
            if timing
            else None
        )
        self.gm_cost: GlobalMemory | None = None
        self.block = 0
        self.block_count = block_count
        races = options.checks("race")
        self.block_races = BlockRaces(block_count) if races and numerics and block_count != 1 else None
        self.pipe_races = PipeRaces() if races else None
        self.moment: Callable[[], Moment | None] = lambda: None
        self.findings: dict[Any, Finding] = {}
        self.sites: list[Reusable] = []
        self.warned: dict[tuple[Any, str], None] = {}
        self._share_bandwidth()

    @property
    def strict(self) -> bool:
        """Return whether operations are guarded by the checks of strict mode."""
        return self.marks or self.block_races is not None

    # -------------------------------------------------------------------------------------------- blocks
    @property
    def active_cores(self) -> int:
        """Return how many cores share the bandwidth of global memory."""
        if self.options.active_cores is not None:
            return min(self.options.active_cores, self.soc.core_count)
        return min(self.soc.core_count if self.block_count is None else self.block_count, self.soc.core_count)

    def _share_bandwidth(self) -> None:
        if self.timing:
            self.gm_cost = GlobalMemory(self.soc, self.active_cores, self.options.l2)

    def enter_blocks(self, count: int) -> tuple[int]:
        """Enter the multi-core loop, and return the iterations that the current block executes."""
        if not 1 <= count <= 65535:
            raise TikBoundsError(f"block_num must be in [1, 65535], got {count}")
        if self.block_count is None:
            self.block_count = count
            self._share_bandwidth()
            self.invalidate()
        return (self.block,)

    def restart(self) -> None:
        """Reset everything that a run counts; prepared operations stay."""
        for site in self.sites:
            site.restart()
        if self.timing:
            self.clock.restart()
            self.gm_cost.restart()
        if self.block_races is not None:
            self.block_races.barrier()

    def invalidate(self) -> None:
        """Drop all prepared operations: they are bound again when they are next used."""
        for site in self.sites:
            site.forget()

    # -------------------------------------------------------------------------------------------- messages
    def report(self, location: ir.Location, kind: str, error: type[TikError], message: str) -> None:
        """Report questionable use: a TikWarning once per line, in strict mode an error or a finding."""
        if self.options.raises(kind):
            raise error(message, location)
        if self.options.checks(kind):
            self.found(Finding(kind, error, message, location, self.moment()))
        else:
            self.warn(location, message)

    def warn(self, location: ir.Location, message: str) -> None:
        """Issue a TikWarning, once per line."""
        if (location, message) not in self.warned:
            self.warned[location, message] = None
            warn(message, location)

    def found(self, finding: Finding) -> None:
        """Keep a finding, unless its line already has a finding that differs in numbers only."""
        self.findings.setdefault((finding.kind, finding.location, _NUMBER.sub("", finding.message)), finding)

    def loop_range(self, begin: int, end: int, location: ir.Location) -> range:
        """Return the iterations of a loop with run-time bounds (core.md 3.1)."""
        if not 0 <= begin <= end <= 2147483647:
            message = "the bounds of for_range must satisfy 0 <= begint <= endt <= 2147483647"
            if begin < end:
                raise TikBoundsError(f"{message}, got begint {begin} and endt {end}")
            # A compiled loop has no iteration then.
            self.report(location, "loop", TikParamError, f"{message}, got an endt below begint or below 0")
        return range(begin, end)

    def race(self, op: BoundOp) -> None:
        """Check an operation inside an unsynchronised scope against the others there."""
        micro, races = op.micro, self.pipe_races
        if micro.barrier is not None:
            races.barrier(micro.barrier)
        elif micro.flag is not None:
            races.flag(*micro.flag)
        else:
            regions = [(access.region, False) for access in micro.reads]
            regions += [(access.region, True) for access in micro.writes]
            clash = races.access(micro.pipe, regions, micro.name)
            if clash:
                self.report(op.location, "race", TikSyncError, clash)

    # -------------------------------------------------------------------------------------------- preparing
    def prepare(self, micro: MicroOp, location: ir.Location) -> BoundOp:
        """Compute footprints, cost and checks of one micro-operation."""
        head = self.soc.timing.vector_head * micro.instructions if micro.pipe == "V" else 0.0
        latency = max(0.0, micro.latency - head)  # the result is under way while the instruction still holds Vector
        op = BoundOp(micro.name, PIPE_INDEX[micro.pipe], exact(micro.cycles + head), exact(latency))
        op.micro, op.location, op.status = micro, location, getattr(micro.run, "status", None)
        op.run = self.checked(micro, location) or micro.run or _nothing
        op.barrier, op.flag, op.mask = micro.barrier, micro.flag, micro.mask
        if not self.timing:
            return op
        if len(self.clock.footprints) > footprints.LIMIT:
            self.invalidate()
            self.clock.forget()
        lanes = [
            (self.clock.footprints.lanes(access.region.memory, access.shape, access.lanes), writes)
            for accesses, writes in ((micro.reads, False), (micro.writes, True))
            for access in accesses
            if access.lanes and self._by_bytes(access.operand.static)
        ]
        op.touch(self._footprints(micro.reads), self._footprints(micro.writes), tuple(lanes))
        if micro.accumulate:
            written = micro.writes[0]
            size = sum(n0 * n1 * width for _, n0, _, n1, _, width in written.region.pieces)
            op.chained = size // (256 * size_of(written.operand.dtype)) >= self.soc.timing.accumulate_blocks
        if micro.transfer is not None:
            self._cost_of_transfer(op, micro)
        return op

    def checked(self, micro: MicroOp, location: ir.Location) -> Callable[[], None] | None:
        """Return the numerics of a micro-operation with strict checks and journal. None if there is nothing to do."""
        run = None
        if self.strict:
            run = guarded(micro, self.marks, self.block_races, partial(self.report, location))
        return run if self.journal is None else self.journal.noted(micro, run or micro.run)

    def _footprints(self, accesses: Sequence[Access]) -> tuple[footprints.Footprint, ...]:
        found = {}
        for access in accesses:
            if access.lanes and self._by_bytes(access.operand.static):
                continue  # a footprint of lanes
            footprint = self.footprint(access.operand.static, access.region, access.operand.start, access.operand.end)
            found[id(footprint)] = footprint
        return tuple(found.values())

    def footprint(self, static: bool, region: Region, start: int, end: int) -> footprints.Footprint:
        """Return the bytes that automatic synchronisation assumes for ``region`` of a tensor [start, end)."""
        if self._by_bytes(static):
            return self.clock.footprints.exact(region)
        # A move may touch the padding of the last block of a GM tensor.
        return self.clock.footprints.span(region.memory, min(start, region.start), max(end, region.end))

    def _by_bytes(self, static: bool) -> bool:
        """Return whether automatic synchronisation knows the bytes of an operand; else the whole tensor counts."""
        return self.options.sync == "optimistic" or (self.options.sync == "auto" and static)

    def _cost_of_transfer(self, op: BoundOp, micro: MicroOp) -> None:
        accesses = micro.reads if micro.transfer.direction == "read" else micro.writes
        region = next(access.region for access in accesses if access.region.memory.kind == "GM")
        model = self.gm_cost
        cost = model.cost(micro.transfer, region)
        op.cycles, op.latency, op.share = exact(cost.cycles), exact(cost.latency), exact(cost.share)
        if model.l2 is not None:
            lines, memory, transfer = model.lines(micro.transfer, region), id(region.memory), micro.transfer

            def current() -> tuple[float, float, float]:
                now = model.cached_cost(transfer, cost, memory, lines)
                return now.cycles, now.latency, now.share

            op.gm = current

    # -------------------------------------------------------------------------------------------- tensors
    def place(self, view: ir.View) -> TensorPlace:
        """Return the place of the tensor of ``view``."""
        tensor = view.tensor
        if tensor.memory == "GM":
            found = self.gm.get(tensor.uid)
            if found is None:
                raise TikParamError(
                    f"GM tensor {tensor.name!r} is neither an input, an output nor a workspace", tensor.location
                )
            return TensorPlace(found.memory, 0, found.size, 0)
        placement = self.plan.placements[tensor.uid]
        return TensorPlace(self.core[tensor.memory], placement.address, placement.size, placement.stride)


class TensorPlace:
    """Memory, address, size and distance of the copies of a tensor."""

    __slots__ = ("memory", "address", "size", "stride")

    def __init__(self, memory: Any, address: int, size: int, stride: int) -> None:
        self.memory, self.address, self.size, self.stride = memory, address, size, stride


def _nothing() -> None:
    pass
