"""The timing engine against small schedules computed by hand (timing.md 4, 5, 7; D31, D32)."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import tikemu
from tikemu import Options, tik
from tikemu.isa.micro_op import Transfer
from tikemu.isa.region import Memory, Region
from tikemu.soc import ASCEND_910A
from tikemu.timing.clock import CoreClock
from tikemu.timing.gm import GlobalMemory, L2Cache
from tikemu.timing.simulator import PIPE_INDEX, TimedOp

ISSUE, FLAG, HANDSHAKE = 4, 1, 10
SYNC = FLAG + HANDSHAKE  # from a result on one pipe to the start on another
FLAGS = 2 * FLAG  # issue of set_flag and wait_flag by the scalar unit


class Bench:
    """One core, tensors in its Unified Buffer, and operations on them."""

    def __init__(self, **options: Any) -> None:
        self.clock = CoreClock(ASCEND_910A, 1000)
        self.clock.trace = []
        self.ub = Memory("UB", "UB", 65536, False)

    def bytes(self, start: int, end: int) -> Any:
        return self.clock.footprints.span(self.ub, start, end)

    def op(
        self, pipe: str, cycles: float = 10, latency: float = 20, reads: Any = (), writes: Any = (), **fields: Any
    ) -> tuple[float, float]:
        """Execute an operation; returns its start and end. Operands are (start, end) in bytes."""
        op = TimedOp(
            "op",
            PIPE_INDEX[pipe],
            cycles,
            latency,
            tuple(self.bytes(*span) for span in reads),
            tuple(self.bytes(*span) for span in writes),
        )
        for name, value in fields.items():
            setattr(op, name, value)
        self.clock.step((op,))
        return self.clock.trace[-1][1:]


A, B, C = (0, 256), (256, 512), (512, 768)


# ------------------------------------------------------------------------------------------------ pipes
def test_independent_instructions_of_a_pipe_follow_each_other() -> None:
    bench = Bench()
    assert bench.op("V", writes=[A]) == (ISSUE, ISSUE + 10)
    assert bench.op("V", writes=[B]) == (ISSUE + 10, ISSUE + 20)
    assert bench.clock.finish == ISSUE + 20 + 20


def test_a_dependent_instruction_waits_for_the_result() -> None:
    bench = Bench()
    bench.op("V", writes=[A])
    assert bench.op("V", reads=[A], writes=[B])[0] == ISSUE + 10 + 20
    assert bench.op("V", writes=[B])[0] == ISSUE + 2 * 30  # written twice


def test_overwriting_what_the_same_pipe_has_read_needs_no_wait() -> None:
    bench = Bench()
    bench.op("V", reads=[A], writes=[B])
    assert bench.op("V", writes=[A])[0] == ISSUE + 10


def test_the_scalar_unit_issues_one_instruction_after_the_other() -> None:
    bench = Bench()
    starts = [bench.op(pipe, cycles=1)[0] for pipe in ("V", "M", "MTE1", "MTE2", "MTE3")]
    assert starts == [ISSUE * n for n in range(1, 6)]


def test_pipes_run_concurrently() -> None:
    bench = Bench()
    bench.op("V", cycles=1000)
    assert bench.op("M", cycles=1000)[0] == 2 * ISSUE
    assert bench.clock.finish == 2 * ISSUE + 1000 + 20


@pytest.mark.parametrize(
    "first, second",
    [
        ({"writes": [A]}, {"reads": [A]}),
        ({"reads": [A]}, {"writes": [A]}),
        ({"writes": [A]}, {"writes": [A]}),
        ({"writes": [(0, 300)]}, {"reads": [(299, 400)]}),
    ],
)
def test_dependences_between_pipes_cost_a_flag(first: dict, second: dict) -> None:
    bench = Bench()
    bench.op("MTE2", cycles=100, latency=350, **first)
    assert bench.op("V", **second)[0] == ISSUE + 100 + 350 + SYNC
    assert bench.clock.now == 2 * ISSUE + FLAGS
    assert bench.clock.flags == 2


@pytest.mark.parametrize(
    "first, second",
    [
        ({"reads": [A]}, {"reads": [A]}),
        ({"writes": [A]}, {"reads": [B]}),
        ({"writes": [(0, 300)]}, {"reads": [(300, 400)]}),
    ],
)
def test_independent_accesses_of_two_pipes_do_not_wait(first: dict, second: dict) -> None:
    bench = Bench()
    bench.op("MTE2", cycles=100, latency=350, **first)
    assert bench.op("V", **second)[0] == 2 * ISSUE
    assert bench.clock.flags == 0


def test_what_is_known_to_be_complete_needs_no_second_flag() -> None:
    bench = Bench()
    bench.op("MTE2", writes=[A])
    bench.op("MTE2", writes=[B])
    bench.op("V", reads=[B])
    bench.op("V", reads=[A])  # the flag after B covers it
    assert bench.clock.flags == 2


def test_instructions_of_a_pipe_complete_in_order() -> None:
    bench = Bench()
    bench.op("MTE3", cycles=10, latency=200, writes=[A])
    bench.op("MTE3", cycles=10, latency=20, writes=[B])
    assert bench.op("V", reads=[B])[0] == ISSUE + 10 + 200 + SYNC


def test_strided_footprints_depend_on_shared_bytes_only() -> None:
    bench = Bench()
    even = bench.clock.footprints.exact(Region.strided(bench.ub, 0, 8, 64, 32))
    odd = bench.clock.footprints.exact(Region.strided(bench.ub, 32, 8, 64, 32))
    both = bench.clock.footprints.exact(Region.strided(bench.ub, 16, 8, 64, 32))
    assert odd not in even.conflicts
    assert both in even.conflicts and both in odd.conflicts


def test_a_full_queue_holds_the_scalar_unit() -> None:
    bench = Bench()
    starts = [bench.op("V", cycles=100, latency=0)[0] for _ in range(40)]
    assert starts == [ISSUE + 100 * n for n in range(40)]
    # The 40th instruction enters when the 8th (32 places ahead) starts.
    assert bench.clock.now == starts[7]


def test_the_mask_register_is_written_when_it_changes() -> None:
    bench = Bench()
    for mask in ((0, 255), (0, 255), (0, 1), None, (0, 1)):
        bench.op("V", cycles=1, mask=mask)
    assert bench.clock.now == 5 * ISSUE + 2


def test_accumulating_into_a_large_tile_is_chained() -> None:
    bench = Bench()
    bench.op("M", writes=[A])
    assert bench.op("M", reads=[A], writes=[A], chained=True)[0] == ISSUE + 10
    assert bench.op("M", reads=[A], writes=[A])[0] == ISSUE + 10 + 10 + 20


# ------------------------------------------------------------------------------------------------ scalar unit
def test_a_scalar_read_drains_the_producer() -> None:
    bench = Bench()
    bench.op("V", writes=[A])
    bench.op("V", cycles=100, writes=[B])
    bench.clock.scalar_read(bench.bytes(0, 2))
    assert bench.clock.now == ISSUE + 10 + 100 + 20 + SYNC + 12


def test_a_scalar_read_of_idle_bytes_costs_the_access() -> None:
    bench = Bench()
    bench.op("V", cycles=1000, writes=[A])
    bench.clock.scalar_read(bench.bytes(*B))
    assert bench.clock.now == ISSUE + 12


def test_a_vector_instruction_waits_for_a_scalar_store() -> None:
    bench = Bench()
    bench.clock.scalar_write(bench.bytes(0, 2))
    assert bench.op("V", reads=[A])[0] == ISSUE + SYNC
    bench.clock.scalar_write(bench.bytes(0, 2))  # waits until the vector instruction has read
    assert bench.clock.now == ISSUE + SYNC + 10 + 20 + SYNC + ISSUE


# ------------------------------------------------------------------------------------------------ barriers and flags
def test_the_barrier_of_a_pipe_drains_it() -> None:
    bench = Bench()
    bench.op("V", writes=[A])
    bench.op("S", barrier="V")
    assert bench.op("V", writes=[B])[0] == ISSUE + 10 + 20
    assert bench.op("M", writes=[C])[0] == 4 * ISSUE


def test_the_barrier_of_all_pipes_drains_everything() -> None:
    bench = Bench()
    bench.op("V", cycles=500, writes=[A])
    bench.op("S", barrier="ALL")
    assert bench.op("M", reads=[A])[0] == ISSUE + 500 + 20 + ISSUE
    assert bench.clock.flags == 0


def test_explicit_flags_hold_the_destination() -> None:
    bench = Bench()
    bench.op("MTE2", cycles=100, latency=350)
    bench.op("S", flag=("set", "MTE2", "V", 0))
    bench.op("S", flag=("wait", "MTE2", "V", 0))
    assert bench.op("V")[0] == ISSUE + 100 + 350 + SYNC
    assert bench.clock.now == 2 * ISSUE + 2 * FLAG


def test_waiting_for_a_flag_that_is_never_set() -> None:
    heard = []
    bench = Bench()
    bench.clock = CoreClock(ASCEND_910A, 1000, lambda message, location: heard.append(message))
    bench.clock.trace = []
    bench.op("S", flag=("wait", "MTE2", "V", 0))
    assert bench.op("V")[0] == FLAG + ISSUE
    assert heard == ["wait_flag(MTE2, V, 0) has no set_flag before it"]


def test_events_in_flight_are_counted_per_pair() -> None:
    bench = Bench()
    spans = [(64 * n, 64 * n + 64) for n in range(6)]
    for span in spans:
        bench.op("MTE2", cycles=10, latency=0, writes=[span])
    bench.op("V", cycles=1000, latency=0)
    for span in spans:
        bench.op("V", cycles=10, latency=0, reads=[span])
    # All six loads are complete while the vector unit is still busy.
    assert bench.clock.events == {(PIPE_INDEX["MTE2"], PIPE_INDEX["V"]): 6}


@pytest.mark.parametrize("copies", [1, 2, 3, 4])
def test_every_buffer_ahead_holds_an_event(copies: int) -> None:
    bench = Bench()
    buffers = [(256 * n, 256 * n + 256) for n in range(copies)]
    for n in range(12):
        bench.op("MTE2", cycles=20, latency=0, writes=[buffers[n % copies]])
        bench.op("V", cycles=100, latency=0, reads=[buffers[n % copies]])
    # While the vector unit works on one buffer, the loads of the others are complete.
    assert bench.clock.events[PIPE_INDEX["MTE2"], PIPE_INDEX["V"]] == max(1, copies - 1)


# ------------------------------------------------------------------------------------------------ unsynchronised scopes
def test_an_unsynchronised_scope_inserts_no_flags() -> None:
    bench = Bench()
    bench.op("MTE2", cycles=100, latency=350, writes=[A])
    bench.clock.enter_unsynced()
    op = TimedOp("op", PIPE_INDEX["MTE2"], 10, 350, (), (bench.bytes(*B),))
    bench.clock.step_unsynced(op)
    use = TimedOp("op", PIPE_INDEX["V"], 10, 20, (bench.bytes(*B),), (bench.bytes(*C),))
    bench.clock.step_unsynced(use)
    assert bench.clock.trace[-1][1] == 3 * ISSUE  # B is written inside the scope: no wait
    before = TimedOp("op", PIPE_INDEX["M"], 10, 20, (bench.bytes(*A),), ())
    bench.clock.step_unsynced(before)
    assert bench.clock.trace[-1][1] == ISSUE + 100 + 350 + SYNC  # A was written before it
    bench.clock.leave_unsynced()
    start, _ = bench.op("MTE3", reads=[B])
    assert start == ISSUE + 100 + 10 + 350 + SYNC  # after the scope its accesses count


# ------------------------------------------------------------------------------------------------ global memory
def gm(cores: int = 1, l2: bool = False) -> GlobalMemory:
    return GlobalMemory(ASCEND_910A, cores, l2)


def gm_region(start: int, transfer: Transfer) -> Region:
    memory = Memory("GM", "gm", 1 << 22, False)
    return Region.strided(memory, start, transfer.bursts, transfer.pitch, transfer.burst_bytes)


@pytest.mark.parametrize("cores, bandwidth", [(1, 78), (8, 78), (16, 72.5), (32, 36.25)])
def test_cores_share_the_bandwidth(cores: int, bandwidth: float) -> None:
    transfer = Transfer("read", 1, 65536, 65536)
    cost = gm(cores).cost(transfer, gm_region(0, transfer))
    assert cost.cycles == pytest.approx(65536 / bandwidth)
    assert cost.latency == 350


@pytest.mark.parametrize(
    "start, bursts, length, pitch, fetched, beats",
    [
        (0, 1, 1024, 1024, 1024, 8),
        (64, 1, 128, 128, 256, 1),  # off the line: two lines
        (0, 16, 32, 32, 512, 16),  # contiguous, but every burst takes a beat
        (0, 16, 32, 64, 1024, 16),  # two bursts share a line
        (0, 16, 32, 4096, 16 * 128, 16),
        (96, 16, 64, 4096, 16 * 256, 16),
    ],
)
def test_reads_fetch_whole_lines_and_whole_beats(
    start: int, bursts: int, length: int, pitch: int, fetched: int, beats: int
) -> None:
    transfer = Transfer("read", bursts, length, pitch)
    cost = gm().cost(transfer, gm_region(start, transfer))
    assert cost.cycles == pytest.approx(max(fetched / 78, beats))


@pytest.mark.parametrize(
    "cores, bursts, length, cycles",
    [
        (1, 1, 6400, 100),
        (32, 1, 6400, 6400 / 36.25),
        (1, 100, 32, 100),
        (1, 10, 96, 20),
    ],
)
def test_writes(cores: int, bursts: int, length: int, cycles: float) -> None:
    transfer = Transfer("write", bursts, length, length)
    cost = gm(cores).cost(transfer, gm_region(0, transfer))
    assert cost.cycles == pytest.approx(cycles)
    assert cost.latency == 200


def test_l2_serves_what_was_read_before() -> None:
    model = gm(32, l2=True)
    transfer = Transfer("read", 1, 65536, 65536)
    region = gm_region(0, transfer)
    cost, lines = model.cost(transfer, region), model.lines(transfer, region)
    first = model.cached_cost(transfer, cost, 1, lines)
    again = model.cached_cost(transfer, cost, 1, lines)
    assert (first.cycles, first.latency) == (pytest.approx(65536 / 36.25), 350)
    assert (again.cycles, again.latency) == (pytest.approx(65536 / 110), 150)
    assert model.cached_cost(transfer, cost, 2, lines).latency == 350  # another tensor


def test_l2_forgets_the_least_recently_used() -> None:
    cache = L2Cache(4)
    assert cache.touch(0, range(4)) == 4
    assert cache.touch(0, range(1)) == 0  # line 0 is used again
    assert cache.touch(0, range(4, 5)) == 1  # drops line 1
    assert cache.touch(0, range(1)) == 0
    assert cache.touch(0, range(1, 2)) == 1


# ------------------------------------------------------------------------------------------------ whole programs
def vector_kernel(instance: Any, count: int = 3) -> Any:
    """Load, ``count`` dependent additions, store."""
    source = instance.Tensor("float16", (1024,), tik.scope_gm, "source")
    target = instance.Tensor("float16", (1024,), tik.scope_gm, "target")
    a = instance.Tensor("float16", (1024,), tik.scope_ubuf, "a")
    instance.data_move(a, source, 0, 1, 64, 0, 0)
    for _ in range(count):
        instance.vec_exp(128, a, a, 8, 8, 8)
    instance.data_move(target, a, 0, 1, 64, 0, 0)
    instance.BuildCCE("chain", [source], [target])
    return instance


INPUT = {"source": np.zeros(1024, np.float16)}


def test_a_chain_of_dependent_instructions(kernel: Any) -> None:
    result = tikemu.run(vector_kernel(kernel), INPUT)
    load = 2048 / 78 + 350
    vector = 8 * 4 + 20
    store = 2048 / 64 + 200
    assert result.cycles == math.ceil(ISSUE + load + SYNC + 3 * vector + SYNC + store)
    assert result.seconds == pytest.approx(result.cycles / 1e9)
    assert result.instructions["vec_exp"] == tikemu.result.InstructionUse(3, 96)
    assert result.pipes["V"].busy == 96
    assert result.pipes["V"].share == pytest.approx(96 / result.cycles)
    assert result.pipes["S"].busy == 5 * ISSUE + 1 + 2 * FLAGS  # the mask is written once
    assert (result.gm_read_bytes, result.gm_written_bytes) == (2048, 2048)
    assert result.events_in_flight == {("MTE2", "V"): 1, ("V", "MTE3"): 1}
    assert result.peak_bytes["UB"] == 2048


def test_timing_alone_gives_the_same_time(kernel: Any) -> None:
    vector_kernel(kernel)
    full, alone = tikemu.run(kernel, INPUT), tikemu.run(kernel, {}, numerics=False)
    assert alone.cycles == full.cycles
    assert alone.instructions == full.instructions
    assert alone.pipes == full.pipes


def test_without_timing_there_are_outputs_only(kernel: Any) -> None:
    result = tikemu.run(vector_kernel(kernel), INPUT, timing=False)
    assert result.cycles is None and result.seconds is None and not result.instructions
    assert result.outputs["target"].shape == (1024,)
    assert "peak bytes" in result.report()
    with pytest.raises(ValueError, match="timing=True"):
        result.save_trace("unused.json")


def moves(instance: Any, run_time: bool) -> Any:
    """Two loads into disjoint halves of one tensor and an addition on the first half."""
    source = instance.Tensor("float16", (1024,), tik.scope_gm, "source")
    target = instance.Tensor("float16", (1024,), tik.scope_gm, "target")
    a = instance.Tensor("float16", (1024,), tik.scope_ubuf, "a")
    half = instance.Scalar("int32", init_value=512) if run_time else 512
    instance.data_move(a, source, 0, 1, 32, 0, 0)
    instance.data_move(a[half], source, 0, 1, 32, 0, 0)
    instance.vec_add(128, a, a, a, 4, 8, 8, 8)
    instance.data_move(target, a, 0, 1, 64, 0, 0)
    instance.BuildCCE("moves", [source], [target])
    return instance


@pytest.mark.parametrize("m, n, chained", [(144, 16, False), (160, 16, True), (48, 48, False), (64, 48, True)])
def test_accumulating_matrix_products(kernel: Any, m: int, n: int, chained: bool) -> None:
    """Below ten fractals of the result, a product waits for the one it accumulates onto (timing.md 3.1)."""
    left = kernel.Tensor("float16", (m * 16,), tik.scope_ca, "left")
    right = kernel.Tensor("float16", (n * 16,), tik.scope_cb, "right")
    result = kernel.Tensor("float32", (m * n,), tik.scope_cc, "result")
    for step in range(5):
        kernel.mmad(result, left, right, m, 16, n, int(step > 0))
    kernel.BuildCCE("products", [], [])
    work = m // 16 * (n // 16)
    run = tikemu.run(kernel, {}, numerics=False)
    assert run.cycles == ISSUE + 5 * work + 20 + (0 if chained else 4 * 20)
    assert run.macs == 5 * m * n * 16
    assert run.cube_utilisation == pytest.approx(5 * work / run.cycles)
    assert run.flops == pytest.approx(2 * run.macs / run.seconds)


@pytest.mark.parametrize(
    "run_time, sync, waits",
    [
        (False, "auto", False),
        (False, "conservative", True),
        (False, "optimistic", False),
        (True, "auto", True),
        (True, "conservative", True),
        (True, "optimistic", False),
    ],
)
def test_addresses_known_at_build_time_save_synchronisation(
    kernel: Any, run_time: bool, sync: str, waits: bool
) -> None:
    """Where TIK cannot prove that two moves are disjoint, the second waits for the first (D31b)."""
    result = tikemu.run(moves(kernel, run_time), INPUT, options=Options(sync=sync))
    move = 1024 / 78
    first = ISSUE + run_time  # the assignment of the Scalar takes a cycle
    loads = first + (2 * (move + 350) if waits else 2 * move + 350)
    ready = loads if waits else first + move + 350  # the addition needs the first half only
    begin = ready + SYNC
    # In place: a read and a write of each bank, and both sources in one bank.
    add = result.instructions["vec_add"].cycles
    store = 2048 / 64 + 200
    if waits:
        expected = begin + add + 20 + SYNC + store
    else:
        expected = max(begin + add + 20, loads) + SYNC + store
    assert result.cycles == math.ceil(expected)


def copy_kernel(instance: Any, blocks: int, tiles: int, thread_num: int) -> Any:
    """Each block moves ``tiles`` tiles of 16 KiB through the Unified Buffer."""
    count = 8192
    source = instance.Tensor("float16", (blocks * tiles * count,), tik.scope_gm, "source")
    target = instance.Tensor("float16", (blocks * tiles * count,), tik.scope_gm, "target")
    with (
        instance.for_range(0, blocks, block_num=blocks) as block,
        instance.for_range(0, tiles, thread_num=thread_num) as tile,
    ):
        buffer = instance.Tensor("float16", (count,), tik.scope_ubuf, "buffer")
        offset = (block * tiles + tile) * count
        instance.data_move(buffer, source[offset], 0, 1, count // 16, 0, 0)
        instance.data_move(target[offset], buffer, 0, 1, count // 16, 0, 0)
    instance.BuildCCE("copy", [source], [target])
    return instance


def test_double_buffering_overlaps_load_and_store(kernel: Any) -> None:
    single = tikemu.run(copy_kernel(kernel, 1, 16, 1), {}, numerics=False)
    double = tikemu.run(copy_kernel(tik.Tik(), 1, 16, 2), {}, numerics=False)
    load, store = 16384 / 78 + 350, 16384 / 64 + 200
    assert single.cycles == pytest.approx(16 * (load + store + 2 * SYNC), rel=0.01)
    # Two copies: a pair of tiles in the time of one round trip.
    assert double.cycles == pytest.approx(single.cycles / 2, rel=0.1)
    assert double.peak_bytes["UB"] == 2 * single.peak_bytes["UB"]
    assert double.code_bytes > 1.5 * single.code_bytes


def test_blocks_run_in_batches(kernel: Any) -> None:
    one = tikemu.run(copy_kernel(kernel, 32, 2, 1), {}, numerics=False)
    many = tikemu.run(copy_kernel(tik.Tik(), 70, 2, 1), {}, numerics=False)
    assert len(many.core_cycles) == many.cores == 32
    assert many.block_count == 70
    assert sorted(round(cycles / one.cycles, 6) for cycles in many.core_cycles) == [2.0] * 26 + [3.0] * 6
    assert many.cycles == pytest.approx(3 * one.cycles)


def test_traffic_cannot_exceed_the_bandwidth_of_the_memory(kernel: Any) -> None:
    result = tikemu.run(copy_kernel(kernel, 32, 64, 4), {}, numerics=False)
    traffic = result.gm_read_bytes + result.gm_written_bytes
    assert traffic == 2 * 32 * 64 * 16384
    assert result.cycles >= result.memory_floor == pytest.approx(traffic / 1160)
    assert result.memory_utilisation <= 1


def test_the_l2_model_makes_a_second_pass_faster(kernel: Any) -> None:
    source = kernel.Tensor("float16", (8192,), tik.scope_gm, "source")
    with kernel.for_range(0, 32, block_num=32):
        buffer = kernel.Tensor("float16", (8192,), tik.scope_ubuf, "buffer")
        with kernel.for_range(0, 4):
            kernel.data_move(buffer, source, 0, 1, 512, 0, 0)
    kernel.BuildCCE("reread", [source], [])
    miss = tikemu.run(kernel, {}, numerics=False)
    hit = tikemu.run(kernel, {}, numerics=False, options=Options(l2=True))
    assert miss.instructions["data_move"].cycles == pytest.approx(128 * 16384 / 36.25)
    assert hit.instructions["data_move"].cycles == pytest.approx(16384 / 36.25 + 127 * 16384 / 110)
    assert miss.memory_floor == pytest.approx(128 * 16384 / 1160)
    assert hit.memory_floor == pytest.approx(16384 / 1160)  # the memory itself is read once


def test_loop_iterations_cost_the_scalar_unit(kernel: Any) -> None:
    source = kernel.Tensor("float16", (16,), tik.scope_gm, "source")
    total = kernel.Scalar("int32", init_value=0)
    with kernel.for_range(0, 10) as i:
        total.set_as(total + i)
    kernel.BuildCCE("loop", [source], [])
    assert tikemu.run(kernel, {}, numerics=False).cycles == 1 + 10 * (ISSUE + 2)


def test_code_size_counts_loops_once_and_copies_separately(kernel: Any) -> None:
    size = [
        tikemu.run(copy_kernel(tik.Tik(), 1, tiles, copies), {}, numerics=False).code_bytes
        for tiles, copies in ((4, 1), (16, 1), (16, 2))
    ]
    assert size[0] == size[1] == 2 * 32 + 2 * 24
    assert size[2] == 2 * 2 * 32 + 2 * 24


def test_trace_has_a_row_per_core_and_pipe(kernel: Any, tmp_path: Any) -> None:
    result = tikemu.run(copy_kernel(kernel, 3, 2, 1), {}, numerics=False, options=Options(max_trace_cores=2))
    result.save_trace(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    rows = [event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"]
    assert rows == 2 * ["PIPE_S", "PIPE_V", "PIPE_M", "PIPE_MTE1", "PIPE_MTE2", "PIPE_MTE3"]
    assert len(events) == 2 * 4
    assert {event["cat"] for event in events} == {"MTE2", "MTE3"}
    last = max(event["ts"] + event["dur"] for event in events)
    assert math.ceil((last + 0.2) * 1000) == result.core_cycles[0]  # plus the completion of the last write
    assert "data_move" in events[0]["args"]["line"]


def test_trace_keeps_a_limited_number_of_events(kernel: Any, tmp_path: Any) -> None:
    result = tikemu.run(copy_kernel(kernel, 1, 50, 1), {}, numerics=False, options=Options(max_trace_events=10))
    result.save_trace(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert len([event for event in trace["traceEvents"] if event["ph"] == "X"]) == 10
    assert trace["otherData"]["truncated"] is True


def test_report_names_the_constants_and_their_confidence(kernel: Any) -> None:
    report = tikemu.run(vector_kernel(kernel), INPUT).report()
    for expected in (
        "vec_exp",
        "PIPE_V",
        "measured on a first-generation 910: hbm_bandwidth",
        "excluded",
        "vector_transcendental_f16 4",
        "events in flight (4 exist per pair): MTE2->V 1",
    ):
        assert expected in report
