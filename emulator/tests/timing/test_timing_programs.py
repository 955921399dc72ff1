"""The time of whole programs."""

import json
import math

import numpy as np
import pytest
import tikemu
from tikemu import Options, tik

from emulator.tests.support.kernels import tiled
from emulator.tests.support.timing_bench import FLAGS, ISSUE, SYNC


def vector_kernel(instance):
    """Load, three dependent exponentials, store."""
    source = instance.Tensor("float16", (1024,), tik.scope_gm, "source")
    target = instance.Tensor("float16", (1024,), tik.scope_gm, "target")
    a = instance.Tensor("float16", (1024,), tik.scope_ubuf, "a")
    instance.data_move(a, source, 0, 1, 64, 0, 0)
    for _ in range(3):
        instance.vec_exp(128, a, a, 8, 8, 8)
    instance.data_move(target, a, 0, 1, 64, 0, 0)
    instance.BuildCCE("chain", [source], [target])
    return instance


INPUT = {"source": np.zeros(1024, np.float16)}


def test_a_chain_of_dependent_instructions(kernel):
    result = tikemu.run(vector_kernel(kernel), INPUT)
    load = 2048 / 78 + 350
    vector = 8 * 4 + 15
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


@pytest.mark.parametrize("n1, m", [(1, 16), (8, 64), (8, 250), (16, 128)])
def test_fixpipe_takes_as_long_as_the_moves_it_stands_for(n1, m):
    """One move out of L0C and one to GM, as MindSpore's own kernels for this chip write them (D28b)."""
    tikemu.install(soc="Ascend910A")
    rows, cycles = -(-m // 16) * 16, []
    for whole in (True, False):
        kernel = tik.Tik()
        target = kernel.Tensor("float16", (n1, m, 16), tik.scope_gm, "target")
        product = kernel.Tensor("float32", (n1, rows, 16), tik.scope_cbuf_out, "product")
        if whole:
            quantise = {"quantize_params": {"mode": "fp322fp16", "mode_param": None}}
            kernel.fixpipe(target, product, n1, 2 * m, 0, 0, extend_params=quantise)
        else:
            held = kernel.Tensor("float16", (n1, rows, 16), tik.scope_ubuf, "held")
            kernel.tensor_mov(held, product, "m", 1, n1 * rows // 16, 0, 0)
            kernel.data_move(target, held, 0, n1, m, rows - m, 0)
        kernel.BuildCCE("product", [], [target])
        cycles.append(tikemu.run(kernel, {}, numerics=False).cycles)
    assert cycles[0] == cycles[1]


def test_without_timing_there_are_outputs_only(kernel):
    result = tikemu.run(vector_kernel(kernel), INPUT, timing=False)
    assert result.cycles is None and result.seconds is None and not result.instructions
    assert result.outputs["target"].shape == (1024,)
    assert "peak bytes" in result.report()
    with pytest.raises(ValueError, match="timing=True"):
        result.save_trace("unused.json")


def moves(instance, run_time):
    """Record two loads into disjoint halves of one tensor, and an addition on the first."""
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
def test_accumulating_matrix_products(kernel, m, n, chained):
    """Below ten fractals of the result, a product waits for the product that it accumulates onto (timing.md 3.1)."""
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
def test_addresses_known_at_build_time_save_synchronisation(kernel, run_time, sync, waits):
    """If TIK cannot prove that two moves are disjoint, the second waits for the first (D31b)."""
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
        expected = begin + add + 15 + SYNC + store
    else:
        expected = max(begin + add + 15, loads) + SYNC + store
    assert result.cycles == math.ceil(expected)


def copy_kernel(instance, blocks, tiles, threads):
    """Move ``tiles`` tiles of 16 KiB through the Unified Buffer in each block."""
    return tiled(instance, 8192, blocks, tiles, threads)


def test_traffic_cannot_exceed_the_bandwidth_of_the_memory(kernel):
    result = tikemu.run(copy_kernel(kernel, 32, 64, 4), {}, numerics=False)
    traffic = result.gm_read_bytes + result.gm_written_bytes
    assert traffic == 2 * 32 * 64 * 16384
    assert result.cycles >= result.memory_floor == pytest.approx(traffic / 1160)
    assert result.memory_utilisation <= 1


def test_loop_iterations_cost_the_scalar_unit(kernel):
    source = kernel.Tensor("float16", (16,), tik.scope_gm, "source")
    total = kernel.Scalar("int32", init_value=0)
    with kernel.for_range(0, 10) as i:
        total.set_as(total + i - 1)
    kernel.BuildCCE("loop", [source], [])
    result = tikemu.run(kernel, {}, numerics=False)
    assert result.cycles == 1 + 10 * (ISSUE + 3)
    assert result.code_bytes == (1 + 3 + 3) * 8  # the first value, the loop, two operations and a copy


def test_code_size_counts_loops_once_and_copies_separately(kernel):
    size = [
        tikemu.run(copy_kernel(tik.Tik(), 1, tiles, copies), {}, numerics=False).code_bytes
        for tiles, copies in ((4, 1), (16, 1), (16, 2))
    ]
    assert size[0] == size[1] == 2 * 32 + 2 * 24
    assert size[2] == 2 * 2 * 32 + 2 * 24


def test_trace_has_a_row_per_core_and_pipe(kernel, tmp_path):
    result = tikemu.run(copy_kernel(kernel, 3, 2, 1), {}, numerics=False)
    result.save_trace(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    rows = [event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"]
    assert rows == 2 * ["PIPE_S", "PIPE_V", "PIPE_M", "PIPE_MTE1", "PIPE_MTE2", "PIPE_MTE3"]
    assert {event["cat"] for event in events} == {"MTE2", "MTE3", "S", "wait"}
    events = [event for event in events if event["cat"].startswith("MTE")]
    assert len(events) == 2 * 4
    last = max(event["ts"] + event["dur"] for event in events)
    assert math.ceil((last + 0.2) * 1000) == result.core_cycles[0]  # plus the completion of the last write
    assert "data_move" in events[0]["args"]["line"]
    (read, written), *_ = [(event["args"]["reads"], event["args"]["writes"]) for event in events]
    assert read and written and read != written


def test_trace_keeps_a_limited_number_of_events(kernel, tmp_path):
    result = tikemu.run(copy_kernel(kernel, 1, 50, 1), {}, numerics=False, options=Options(max_trace_events=10))
    result.save_trace(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert len([event for event in trace["traceEvents"] if event["ph"] == "X"]) == 10
    assert trace["otherData"]["truncated"] is True


def test_report_names_the_constants_and_their_confidence(kernel):
    report = tikemu.run(vector_kernel(kernel), INPUT).report()
    for expected in (
        "vec_exp",
        "PIPE_V",
        "measured on a first-generation 910: hbm_bandwidth 1.16e+12 (1.148e+12 to 1.229e+12)",
        "vector_head 0 (0 to 15)",
        "excluded",
        "vector_transcendental_f16 4",
        "events in flight (4 exist per pair): MTE2->V 1",
    ):
        assert expected in report


def test_constants_of_a_run_replace_those_of_the_chip(kernel):
    vector_kernel(kernel)
    usual, slow = (tikemu.run(kernel, INPUT, options=Options(constants=c)) for c in ({}, {"vector_latency": 1015}))
    assert slow.cycles >= usual.cycles + 1000
    assert "vector_latency 1015" in slow.report() and "vector_latency 15" in usual.report()
    assert tikemu.run(kernel, INPUT).cycles == usual.cycles


def test_unknown_constants_are_refused():
    with pytest.raises(TypeError, match="'mmad_speed' is no constant of the timing model"):
        Options(constants={"mmad_speed": 1.0})
