"""Test waits on schedules computed by hand, random schedules, programs, reports and traces."""

import json
from pathlib import Path

import numpy as np
import pytest
import tikemu
from tikemu import tik
from tikemu.soc import PIPES
from tikemu.timing.simulator import PIPE_INDEX
from tikemu.timing.waits import named

from emulator.tests.support.timing_bench import FLAGS, ISSUE, SYNC, A, B

pytestmark = pytest.mark.usefixtures("soc")


def waits(bench):
    """Return the waits of the pipes of a bench until now."""
    return named(bench.clock.simulator.waited)


def test_a_pipe_waits_for_the_scalar_unit(bench):
    bench.clock.scalar(100)
    bench.op("V")
    bench.op("V", cycles=50)
    assert waits(bench) == {("V", "S", "issue"): 100 + ISSUE}


def test_a_pipe_waits_for_its_own_result(bench):
    bench.op("V", latency=20, writes=[A])
    bench.op("V", reads=[A])
    assert waits(bench) == {("V", "S", "issue"): ISSUE, ("V", "V", "operand"): 20}


def test_a_pipe_waits_for_the_last_of_the_flags(bench):
    """An instruction waits for S until S has handed it out, whatever else is missing."""
    bench.op("MTE2", cycles=100, latency=350, writes=[A])
    bench.op("M", cycles=10, latency=20, writes=[B])
    bench.op("V", reads=[A, B])
    issued = 3 * ISSUE + 2 * FLAGS
    assert waits(bench) == {
        ("V", "MTE2", "event"): ISSUE + 100 + 350 + SYNC - issued,
        ("V", "S", "issue"): issued,
        ("M", "S", "issue"): 2 * ISSUE,
        ("MTE2", "S", "issue"): ISSUE,
    }


def test_the_scalar_unit_waits_for_a_full_queue_for_a_flag_and_at_a_barrier(bench):
    for _ in range(34):
        bench.op("V", cycles=1000, latency=0, writes=[A])
    left = ISSUE + 1000  # the second instruction has left the queue
    assert waits(bench)["S", "V", "queue full"] == left - 34 * ISSUE
    before = bench.clock.now
    bench.clock.scalar_read(bench.bytes(*A))
    done = ISSUE + 34 * 1000
    assert waits(bench)["S", "V", "event"] == done + SYNC - before - FLAGS
    bench.op("M", cycles=500, latency=20)
    before = bench.clock.now
    bench.op("S", barrier="ALL")
    assert waits(bench)["S", "M", "barrier"] == 500 + 20 - ISSUE  # of the barrier itself
    assert bench.clock.now == before + 500 + 20


def test_a_barrier_of_a_pipe_and_an_explicit_flag(bench):
    bench.op("V", cycles=10, latency=200)
    bench.op("S", barrier="V")
    assert waits(bench)["V", "V", "operand"] == 200
    bench.op("MTE2", cycles=400, latency=100)
    done = bench.clock.simulator.done[PIPE_INDEX["MTE2"]]
    bench.op("S", flag=("set", "MTE2", "V", 0))
    bench.op("S", flag=("wait", "MTE2", "V", 0))
    assert waits(bench)["V", "MTE2", "event"] == done + SYNC - (ISSUE + 10 + 200)


@pytest.mark.parametrize("seed", range(6))
def test_work_and_waits_are_all_the_time_of_a_pipe(bench, seed):
    """The sum also holds for S, apart from flags of operations that complete before S sets the flag."""
    rng = np.random.default_rng(seed)
    busy = dict.fromkeys(PIPES, 0.0)
    for _ in range(300):
        pipe = PIPES[int(rng.integers(1, 6))]
        spans = [(start, start + 64) for start in rng.integers(0, 40, 2).tolist()]
        start, end = bench.op(pipe, float(rng.integers(1, 90)), float(rng.integers(0, 200)), spans[:1], spans[1:])
        busy[pipe] += end - start
        busy["S"] += ISSUE
        if rng.random() < 0.2:
            bench.clock.scalar(float(rng.integers(1, 200)))
    clock = bench.clock
    busy["S"] += clock.simulator.scalar_busy
    for pipe in PIPES:
        waited = sum(cycles for (waiting, _, _), cycles in waits(bench).items() if waiting == pipe)
        assert busy[pipe] + waited == (clock.now if pipe == "S" else clock.simulator.free[PIPE_INDEX[pipe]]), pipe


