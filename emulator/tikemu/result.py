"""Hold the outputs of a run, and an estimate of its time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from .findings import Finding
from .program.ir import Location
from .soc import CONFIDENCES, ON_CHIP, Constant, SocProfile
from .timing.trace import Trace
from .timing.waits import Waits


@dataclass(frozen=True)
class PipeUse:
    """Work of one pipe: ``busy`` cycles summed over the cores, ``share`` of the cycles of the cores in use."""

    busy: float
    share: float


@dataclass(frozen=True)
class InstructionUse:
    """Executions of one instruction, and the cycles it occupied its pipe, summed over the cores."""

    count: int
    cycles: float


@dataclass(frozen=True)
class OverflowPlace:
    """A line with an instruction that saturated.

    Attributes:
        location: file, line and text of the program.
        instruction: its name.
        count: operations executed there in which at least one result saturated.
    """

    location: Location
    instruction: str
    count: int

    def __str__(self) -> str:
        return f"{self.instruction} at {self.location}, {self.count:,} times"


@dataclass(frozen=True)
class Overflow:
    """The overflow status that a run leaves (D34); false if no result saturated.

    Attributes:
        places: the lines, in the order of the program, at most ``LIMIT``.
        lines: how many there are.
        count: operations in which at least one result saturated, on all lines.
    """

    places: tuple[OverflowPlace, ...] = ()
    lines: int = 0
    count: int = 0
    LIMIT: ClassVar[int] = 20

    @classmethod
    def of(cls, places: Sequence[OverflowPlace]) -> Overflow:
        """Return the status of these lines."""
        return cls(tuple(places[: cls.LIMIT]), len(places), sum(place.count for place in places))

    def __bool__(self) -> bool:
        return self.count > 0

    def __str__(self) -> str:
        if not self:
            return "overflow: none"
        more = [f"and {self.lines - len(self.places)} more lines"] if self.lines > len(self.places) else []
        return "\n  ".join([f"overflow: {self.count:,} operations saturated", *map(str, self.places), *more])


@dataclass(frozen=True)
class Result:
    """Outcome of :func:`tikemu.run`. Everything about time is an estimate, and None or empty without ``timing``.

    Attributes:
        outputs: NumPy arrays by name.
        overflow: where results saturated; false if nowhere. Always false without ``numerics``.
        findings: of strict mode with ``Options(findings="all")``: the first of each kind per line.
        kernel: name of the kernel.
        soc: the chip.
        cycles: of the slowest core, launch excluded; at least what the traffic needs at the bandwidth of the memory.
            Whole cycles, rounded up.
        core_cycles: per core in use, rounded up.
        block_count: blocks of the multi-core loop.
        pipes: use of each pipe, by name ("S", "V", "M", "MTE1", "MTE2", "MTE3").
        waits: cycles in which a pipe in use was free and its next instruction did not start, summed over the cores, by
            (waiting pipe, pipe waited for, reason): "issue" (S had not handed it out), "operand" (a result of its own),
            "event" (a flag of another pipe); and of S "event", "queue full" and "barrier".
        instructions: executions and cycles, by name.
        peak_bytes: most bytes in use at once, by on-chip memory.
        events_in_flight: per (source, destination) pipe, the most events that were set and not yet waited for;
            ``soc.timing.event_ids`` exist.
        sync_flags: set_flag and wait_flag instructions that the automatic synchronisation inserted.
        code_bytes: estimated size of the machine code with multi-buffered loops unrolled.
        gm_read_bytes, gm_written_bytes: traffic with global memory.
        macs: multiply-accumulates of valid elements on the Cube.
        memory_floor: cycles that the traffic needs at full bandwidth; what the L2 buffer serves does not count.
        constants: the constants of the timing model that the estimate rests on, by name.
    """

    outputs: dict[str, np.ndarray]
    kernel: str
    soc: SocProfile
    cycles: int | None
    core_cycles: tuple[int, ...]
    block_count: int
    pipes: dict[str, PipeUse]
    waits: Waits
    instructions: dict[str, InstructionUse]
    peak_bytes: dict[str, int]
    events_in_flight: dict[tuple[str, str], int]
    sync_flags: int
    code_bytes: int
    gm_read_bytes: int
    gm_written_bytes: int
    macs: int
    memory_floor: float
    constants: dict[str, Constant] = field(repr=False)
    trace: Trace | None = field(default=None, repr=False)
    overflow: Overflow = Overflow()
    findings: tuple[Finding, ...] = ()

    @property
    def seconds(self) -> float | None:
        """Return the estimated time on the chip, launch excluded."""
        return None if self.cycles is None else self.cycles / self.soc.clock_hz

    def duration(self, cycles: float) -> str:
        """Return the cycles on this chip as text, with the microseconds that they take."""
        return f"{cycles:,.0f} cycles ({self._microseconds(cycles):,.1f} us)"

    def _microseconds(self, cycles: float) -> float:
        return cycles / self.soc.clock_mhz

    @property
    def cores(self) -> int:
        """Return the number of cores in use."""
        return max(1, len(self.core_cycles))

    @property
    def instruction_count(self) -> int:
        """Return the number of instructions executed on all cores."""
        return sum(use.count for use in self.instructions.values())

    @property
    def cube_utilisation(self) -> float:
        """Return the ratio of multiply-accumulates to the float16 peak of the cores in use."""
        if not self.cycles:
            return 0.0
        return self.macs / (self.soc.timing.cube_macs_f16 * self.cycles * self.cores)

    @property
    def flops(self) -> float:
        """Return the Cube's operations per second (two per multiply-accumulate)."""
        return 2 * self.macs / self.seconds if self.cycles else 0.0

    @property
    def memory_utilisation(self) -> float:
        """Return the ratio of traffic to the most that memory could move in that time."""
        return self.memory_floor / self.cycles if self.cycles else 0.0

    def save_trace(self, path: str) -> None:
        """Write a Chrome trace (open it in https://ui.perfetto.dev): one row per core and pipe.

        Raises:
            ValueError: the run kept no events (``timing=False`` or ``Options(trace=False)``).
        """
        if self.trace is None:
            raise ValueError("the run kept no events: it needs timing=True and Options(trace=True)")
        self.trace.save(str(path), self.kernel, self.soc.clock_mhz)

    def report(self) -> str:
        """Return the result as text."""
        lines = [
            f"kernel {self.kernel} on {self.soc.name}, {self.block_count} blocks on {self.cores} of "
            f"{self.soc.core_count} cores"
        ]
        lines.append(str(self.overflow))
        if self.cycles is None:
            return "\n".join([*lines, *self._memory_lines()])
        timing = self.soc.timing
        lines += [
            f"estimate: {self.duration(self.cycles)} at {self.soc.clock_mhz:,} MHz; "
            f"launch ({timing.launch_seconds_queued * 1e6:.1f} us queued, "
            f"{timing.launch_seconds_synchronised * 1e6:.1f} us synchronised) excluded",
            f"cores: fastest {self.duration(min(self.core_cycles))}, slowest {self.duration(max(self.core_cycles))}; "
            f"traffic alone {self.duration(self.memory_floor)}",
            "",
            "pipe        busy cycles           us   share",
        ]
        lines += [
            f"PIPE_{name:<5} {use.busy:>13,.0f} {self._microseconds(use.busy):>12,.1f}  {use.share:6.1%}"
            for name, use in self.pipes.items()
        ]
        lines += ["", *self._wait_lines()]
        lines += ["", f"{'instruction':<24} {'count':>12} {'cycles':>15} {'us':>12}"]
        by_cycles = sorted(self.instructions.items(), key=lambda item: -item[1].cycles)
        lines += [
            f"{name:<24} {use.count:>12,} {use.cycles:>15,.0f} {self._microseconds(use.cycles):>12,.1f}"
            for name, use in by_cycles
        ]
        if self.macs:
            lines += [
                "",
                f"Cube: {self.macs:,} multiply-accumulates, {self.flops / 1e12:.2f} TFLOPS, "
                f"{self.cube_utilisation:.1%} of the float16 peak of the cores in use",
            ]
        lines += [
            "",
            f"global memory: {self.gm_read_bytes:,} bytes read, {self.gm_written_bytes:,} written, "
            f"{self.memory_utilisation:.1%} of the bandwidth",
        ]
        lines += self._memory_lines()
        pressure = [
            f"{source}->{destination} {count}" for (source, destination), count in sorted(self.events_in_flight.items())
        ]
        lines += [
            f"events in flight ({timing.event_ids:.0f} exist per pair): {', '.join(pressure) or 'none'}; "
            f"{self.sync_flags:,} flag instructions inserted",
            f"code: about {self.code_bytes:,} bytes, instruction cache {timing.icache_bytes:,.0f}",
        ]
        return "\n".join([*lines, "", *self._constant_lines()])

    def _wait_lines(self) -> list[str]:
        """Return the table of waits, and what is left after a pipe's last instruction."""
        whole = (self.cycles or 0) * self.cores
        lines = [f"{'who waited for whom':<28} {'cycles':>12} {'us':>12}   share"]
        for pipe, use in self.pipes.items():
            own = {wait: cycles for wait, cycles in self.waits.items() if wait[0] == pipe}
            if not use.busy:
                continue
            rows = [
                (f"PIPE_{pipe:<5} {'' if other == pipe else other:<5} {reason}", cycles)
                for (_, other, reason), cycles in own.items()
            ]
            rows.append((f"PIPE_{pipe:<5}       nothing left", max(0.0, whole - use.busy - sum(own.values()))))
            lines += [
                f"{what:<28} {cycles:>12,.0f} {self._microseconds(cycles):>12,.1f}  {cycles / whole:6.1%}"
                for what, cycles in rows
            ]
        return lines

    def _memory_lines(self) -> list[str]:
        parts = [
            f"{memory} {self.peak_bytes[memory]:,} of {self.soc.capacity(memory):,}"
            for memory in ON_CHIP
            if self.peak_bytes.get(memory)
        ]
        return [f"peak bytes: {', '.join(parts) or 'none'}"]

    def _constant_lines(self) -> list[str]:
        lines = ["the estimate rests on"]
        for confidence in CONFIDENCES:
            entries = [
                f"{name} {constant}"
                for name, constant in sorted(self.constants.items())
                if constant.confidence == confidence
            ]
            if entries:
                lines.append(f"  {confidence}: {', '.join(entries)}")
        return lines
