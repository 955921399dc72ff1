"""Messages between processes: a length, and so many bytes; and the contents of answers."""

from __future__ import annotations

import pickle
import struct
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from ..findings import Finding
from ..machine.access_log import Addition, Spans
from ..machine.counters import Tally
from ..program.ir import Location

_LENGTH = struct.Struct("<Q")


@dataclass
class Share:
    """Hold the results of consecutive blocks.

    Attributes:
        first: number of the first block.
        cycles: of each block.
        reads, writes, sums: bytes of global memory that were read, written, and added to, by uid.
        written: contents of ``writes`` at the end, and whether they are defined, by uid. The contents of ``sums`` are
            here too if ``additions`` is None.
        additions: what was added atomically; None if it was not kept.
        events: of the traced blocks, by number (see :func:`tikemu.processes.worker._events`).
        code_bytes: of calls that were bound for the first time, by number of the site.
        warnings, findings: what was reported for the first time, in the order of the blocks.
    """

    first: int
    cycles: list[float] = field(default_factory=list)
    reads: dict[int, Spans] = field(default_factory=dict)
    writes: dict[int, Spans] = field(default_factory=dict)
    sums: dict[int, Spans] = field(default_factory=dict)
    written: list[tuple[int, Spans, bytes, bytes | None]] = field(default_factory=list)
    additions: list[Addition] | None = None
    events: dict[int, Any] = field(default_factory=dict)
    code_bytes: dict[int, int] = field(default_factory=dict)
    warnings: list[tuple[Location, str]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


@dataclass
class Counts:
    """Hold the counters of all shares of one process.

    Attributes:
        tallies: by number of the site.
        scalar_busy, flags, waited, events: see :class:`tikemu.timing.simulator.PipeSimulator`.
    """

    tallies: dict[int, Tally]
    scalar_busy: float = 0.0
    flags: int = 0
    waited: list[float] = field(default_factory=list)
    events: dict[tuple[int, int], int] = field(default_factory=dict)


def write(stream: BinaryIO, message: Any) -> None:
    """Send an object."""
    send(stream, pickle.dumps(message, pickle.HIGHEST_PROTOCOL))


def send(stream: BinaryIO, data: bytes) -> None:
    """Send bytes."""
    stream.write(_LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def read(stream: BinaryIO) -> bytes:
    """Return the bytes of the next message. Raises EOFError at the end, also inside a message."""
    return _exactly(stream, _LENGTH.unpack(_exactly(stream, _LENGTH.size))[0])


def _exactly(stream: BinaryIO, count: int) -> bytes:
    data = stream.read(count)
    if len(data) < count:
        raise EOFError
    return data
