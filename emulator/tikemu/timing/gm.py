"""Global memory as one core sees it: its port, its share of the bandwidth, and optionally the L2 buffer.

Cost of a move (timing.md 7): the larger of the bytes over the bandwidth and the beats of its bursts. Reads fetch whole
lines of the L2 buffer. The other cores use the share of the bandwidth that a core leaves, see
:meth:`tikemu.timing.simulator.PipeSimulator._transfer`.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from ..isa.micro_op import Transfer
from ..isa.region import Region
from ..soc import SocProfile


@dataclass(frozen=True)
class GmCost:
    """Cost of one move.

    Attributes:
        cycles, latency: least occupation of the pipe, and the time from its end until the data are there.
        beats: cycles that the bursts take at the port of the core.
        share: cycles at an equal share of the memory's bandwidth.
    """

    cycles: float
    latency: float
    beats: float
    share: float


class GlobalMemory:
    """Bandwidth of global memory for one of ``active_cores`` cores.

    Args:
        soc: the chip.
        active_cores: cores that share the bandwidth.
        l2: model the L2 buffer.

    Attributes:
        hit_bytes: bytes read that came from the L2 buffer.
    """

    def __init__(self, soc: SocProfile, active_cores: int, l2: bool) -> None:
        self.soc, self.timing = soc, soc.timing
        self.active_cores = active_cores
        self.l2 = L2Cache(int(soc.l2_size // soc.timing.gm_line)) if l2 else None
        self.hit_bytes = 0.0

    def restart(self) -> None:
        """Begin a new run: the L2 buffer is empty."""
        self.hit_bytes = 0.0
        if self.l2 is not None:
            self.l2.clear()

    def cost(self, transfer: Transfer, region: Region) -> GmCost:
        """Return the cost of ``transfer`` without the L2 model. ``region`` is its side in global memory."""
        timing, share = self.timing, self.soc.gm_share(self.active_cores)
        total = transfer.bursts * transfer.burst_bytes
        if transfer.direction != "read":
            beats = transfer.bursts * -(-transfer.burst_bytes // timing.gm_write_beat)
            cycles = max(total / timing.gm_write_bandwidth, beats)
            return GmCost(cycles, timing.gm_write_latency, beats, total / share)
        beats = transfer.bursts * -(-transfer.burst_bytes // timing.gm_read_beat)
        fetched = len(self.lines(transfer, region)) * timing.gm_line
        return GmCost(max(fetched / timing.gm_read_bandwidth, beats), timing.gm_read_latency, beats, fetched / share)

    def lines(self, transfer: Transfer, region: Region) -> range | np.ndarray:
        """Return the numbers of L2 lines that bursts touch, from the start of the tensor."""
        line = int(self.timing.gm_line)
        start, length, pitch = region.start, transfer.burst_bytes, transfer.pitch
        if transfer.bursts == 1 or pitch == length:
            return range(start // line, -(-(start + transfer.bursts * length) // line))
        first = start + np.arange(transfer.bursts, dtype=np.int64) * pitch
        last = first + length - 1
        width = int((last // line - first // line).max()) + 1
        every = (first // line)[:, None] + np.arange(width)
        return np.unique(every[every <= (last // line)[:, None]])

    def cached_cost(self, transfer: Transfer, cost: GmCost, memory: int, lines: range | np.ndarray) -> GmCost:
        """Return the cost of a move, and update the L2 buffer."""
        misses = self.l2.touch(memory, lines)
        if transfer.direction != "read":
            return cost
        timing = self.timing
        line = timing.gm_line
        self.hit_bytes += transfer.bursts * transfer.burst_bytes * (1 - misses / len(lines))
        cycles = misses * line / timing.gm_read_bandwidth + (len(lines) - misses) * line / timing.l2_read_bandwidth
        latency = timing.gm_read_latency if misses else timing.l2_read_latency
        share = misses * line / self.soc.gm_share(self.active_cores)
        return GmCost(max(cycles, cost.beats), latency, cost.beats, share)


class L2Cache:
    """Least-recently-used set of lines, shared by the cores."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._lines: OrderedDict[tuple[int, int], None] = OrderedDict()

    def clear(self) -> None:
        """Forget all lines."""
        self._lines.clear()

    def touch(self, memory: int, lines: range | np.ndarray) -> int:
        """Use ``lines`` of a memory. Returns how many were not there."""
        held, misses = self._lines, 0
        for line in lines:
            key = (memory, int(line))
            if key in held:
                held.move_to_end(key)
            else:
                misses += 1
                held[key] = None
        while len(held) > self.capacity:
            held.popitem(last=False)
        return misses
