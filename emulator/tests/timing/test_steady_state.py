"""Replayed steady states have the same times, counts and events as simulated operations."""

import numpy as np
import pytest
from tikemu.isa.region import Memory, Region
from tikemu.soc import ASCEND_910A
from tikemu.timing import clock as clocks
from tikemu.timing.clock import CoreClock
from tikemu.timing.simulator import TimedOp, exact

UB = Memory("UB", "UB", 4096, False)


class Clock:
    """Hold a clock with operations, scalar accesses and loops drawn from a seed. Two of the same seed do the same."""

    def __init__(self, seed, replay):
        drain = {"mask_drain": seed % 3, "mask_every": seed % 2}
        self.clock = CoreClock(ASCEND_910A.with_constants(drain), replay=replay)
        self.rng = np.random.default_rng(seed)
        table = self.clock.footprints
        starts = self.rng.integers(0, 40, 12) * 32
        self.footprints = [
            table.exact(Region.span(UB, int(at), int(size)))
            for at, size in zip(starts, self.rng.integers(1, 8, 12) * 32)
        ]
        self.ops = [self.operation() for _ in range(10)]
        self.groups = [
            tuple(self.ops[number] for number in self.rng.integers(0, 10, self.rng.integers(1, 6))) for _ in range(6)
        ]
        self.bodies = [[self.action() for _ in range(self.rng.integers(1, 7))] for _ in range(3)]

    def operation(self):
        rng = self.rng
        reads, writes = (
            tuple(self.footprints[number] for number in rng.choice(12, rng.integers(0, 3), replace=False))
            for _ in range(2)
        )
        cycles = exact(float(rng.choice([0, 1, 7, 64, 100 / 3, 900.7])))
        operation = TimedOp("work", int(rng.integers(1, 6)), cycles, float(rng.choice([0, 20, 350])), reads, writes)
        operation.mask = [None, (0, 1), (0, 3)][rng.integers(3)]
        operation.chained = bool(rng.integers(4) == 0)
        operation.share = exact(float(rng.choice([0, 0, 90.3, 400])))
        if rng.integers(12) == 0:
            operation.barrier, operation.special = ["V", "ALL"][rng.integers(2)], True
        return operation

    def action(self):
        rng = self.rng
        kind = ("step", "step", "step", "scalar", "await", "read", "write")[rng.integers(7)]
        if kind == "step":
            return "step", self.groups[rng.integers(6)]
        if kind == "scalar":
            return "scalar", float(rng.integers(1, 4))
        if kind == "await":
            return "await_value", bool(rng.integers(2))
        return f"scalar_{kind}", self.footprints[rng.integers(12)]

    def block(self, start, several):
        """Run nested loops over the bodies, which now and then differ."""
        clock = self.clock
        clock.begin_block(start, several)
        for _ in range(4):
            clock.iteration(1)
            for body in self.bodies:
                for _ in range(40):
                    clock.iteration(2)
                    for kind, argument in body:
                        getattr(clock, kind)(argument)
                    if self.rng.integers(100) == 0:
                        clock.step(self.groups[0])
        return clock.end_block()

    def run(self, several):
        """Run some blocks twice, and return everything that can be seen."""
        seen = []
        for _ in range(2):
            self.clock.restart()
            for op in self.ops:
                op.count, op.extra = 0, 0.0
            start = 0.0
            for block in range(6):
                self.rng = np.random.default_rng(block // 4)
                start = self.block(start, several)
                seen.append(start)
            self.clock.settle()
            simulator = self.clock.simulator
            seen += [simulator.scalar_busy, simulator.flags, simulator.waited[:], self.clock.events]
            seen += [[(op.count, op.extra) for op in self.ops]]
        return seen


@pytest.mark.parametrize("several", [False, True], ids=["one block", "blocks"])
@pytest.mark.parametrize("seed", [0, 1, 2, 3, 12, 14, 33, 38])
def test_random_loops(seed, several, monkeypatch):
    monkeypatch.setattr(clocks, "FIRST_BACKOFF", 10)
    monkeypatch.setattr(clocks, "TRIAL_STATES", 30)
    replayed, simulated = Clock(seed, True), Clock(seed, False)
    assert replayed.run(several) == simulated.run(several)
    assert replayed.clock._transitions


def after_a_loop(replay, body, rest):
    """Return the time at which everything behind 400 iterations of ``body`` is complete."""
    clock = CoreClock(ASCEND_910A.with_constants({"ub_scalar_latency": 20}), replay=replay)
    footprint = clock.footprints.exact(Region.span(UB, 0, 32))
    move, vector = TimedOp("move", 4, 100.0, 0.0), TimedOp("vector", 1, 1.0, 20.0)
    move.share = 300.0
    moves, vectors = (move,), (vector,)
    clock.begin_block(0.0)
    for _ in range(400):
        clock.iteration(1)
        body(clock, footprint, moves, vectors)
    clock.iteration(1)
    rest(clock, footprint, moves, vectors)
    return clock.finish


def test_a_state_holds_what_a_core_has_left_of_its_share(monkeypatch):
    monkeypatch.setattr(clocks, "FIRST_BACKOFF", 2)

    def body(clock, footprint, move, vector):
        clock.scalar(350.0)
        clock.step(move)

    def rest(clock, footprint, move, vector):
        for _ in range(5):
            clock.step(move)

    assert after_a_loop(True, body, rest) == after_a_loop(False, body, rest)


def test_a_state_holds_when_a_value_is_delivered():
    def body(clock, footprint, move, vector):
        clock.await_value(True)
        clock.step(vector)
        clock.scalar(100.0)
        clock.scalar_read(footprint)

    def rest(clock, footprint, move, vector):
        clock.await_value(True)
        clock.step(vector)

    assert after_a_loop(True, body, rest) == after_a_loop(False, body, rest)
