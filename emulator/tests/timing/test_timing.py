"""The timing engine against small schedules computed by hand (timing.md 4, 5, 7; D31, D32)."""

import pytest
from tikemu.soc import ASCEND_910A
from tikemu.timing.clock import CoreClock
from tikemu.timing.simulator import PIPE_INDEX, TimedOp

from emulator.tests.support.timing_bench import FLAG, ISSUE, SYNC, A, B, Bench, C


def test_the_mask_register_is_written_when_it_changes(bench):
    for mask in ((0, 255), (0, 255), (0, 1), None, (0, 1)):
        bench.op("V", cycles=1, mask=mask)
    assert bench.clock.now == 5 * ISSUE + 2


def test_accumulating_into_a_large_tile_is_chained(bench):
    bench.op("M", writes=[A])
    assert bench.op("M", reads=[A], writes=[A], chained=True)[0] == ISSUE + 10
    assert bench.op("M", reads=[A], writes=[A])[0] == ISSUE + 10 + 10 + 20


def test_a_scalar_read_drains_the_producer(bench):
    bench.op("V", writes=[A])
    bench.op("V", cycles=100, writes=[B])
    bench.clock.scalar_read(bench.bytes(0, 2))
    assert bench.clock.now == ISSUE + 10 + 100 + 20 + SYNC + 4


def test_a_scalar_read_of_idle_bytes_costs_the_access(bench):
    bench.op("V", cycles=1000, writes=[A])
    bench.clock.scalar_read(bench.bytes(*B))
    assert bench.clock.now == ISSUE + 4


def test_a_value_from_the_unified_buffer_is_delivered_later(bench):
    bench.clock.scalar_read(bench.bytes(*B))
    bench.clock.await_value(in_pipe=True)
    assert bench.op("V")[0] == 12  # the pipe waits, the scalar unit goes on
    assert bench.op("M")[0] == bench.clock.now == 4 + 2 * ISSUE
    bench.clock.scalar_read(bench.bytes(*B))
    bench.clock.await_value(in_pipe=False)
    assert bench.clock.now == 4 + 2 * ISSUE + 12


@pytest.mark.parametrize(
    "drain, start, now", [(0, 1 + ISSUE + 10, 2 * ISSUE + 2), (1, 1 + ISSUE + 10 + 20, 2 * ISSUE + 2)]
)
def test_vector_may_drain_at_a_mask_write(drain, start, now):
    bench = Bench(mask_drain=drain)
    bench.op("V", mask=(0, 255))
    assert bench.op("V", mask=(0, 1))[0] == start
    assert bench.clock.now == now


def test_the_scalar_unit_may_wait_for_that(bench):
    bench = Bench(mask_drain=2)
    bench.op("V", mask=(0, 255))
    assert bench.op("V", mask=(0, 255))[0] == 1 + ISSUE + 10  # the same mask
    bench.op("V", mask=(0, 1))
    assert bench.clock.now == 1 + ISSUE + 2 * 10 + 20 + 1 + ISSUE


def test_the_mask_may_be_written_before_every_instruction():
    bench = Bench(mask_every=1)
    for mask in ((0, 255), (0, 255), None, (0, 255)):
        bench.op("V", cycles=1, mask=mask)
    assert bench.clock.now == 4 * ISSUE + 3


def test_a_core_moves_faster_where_it_has_moved_less_than_its_share(bench):
    assert bench.op("MTE2", cycles=100, share=300) == (ISSUE, 300)  # the share counts from the start of the block
    assert bench.op("MTE2", cycles=100, share=300) == (300, 600)
    bench.clock.scalar(1000)
    start, end = bench.op("MTE2", cycles=100, share=300)
    assert end == start + 100  # the other cores had its share meanwhile
    assert bench.op("MTE2", cycles=100, share=300)[1] == start + 200
    assert bench.op("MTE2", cycles=100, share=300)[1] == 600 + 3 * 300  # all in all no more than its share
    bench.clock.scalar(10_000)
    ends = [bench.op("MTE2", cycles=100, share=300)[1] for _ in range(9)]
    assert ends[-1] == ends[0] - 100 - 1024 + 9 * 300  # what they left long ago is lost


