"""Events of a run in the Chrome trace format, which Perfetto and chrome://tracing show."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from ..soc import PIPES


class Bar:
    """List the events of a trace besides instructions: scalar work, and waits.

    Attributes:
        name: what it shows.
        pipe: index into PIPES, the row.
        category: the pipe that does the work, or "wait".
        location, micro: as of an operation; there is no line, and nothing is accessed.
    """

    def __init__(self, name: str, pipe: int, category: str = "wait") -> None:
        self.name, self.pipe, self.category = name, pipe, category
        self.location = ""
        self.micro = SimpleNamespace(reads=(), writes=())


class Trace:
    """Keep the events of the first cores.

    Args:
        cores: how many cores are watched.
        events: how many events are kept per core.
    """

    def __init__(self, cores: int, events: int) -> None:
        self.cores, self.limit = cores, events
        self._events: dict[int, list] = {}

    def open(self, core: int) -> list | None:
        """Return the list for the events of ``core``, or None if none are kept."""
        if core >= self.cores:
            return None
        events = self._events.setdefault(core, [])
        return events if len(events) < self.limit else None

    @property
    def full(self) -> bool:
        """Return whether later events of a core were dropped."""
        return any(len(events) >= self.limit for events in self._events.values())

    def save(self, path: str, kernel: str, clock_mhz: float) -> None:
        """Write the JSON file; one row per core and pipe, times in microseconds."""
        events: list[dict[str, Any]] = []
        for core in sorted(self._events):
            events.append({"ph": "M", "name": "process_name", "pid": core, "args": {"name": f"{kernel} core {core}"}})
            for row, pipe in enumerate(PIPES):
                for name, shown in (
                    ("thread_name", {"name": f"PIPE_{pipe}"}),
                    ("thread_sort_index", {"sort_index": row}),
                ):
                    events.append({"ph": "M", "name": name, "pid": core, "tid": row, "args": shown})
            for op, start, end in self._events[core][: self.limit]:
                what = {"ph": "X", "name": op.name, "cat": op.category, "pid": core, "tid": op.pipe}
                when = {"ts": start / clock_mhz, "dur": (end - start) / clock_mhz}
                accessed = {"reads": _tensors(op.micro.reads), "writes": _tensors(op.micro.writes)}
                shown = {"cycle": start, "cycles": end - start, **accessed, "line": str(op.location)}
                events.append({**what, **when, "args": shown})
        other = {"kernel": kernel, "clock_mhz": clock_mhz, "truncated": self.full}
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"traceEvents": events, "displayTimeUnit": "ns", "otherData": other}, file)


def _tensors(accesses: Sequence[Any]) -> str:
    """Return the names of the tensors that are accessed."""
    return ", ".join(dict.fromkeys(access.operand.name for access in accesses))