def negated(instance, tiles, inside):
    """Load, negate and store tiles with thread_num=2, in one tensor or one per iteration."""
    count = 8192
    source = instance.Tensor("float16", (tiles * count,), tik.scope_gm, "source")
    target = instance.Tensor("float16", (tiles * count,), tik.scope_gm, "target")
    buffer = None if inside else instance.Tensor("float16", (count,), tik.scope_ubuf, "buffer")
    with instance.for_range(0, tiles, thread_num=2) as tile:
        own = instance.Tensor("float16", (count,), tik.scope_ubuf, "own") if buffer is None else buffer
        instance.data_move(own, source[tile * count], 0, 1, count // 16, 0, 0)
        instance.vec_muls(128, own, own, -1.0, count // 128, 8, 8)
        instance.data_move(target[tile * count], own, 0, 1, count // 16, 0, 0)
    instance.BuildCCE("negated", [source], [target])
    return instance


def test_it_says_why_two_threads_gain_nothing():
    """Loads wait for the stores of the tensor that both iterations share, and hardly for the stores of two tensors.

    docs/emulator.md shows this program.
    """
    page = (Path(__file__).parents[3] / "docs/emulator.md").read_text(encoding="utf-8")
    shared, own = (tikemu.run(negated(tik.Tik(), 16, inside), {}, numerics=False) for inside in (False, True))
    load = ("MTE2", "MTE3", "event")
    assert shared.waits[load] > 0.5 * shared.cycles > own.cycles - shared.pipes["MTE3"].busy
    assert own.waits.get(load, 0.0) < 0.7 * shared.waits[load]
    for row in ("V     MTE2", "MTE2  MTE3", "MTE3  V"):
        assert next(line for line in shared.report().splitlines() if line.startswith(f"PIPE_{row} ")) in page
    assert f"the same loads wait {own.waits[load]:,.0f} cycles, and\n" in page
    assert f"the program takes {own.cycles:,.0f} cycles in place of {shared.cycles:,.0f} (" in page
    for result in (shared, own):
        table = result.report().split("who waited for whom")[1].split("instruction ")[0]
        line = next(line for line in table.splitlines() if line.startswith("PIPE_MTE2  MTE3  event"))
        assert f"{result.waits[load]:,.0f}" in line
        for pipe, use in result.pipes.items():
            rows = [line for line in table.splitlines() if line.split()[:1] == [f"PIPE_{pipe}"]]
            assert bool(rows) == bool(use.busy) and (not rows or "nothing left" in rows[-1])
            shares = sum(float(row.split()[-1].rstrip("%")) for row in rows) / 100 + use.share
            assert not rows or shares == pytest.approx(1, abs=0.01)


def test_a_trace_shows_the_scalar_unit_and_the_waits_for_it(tmp_path):
    """Bars of S do not overlap, and add up to the report's time."""
    instance = negated(tik.Tik(), 12, True)
    result = tikemu.run(instance, {}, numerics=False)
    result.save_trace(tmp_path / "trace.json")
    events = [e for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if e["ph"] == "X"]
    row = PIPES.index("S")
    work = [event for event in events if event["tid"] == row and event["cat"] == "S"]
    assert sum(event["args"]["cycles"] for event in work) == result.pipes["S"].busy
    ends = 0.0
    for event in sorted((event for event in events if event["tid"] == row), key=lambda event: event["args"]["cycle"]):
        assert event["args"]["cycle"] >= ends
        ends = event["args"]["cycle"] + event["args"]["cycles"]
    for pipe in ("V", "MTE2", "MTE3"):
        bars = [e for e in events if e["tid"] == PIPES.index(pipe) and e["name"] == "waits for S"]
        assert bars and {event["cat"] for event in bars} == {"wait"}
        shown = sum(event["args"]["cycles"] for event in bars)
        assert 0 < shown <= result.waits[pipe, "S", "issue"]  # the wait behind its last instruction has no bar
