"""Gather what a run has counted into its result."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..result import InstructionUse, Overflow, OverflowPlace, PipeUse, Result
from ..soc import PIPES
from ..timing.trace import Trace
from ..timing.waits import named
from .calls.site import CallSite
from .compile import Compiled
from .counters import Tally
from .runtime import Runtime

#: Constants that every estimate rests on, and the constants of an estimate with global memory.
_ALWAYS = ("issue_cycles", "queue_depth", "flag_cycles", "flag_handshake")
_GM = (
    *("gm_read_latency", "gm_read_bandwidth", "gm_write_latency", "gm_write_bandwidth", "hbm_bandwidth", "gm_line"),
    *("gm_read_beat", "gm_write_beat", "hbm_borrow_cycles"),
)
#: Constants that Vector's instructions rest on.
_VECTOR = ("vector_head", "vector_two_sources", "vector_reads_add", "mask_every", "mask_drain")


def collect(
    runtime: Runtime, compiled: Compiled, times: list[float], trace: Trace | None, outputs: dict[str, np.ndarray]
) -> Result:
    """Gather what a run has counted."""
    soc, clock = runtime.soc, runtime.clock
    if clock is not None:
        clock.settle()
    total = Tally()
    places: list[OverflowPlace] = []
    for site in runtime.sites:
        if isinstance(site, CallSite):
            tally = site.tally()
            total.merge(tally)
            if tally.overflows and runtime.numerics:
                places.append(OverflowPlace(site.location, site.statement.spec.name, tally.overflows))
    moved = total.read_bytes + total.written_bytes
    fields: dict[str, Any] = {
        "outputs": outputs,
        "kernel": runtime.program.name,
        "soc": soc,
        "block_count": runtime.block_count or 1,
        "peak_bytes": dict(runtime.plan.peak),
        "code_bytes": compiled.code_bytes(),
        "trace": trace,
        "gm_read_bytes": total.read_bytes,
        "gm_written_bytes": total.written_bytes,
        "macs": total.macs,
        "overflow": Overflow.of(places),
        "findings": tuple(runtime.findings.values()),
    }
    if clock is None:
        return Result(
            cycles=None,
            core_cycles=(),
            pipes={},
            instructions={},
            events_in_flight={},
            waits={},
            sync_flags=0,
            memory_floor=0.0,
            constants={},
            **fields,
        )
    floor = (moved - runtime.gm_cost.hit_bytes) / (soc.gm_share(runtime.active_cores) * len(times))
    cycles = math.ceil(max(max(times), floor))
    busy = dict.fromkeys(PIPES, 0.0)
    issued = sum(count for (_, pipe), (count, _) in total.entries.items() if PIPES[pipe] != "S")
    busy["S"] = clock.simulator.scalar_busy + issued * soc.timing.issue_cycles
    instructions: dict[str, InstructionUse] = {}
    for (name, pipe), (count, work) in sorted(total.entries.items()):
        before = instructions.get(name, InstructionUse(0, 0.0))
        instructions[name] = InstructionUse(before.count + int(count), before.cycles + work)
        if PIPES[pipe] != "S":
            busy[PIPES[pipe]] += work
    names = {*_ALWAYS, *total.constants, *(_GM if moved else ()), *(_VECTOR if busy["V"] else ())}
    return Result(
        cycles=cycles,
        core_cycles=tuple(math.ceil(time) for time in times),
        pipes={name: PipeUse(work, work / (cycles * len(times)) if cycles else 0.0) for name, work in busy.items()},
        instructions=instructions,
        waits={wait: waited for wait, waited in named(clock.simulator.waited).items() if busy[wait[0]]},
        sync_flags=clock.simulator.flags,
        memory_floor=floor,
        events_in_flight={
            (PIPES[source], PIPES[destination]): count for (source, destination), count in clock.events.items()
        },
        constants={name: soc.timing.constant(name) for name in sorted(names)},
        **fields,
    )