def test_a_vector_instruction_waits_for_a_scalar_store(bench):
    bench.clock.scalar_write(bench.bytes(0, 2))
    assert bench.op("V", reads=[A])[0] == ISSUE + SYNC
    bench.clock.scalar_write(bench.bytes(0, 2))  # waits until the vector instruction has read
    assert bench.clock.now == ISSUE + SYNC + 10 + 20 + SYNC + ISSUE


def test_the_barrier_of_a_pipe_drains_it(bench):
    bench.op("V", writes=[A])
    bench.op("S", barrier="V")
    assert bench.op("V", writes=[B])[0] == ISSUE + 10 + 20
    assert bench.op("M", writes=[C])[0] == 4 * ISSUE


def test_the_barrier_of_all_pipes_drains_everything(bench):
    bench.op("V", cycles=500, writes=[A])
    bench.op("S", barrier="ALL")
    assert bench.op("M", reads=[A])[0] == ISSUE + 500 + 20 + ISSUE
    assert bench.clock.simulator.flags == 0


def test_explicit_flags_hold_the_destination(bench):
    bench.op("MTE2", cycles=100, latency=350)
    bench.op("S", flag=("set", "MTE2", "V", 0))
    bench.op("S", flag=("wait", "MTE2", "V", 0))
    assert bench.op("V")[0] == ISSUE + 100 + 350 + SYNC
    assert bench.clock.now == 2 * ISSUE + 2 * FLAG


def test_waiting_for_a_flag_that_is_never_set(bench):
    heard = []
    bench.clock = CoreClock(ASCEND_910A, 1000, lambda message, location: heard.append(message))
    bench.clock.simulator.trace = []
    bench.op("S", flag=("wait", "MTE2", "V", 0))
    assert bench.op("V")[0] == FLAG + ISSUE
    assert heard == ["wait_flag(MTE2, V, 0) has no set_flag before it"]


def test_events_in_flight_are_counted_per_pair(bench):
    spans = [(64 * n, 64 * n + 64) for n in range(6)]
    for span in spans:
        bench.op("MTE2", cycles=10, latency=0, writes=[span])
    bench.op("V", cycles=1000, latency=0)
    for span in spans:
        bench.op("V", cycles=10, latency=0, reads=[span])
    # All six loads are complete while the vector unit is still busy.
    assert bench.clock.events == {(PIPE_INDEX["MTE2"], PIPE_INDEX["V"]): 6}


@pytest.mark.parametrize("copies", [1, 2, 3, 4])
def test_every_buffer_ahead_holds_an_event(bench, copies):
    buffers = [(256 * n, 256 * n + 256) for n in range(copies)]
    for n in range(12):
        bench.op("MTE2", cycles=20, latency=0, writes=[buffers[n % copies]])
        bench.op("V", cycles=100, latency=0, reads=[buffers[n % copies]])
    # While the vector unit works on one buffer, the loads of the others are complete.
    assert bench.clock.events[PIPE_INDEX["MTE2"], PIPE_INDEX["V"]] == max(1, copies - 1)


def test_an_unsynchronised_scope_inserts_no_flags(bench):
    bench.op("MTE2", cycles=100, latency=350, writes=[A])
    bench.clock.enter_unsynced()
    op = TimedOp("op", PIPE_INDEX["MTE2"], 10, 350, (), (bench.bytes(*B),))
    bench.clock.simulator.step_unsynced(op)
    use = TimedOp("op", PIPE_INDEX["V"], 10, 20, (bench.bytes(*B),), (bench.bytes(*C),))
    bench.clock.simulator.step_unsynced(use)
    assert bench.clock.simulator.trace[-1][1] == 3 * ISSUE  # B is written inside the scope: no wait
    before = TimedOp("op", PIPE_INDEX["M"], 10, 20, (bench.bytes(*A),), ())
    bench.clock.simulator.step_unsynced(before)
    assert bench.clock.simulator.trace[-1][1] == ISSUE + 100 + 350 + SYNC  # A was written before it
    bench.clock.simulator.leave_unsynced()
    start, _ = bench.op("MTE3", reads=[B])
    assert start == ISSUE + 100 + 10 + 350 + SYNC  # after the scope its accesses count
