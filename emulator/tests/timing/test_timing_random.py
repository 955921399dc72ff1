"""The timing engine against brute force, on random operations."""

import numpy as np
import pytest
from tikemu.isa.region import Memory, Region
from tikemu.soc import ASCEND_910A
from tikemu.timing.clock import CoreClock
from tikemu.timing.simulator import TimedOp


class BruteForce:
    """The rules of the engine, with every pair of accesses compared byte by byte."""

    def __init__(self):
        self.now, self.flags = 0.0, 0
        self.free, self.done = [0.0] * 6, [0.0] * 6
        self.known = [[0.0] * 6 for _ in range(6)]
        self.starts: list[list[float]] = [[] for _ in range(6)]
        self.records: list[tuple[tuple, np.ndarray, int, bool, float]] = []

    def step(self, op):
        pipe, start, needs = op.pipe, self.free[op.pipe], {}
        for footprint, write in [(f, False) for f in op.reads] + [(f, True) for f in op.writes]:
            bits = footprint.region.bitmap(0, 4096)
            for _, others, source, other_write, done in self.records:
                if not (write or other_write) or not (bits & others).any():
                    continue
                if source == pipe:
                    start = max(start, done if other_write else 0.0)
                elif done > self.known[pipe][source]:
                    needs[source] = max(done, needs.get(source, 0.0))
        for source, done in needs.items():
            self.known[pipe][source] = done
            self.now += 2
            self.flags += 2
            start = max(start, done + 11)
        queue = self.starts[pipe]
        self.now = max(self.now + 4, queue[-32] if len(queue) >= 32 else 0.0)
        start = max(start, self.now)
        queue.append(start)
        self.free[pipe] = start + op.cycles
        self.done[pipe] = done = max(self.done[pipe], start + op.cycles + op.latency)
        for footprint in op.reads:
            key = footprint.region.pieces
            self.records = [r for r in self.records if not (r[0] == key and r[2] == pipe and not r[3])]
            self.records.append((key, footprint.region.bitmap(0, 4096), pipe, False, done))
        for footprint in op.writes:
            key = footprint.region.pieces
            self.records = [r for r in self.records if r[0] != key]
            self.records.append((key, footprint.region.bitmap(0, 4096), pipe, True, done))
        return start


@pytest.mark.parametrize("seed", range(10))
def test_random_schedule(seed):
    rng = np.random.default_rng(seed)
    memory = Memory("UB", "UB", 4096, False)
    clock = CoreClock(ASCEND_910A, 10**6)
    clock.simulator.trace = []
    regions = []
    for _ in range(25):
        start, width = int(rng.integers(0, 2000)), int(rng.integers(1, 300))
        if rng.random() < 0.5:
            regions.append(Region.span(memory, start, width))
        else:
            pitch = width + int(rng.integers(0, 100))
            regions.append(Region.strided(memory, start, int(rng.integers(2, 6)), pitch, width))
    slow = BruteForce()
    for _ in range(400):
        chosen = [clock.footprints.exact(regions[number]) for number in rng.choice(25, 3, replace=False)]
        count = int(rng.integers(0, 3))
        op = TimedOp(
            "op",
            int(rng.integers(1, 6)),
            float(rng.integers(1, 90)),
            float(rng.integers(0, 200)),
            tuple(chosen[:count]),
            tuple(chosen[2:]) if rng.random() < 0.8 else (),
        )
        expected = slow.step(op)
        clock.step((op,))
        assert clock.simulator.trace[-1][1] == expected
    assert (clock.now, clock.simulator.flags) == (slow.now, slow.flags)
    assert clock.finish == max(slow.done)
