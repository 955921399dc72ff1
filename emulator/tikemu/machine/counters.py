"""Count what prepared operations have executed."""

from __future__ import annotations

from .runtime import Ops


class Tally:
    """Executions, cycles and bytes of prepared operations, by instruction name and pipe.

    Attributes:
        overflows: executions in which a result saturated.
    """

    def __init__(self) -> None:
        self.entries: dict[tuple[str, int], list[float]] = {}
        self.read_bytes = self.written_bytes = 0
        self.macs = self.overflows = 0
        self.constants: set[str] = set()

    def add(self, ops: Ops) -> None:
        """Count what ``ops`` have executed."""
        for op in ops:
            if op.status is not None:
                self.overflows += op.status.overflow
            if not op.count:
                continue
            entry = self.entries.setdefault((op.name, op.pipe), [0, 0.0])
            entry[0] += op.count
            entry[1] += op.busy
            self.macs += op.micro.macs * op.count
            self.constants.update(op.micro.constants)
            transfer = op.micro.transfer
            if transfer is not None:
                moved = transfer.bursts * transfer.burst_bytes * op.count
                if transfer.direction == "read":
                    self.read_bytes += moved
                else:
                    self.written_bytes += moved

    def merge(self, other: Tally) -> None:
        for key, (count, busy) in other.entries.items():
            entry = self.entries.setdefault(key, [0, 0.0])
            entry[0] += count
            entry[1] += busy
        self.read_bytes += other.read_bytes
        self.written_bytes += other.written_bytes
        self.macs += other.macs
        self.overflows += other.overflows
        self.constants |= other.constants


def reset(ops: Ops) -> None:
    """Count ``ops`` anew."""
    for op in ops:
        op.count, op.extra = 0, 0.0
        if op.status is not None:
            op.status.overflow = 0
