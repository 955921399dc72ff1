"""Chip profiles, constants of the timing model, bank conflicts."""

import pytest
from tikemu import soc
from tikemu.isa.bank_conflicts import Stream, conflict_cycles
from tikemu.soc import CONFIDENCES, Constant, TimingModel


@pytest.mark.parametrize(
    "name, cores, clock, tflops",
    [
        ("Ascend910A", 32, 1000, 262.1),
        ("Ascend910B", 30, 900, 221.2),
        ("Ascend910ProA", 32, 1100, 288.4),
        ("Ascend910ProB", 30, 1150, 282.6),
        ("Ascend910PremiumA", 32, 1220, 319.8),
    ],
)
def test_profile_matches_the_platform_file(name, cores, clock, tflops):
    profile = soc.find(name)
    assert (profile.core_count, profile.clock_mhz) == (cores, clock)
    assert profile.peak_f16_flops / 1e12 == pytest.approx(tflops, abs=0.06)
    capacities = [profile.capacity(memory) for memory in ("UB", "L1", "L0A", "L0B", "L0C")]
    assert capacities == [262144, 1048576, 65536, 65536, 262144]


def test_plain_910_is_the_910a_and_later_chips_are_unknown():
    assert soc.find("Ascend910") is soc.ASCEND_910A
    assert soc.find("Ascend910B1") is None
    assert soc.find("Ascend310") is None


def test_fewer_cores_share_the_same_memory():
    part = soc.ASCEND_910A.with_cores(8)
    assert part.core_count == 8
    assert soc.ASCEND_910A.core_count == 32
    assert soc.ASCEND_910A.gm_share(32) == pytest.approx(36.25)
    assert soc.ASCEND_910PROB.gm_share(30) == pytest.approx(33.6, abs=0.05)


def test_every_constant_tells_unit_source_and_confidence():
    names = TimingModel.names()
    assert len(names) > 50
    for name in names:
        constant = soc.ASCEND_910A.timing.constant(name)
        assert isinstance(constant, Constant)
        assert constant.unit and constant.source and constant.confidence in CONFIDENCES, name
        if constant.low is not None and constant.high is not None:
            assert constant.low <= constant.value <= constant.high and constant.low < constant.high, name
        assert getattr(soc.ASCEND_910A.timing, name) == constant.value


#: Decision D32a.
CONSTANTS = {
    **{"mmad_latency": 20, "load2d_latency": 28, "load3d_latency": 50, "vector_latency": 15, "vector_head": 0},
    **{"vector_two_sources": 1, "mask_every": 0, "mask_drain": 0, "l0c_to_ub_latency": 20, "ub_l1_latency": 20},
    **{"gm_read_latency": 350, "l2_read_latency": 150, "gm_write_latency": 200, "l1_l0a_bandwidth": 512},
    **{"l1_l0b_bandwidth": 256, "l0c_ub_bandwidth": 256, "ub_l1_bandwidth": 128, "l1_ub_bandwidth": 128},
    **{"ub_ub_bandwidth": 256, "issue_cycles": 4, "mask_write_cycles": 1, "flag_cycles": 1, "flag_handshake": 10},
    **{"ub_scalar_read": 4, "ub_scalar_latency": 12, "gm_scalar_read": 350, "gm_line": 128, "gm_read_bandwidth": 78},
    **{"l2_read_bandwidth": 110, "hbm_bandwidth": 1.16e12, "event_ids": 4, "queue_depth": 32},
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_of_decision_d32a(name):
    assert getattr(soc.ASCEND_910A.timing, name) == CONSTANTS[name]


@pytest.mark.parametrize(
    "kind, dtype, cycles",
    [
        ("simple", "float16", 1),
        ("simple", "float32", 1),
        ("mla", "float32", 2),
        ("axpy", "float16", 1),
        ("transcendental", "float16", 4),
        ("transcendental", "float32", 2),
        ("div", "float16", 4),
        ("div", "float32", 4),
        ("conv", "float16", 1),
        ("cmp", "float32", 1),
        ("sel", "float16", 2),
        ("dup", "int32", 1),
        ("whole_reduce", "float16", 7),
        ("group_reduce", "float16", 1),
        ("pair_reduce", "float16", 1),
        ("transpose_b16", "float16", 4),
        ("transpose_b8", "int8", 8),
    ],
)
def test_cycles_per_repeat(kind, dtype, cycles):
    assert soc.ASCEND_910A.timing.vector_cycles(kind, dtype) == cycles


def test_unknown_kind_of_vector_instruction():
    with pytest.raises(KeyError, match="'gather'"):
        soc.ASCEND_910A.timing.vector_cycles("gather", "float16")


def test_constants_can_be_recalibrated():
    timing = TimingModel(mmad_latency=33, vector_div_f32=8)
    assert timing.mmad_latency == 33
    assert timing.vector_cycles("div", "float32") == 8
    assert timing.constant("mmad_latency").source.startswith("override")
    assert TimingModel().mmad_latency == 20
    with pytest.raises(TypeError, match="no constant"):
        TimingModel(mmad_latencies=3)


# ------------------------------------------------------------------------------------------------ banks (D32b)
@pytest.mark.parametrize(
    "dst, sources, cycles",
    [
        (Stream(0), (), 10),
        (Stream(0, block_stride=16), (), 80),  # eight blocks in one group
        (Stream(0, block_stride=8), (), 40),  # in two groups
        (Stream(65536 * 2), (Stream(0), Stream(65536 + 256)), 10),  # sources half a row of groups apart
        (Stream(65536 * 2), (Stream(0), Stream(65536)), 20),  # sources equal modulo 512 bytes
        (Stream(65536 * 2), (Stream(0), Stream(4096)), 20),
        (Stream(0), (Stream(0),), 20),  # in place: read and write of one bank
        (Stream(1024), (Stream(0),), 20),  # same bank, another row
        (Stream(65536), (Stream(0),), 10),  # same group, another layer
        (Stream(32), (Stream(0),), 10),  # shifted by a block
        (Stream(65536), (Stream(0, block_stride=0),), 10),  # one row broadcast
        (Stream(65536), (Stream(0, block_stride=16),), 80),
    ],
)
def test_bank_conflicts_of_ten_repeats(dst, sources, cycles):
    assert conflict_cycles(1, 10, dst, sources) == cycles


def test_slow_instructions_hide_conflicts():
    assert conflict_cycles(4, 10, Stream(0), (Stream(0),)) == 40
    assert conflict_cycles(4, 10, Stream(0), (Stream(0, block_stride=16),)) == 90  # 8 reads and a write of one bank
    assert conflict_cycles(1, 0, Stream(0)) == 0
