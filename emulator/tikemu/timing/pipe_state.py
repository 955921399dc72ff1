"""The state of a simulator relative to its present time.

Times in the past are compared only with others of the same pipe (is this access already known to be complete?). So a
state holds their order, not their age, and leaves out what every pipe knows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Hashable
from typing import Any

from ..soc import PIPES
from .lanes import Entries, decisive
from .simulator import PipeSimulator

#: Code of the newest time in the past; older ones are below it. Times that still matter are above it.
_PAST = -1e6

_V = PIPES.index("V")

#: Mask, and times relative to the present: delivered, entitled, free, done, known, starts, waits, accesses, and
#: accesses of lanes.
Records = tuple[Any, ...]


def capture(simulator: PipeSimulator) -> tuple[Hashable, Records]:
    """Return the state of the simulator: a key that is equal for equal states, and the records that restore it."""
    now, pipes = simulator.now, range(len(simulator.free))
    edge = now - simulator.flag_delay  # an access that was complete by then delays nothing any more
    known = simulator.known
    least = [min(known[pipe][source] for pipe in pipes if pipe != source) for source in pipes]
    past: list[set[float]] = [set() for _ in pipes]

    def matters(source: int, time: float) -> bool:
        if time <= edge and time > least[source]:
            past[source].add(time)
        return time > edge or time > least[source]

    accesses = []
    for footprint in simulator.footprints:
        written = matters(footprint.write_pipe, footprint.write_done)
        readers = [(pipe, done) for pipe, done in footprint.readers.items() if matters(pipe, done)]
        if written or readers:
            accesses.append(
                (footprint, footprint.write_pipe if written else None, footprint.write_done, sorted(readers))
            )
    # Of the lanes that bit masks choose; Vector alone accesses them.
    frames: list[tuple[Any, list[Entries]]] = []
    for frame in simulator.footprints.frames.values():
        if frame.after(min(edge, least[_V]), True):
            kept = [
                [entry for entry in decisive(entries) if matters(_V, entry[0])]
                for entries in (frame.writes, frame.reads)
            ]
            if any(kept):
                frames.append((frame, kept))
    complete = [matters(pipe, simulator.done[pipe]) for pipe in pipes]
    order = [sorted(times) for times in past]

    def code(source: int, time: float) -> float:
        return time - now if time > edge else _PAST + bisect_right(order[source], time) - len(order[source])

    def wait_code(source: int, time: float) -> float:
        return time - now if time > edge else _PAST + bisect_left(order[source], time) - len(order[source])

    waits = []
    for (source, pipe), times in simulator.waits.items():
        codes = [wait_code(source, time) for time in times]
        # A wait is left out if it ended before everything that still matters.
        gone = next((number for number, c in enumerate(codes) if c > _PAST - len(order[source])), len(codes))
        if codes[gone:]:
            waits.append((source, pipe, tuple(codes[gone:])))
    delivered = max(0.0, simulator.delivered - now)
    entitled = [max(-simulator.borrow, time - now) for time in simulator.entitled]
    key = (
        simulator.mask,
        delivered,
        tuple(entitled),
        tuple([time - now if time > now else 0.0 for time in simulator.free]),
        tuple([code(pipe, simulator.done[pipe]) if complete[pipe] else None for pipe in pipes]),
        tuple([code(source, row[source]) for pipe, row in enumerate(known) for source in pipes if source != pipe]),
        tuple([tuple([time - now for time in ring if time > now]) for ring in simulator.starts]),
        tuple(waits),
        frozenset(
            [
                (
                    id(footprint),
                    pipe,
                    None if pipe is None else code(pipe, done),
                    tuple([(reader, code(reader, time)) for reader, time in readers]),
                )
                for footprint, pipe, done, readers in accesses
            ]
        ),
        frozenset(
            [
                (id(frame), *(tuple([(code(_V, time), lanes) for time, lanes in entries]) for entries in kept))
                for frame, kept in frames
            ]
        ),
    )
    records = (
        simulator.mask,
        delivered,
        entitled,
        [time - now for time in simulator.free],
        [time - now for time in simulator.done],
        [[time - now for time in row] for row in known],
        [[time - now for time in ring] for ring in simulator.starts],
        {pair: [time - now for time in times] for pair, times in simulator.waits.items()},
        [
            (footprint, footprint.write_pipe, done - now, [(reader, time - now) for reader, time in readers])
            for footprint, _, done, readers in accesses
        ],
        [(frame, [[(time - now, lanes) for time, lanes in entries] for entries in kept]) for frame, kept in frames],
    )
    return key, records


def restore(simulator: PipeSimulator, records: Records | None) -> None:
    """Write ``records`` into the simulator, at its present time; None: everything is complete."""
    now = simulator.now
    if records is None:
        simulator.reset(now)
        return
    mask, delivered, entitled, free, done, known, starts, waits, accesses, frames = records
    simulator.mask = mask
    simulator.delivered = now + delivered
    simulator.entitled[:] = [now + time for time in entitled]
    simulator.free[:] = [now + time for time in free]
    simulator.done[:] = [now + time for time in done]
    for row, times in zip(simulator.known, known):
        row[:] = [now + time for time in times]
    for ring, times in zip(simulator.starts, starts):
        ring.extend([now + time for time in times])
    simulator.waits = {pair: deque([now + time for time in times]) for pair, times in waits.items()}
    simulator.footprints.reset()
    for footprint, pipe, written, readers in accesses:
        footprint.write_pipe, footprint.write_done = pipe, now + written
        footprint.readers.update({reader: now + time for reader, time in readers})
    for frame, (writes, reads) in frames:
        frame.writes[:] = [(now + time, lanes) for time, lanes in writes]
        frame.reads[:] = [(now + time, lanes) for time, lanes in reads]
