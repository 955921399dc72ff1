"""Descriptions of kernels: bad ones are refused by name when they are made."""

from dataclasses import replace

import pytest
from flash_attention.call import AttentionRules, Call, Varlen
from flash_attention.kernels.tik import describe
from flash_attention.kernels.tik.forward.schedule import split
from flash_attention.kernels.tik.forward.tiling import buffers, candidates
from flash_attention.kernels.tik.hardware import usage
from flash_attention.kernels.tik.problem import CAPACITY

from tests.train.flash_attention.support.calls import make_kernel_problem
from tests.train.flash_attention.ut.tik.support import stored_arrays
from tests.train.flash_attention.ut.tik.support.programs import build_forward

GOOD = {"batch": 1, "heads": 4, "seq_q": 64, "seq_k": 64, "head_dim": 64}
PACKED = {"layout": "BSH", "storage": Varlen(count=3)}


@pytest.mark.parametrize(
    ("change", "name"),
    (
        ({"head_dim": 257}, "head_dim"),
        ({"value_dim": 257}, "value_dim"),
        ({"seq_q": 0}, "seq_q"),
        ({"dtype": "bfloat16"}, "dtype"),
        ({"alibi": True, "slopes": (0.5,)}, "slopes"),
        ({"slopes": (0.5, 0.5, 0.5, 0.5)}, "slopes"),
        ({"alibi": True, "slopes": (0.5,) * 4, "seq_k": 262145}, "alibi: got 262145 tokens"),
        ({"alibi": True, "slopes": (-2.0,) * 4, "seq_q": 200000}, "slopes: got 2.0"),
        ({"cores": 0}, "cores"),
        ({"softcap": 1e5}, "softcap: got 100000.0"),
        ({"scale": -1e-10}, "scale: got -1e-10"),
        ({**PACKED, "mask_shape": (1, 1, 64, 64)}, "mask_shape: got .* with packed sequences, allowed is None"),
        (
            {**PACKED, "prev_blocks": 1},
            "prev_blocks, next_blocks: got a window in blocks with pack",
        ),
        ({"prefix": True, "causal": True}, "prefix: got True without packed sequences"),
        ({**PACKED, "dropout_rate": 0.1}, "keep_blocks: got 0"),
    ),
)
def test_bad_description_names_the_field(change, name):
    with pytest.raises((TypeError, ValueError), match=f"^{name}"):
        make_kernel_problem(**{**GOOD, **change})


def test_unknown_strategy_and_one_that_does_not_fit(tik):
    with pytest.raises(ValueError, match="tiling.*allowed are auto"):
        build_forward(make_kernel_problem(**GOOD, tiling="huge"), tik)
    with pytest.raises(ValueError, match="tiling.*pair128 needs .*L0A .* of 65536 bytes"):
        build_forward(make_kernel_problem(1, 1, 512, 512, 256, tiling="pair128"), tik)


def test_inputs_of_a_kernel_are_checked(tik):
    import numpy as np

    problem = make_kernel_problem(1, 1, 20, 20, 16, cores=1)
    kernel = build_forward(problem, tik)
    array = np.zeros((1, 1, 20, 16), np.float16)
    good = stored_arrays.forward_inputs(problem, array, array, array)
    assert kernel.given == ["query", "key", "value"]
    with pytest.raises(ValueError, match="^query: got shape .*FRACTAL_NZ"):
        kernel.feed(**{**good, "query": array})
    with pytest.raises(TypeError, match="^key: got dtype float32"):
        kernel.feed(**{**good, "key": good["key"].astype(np.float32)})
    with pytest.raises(ValueError, match="^value: missing"):
        kernel.feed(query=good["query"], key=good["key"])
    with pytest.raises(ValueError, match="^mask: not an input"):
        kernel.feed(**good, mask=array)


def test_scale_is_taken_apart_into_a_power_of_two_and_a_rest():
    for scale in (1 / 8, 128**-0.5, 0.3, -0.25, 1e-3, 7.0):
        problem = make_kernel_problem(**GOOD, scale=scale)
        assert problem.query_factor * problem.post_scale == pytest.approx(scale, rel=1e-15)
        assert abs(problem.query_factor).hex().startswith("0x1.0000000000000p")
        assert abs(problem.query_factor) <= min(abs(scale), 1.0)
    assert make_kernel_problem(**GOOD).post_scale == 1.0
    assert make_kernel_problem(**GOOD, scale=0.0).query_factor == 0.0


@pytest.mark.parametrize("head_dim", (1, 16, 48, 64, 80, 128, 160, 256))
@pytest.mark.parametrize("seq", (1, 40, 200, 1000))
def test_auto_finds_a_plan_that_fits(head_dim, seq):
    for features in ({}, {"mask": "per_score", "bias": "per_score", "dropout_rate": 0.1, "causal": True}):
        problem = make_kernel_problem(1, 1, seq, seq + 1, head_dim, **features)
        fitting = 0
        for plan in candidates(problem):
            work = split(problem, plan)
            used = usage(buffers(problem, plan, work))
            fitting += all(used[memory] <= CAPACITY[memory] for memory in used)
            assert sum(plan.segments) == plan.keys and plan.rows % 16 == 0
            assert sum(columns for _, columns in plan.pieces) == plan.columns
        assert fitting


def test_describe_maps_an_attention_problem():
    given = {"mask_shape": (2, 1, 1, 70), "mask_dtype": "uint8", "bias_shape": (1, 4, 50, 70), "bias_dtype": "float16"}
    rules = AttentionRules(dropout_rate=0.25, window_left=5)
    attention = Call(2, 4, 50, 70, 32, kv_heads=2, **given, training=True, rules=rules)
    problem = describe.kernel_problem(attention, cores=3)
    assert (problem.mask, problem.mask_planes) == ("per_key", (2, 1))
    assert (problem.call.bias, problem.bias_planes) == ("per_score", (1, 4))
    assert (problem.call.dropout_threshold, problem.call.rules.window_left, problem.cores) == (16384, 5, 3)
    assert problem == describe.kernel_problem(
        replace(attention, rules=replace(attention.rules, tile=64, alibi=True)), cores=3
    )
    with pytest.raises(TypeError, match="bias"):
        describe.kernel_problem(Call(1, 1, 8, 8, 8, bias_shape=(1, 1, 1, 8), bias_dtype="float32"))
