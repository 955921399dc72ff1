"""Shard strategies: what they tell MindSpore, what they refuse, and that shards are the whole bit by bit."""

import mindspore as ms
import numpy as np
import pytest
from flash_attention.backends import registry
from flash_attention.call import LAYOUTS, AttentionRules, Call
from flash_attention.sharding.shard import ROWS, TENSOR
from flash_attention.sharding.strategy import ShardPlan, axes_of
from mindspore import Tensor

from tests.train.flash_attention.support.shards import take
from tests.train.flash_attention.support.versions import require

Q = (4, 2, 1, 1)


def test_tuples_and_attributes():
    plan = ShardPlan(4, 2, 8)
    query, mask = TENSOR, axes_of((8, 16, 16))
    assert plan.strategy(query) == (4, 2, 1, 1)
    assert plan.strategy(mask) == (4, 1, 1)
    assert plan.strategy(axes_of((1, 16, 16))) == (1, 1, 1)
    assert plan.strategy(axes_of((16, 16))) == (1, 1)
    assert plan.strategy(axes_of((1, 4, 1, 16))) == (1, 2, 1, 1)
    attributes = plan.primitive_attributes([query, query, query, mask], [query, ROWS])
    assert attributes == {
        "self_define_shard": True,
        "dev_matrix_shape": [4, 2],
        "inputs_tensor_map": [[1, 0, -1, -1]] * 3 + [[1, -1, -1]],
        "outputs_tensor_map": [[1, 0, -1, -1], [1, 0, -1]],
        "as_loss_divisor": 1,
        "empty_mirror_ops": 0,
    }


@pytest.mark.parametrize(
    ("layout", "strategy"),
    [("BNSD", (2, 4, 1, 1)), ("BSND", (2, 1, 4, 1)), ("BSH", (2, 1, 4)), ("SBH", (1, 2, 4))],
)
def test_layouts_of_tensors(layout, strategy):
    plan = ShardPlan(2, 4, 8, layout)
    axes = LAYOUTS[layout].sharding
    assert plan.strategy(axes) == strategy
    require("Layout")
    assert ShardPlan.from_strategies((strategy,) * 3, (strategy,), layout) == plan
    described = plan.layout(axes).to_dict()
    assert described["device_matrix"] == (2, 4)
    assert described["tensor_map"] == tuple({"dp": 1, "mp": 0, None: -1}[axis] for axis in axes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((((4, 1, 2, 1),) * 3, None), r"splits seq into 2; allowed is 1 \(context parallelism.*RingAttention"),
        ((((4, 1, 1, 2),) * 3, None), r"splits head_dim into 2"),
        (((Q, (4, 1, 1, 1), Q), None), r"in_strategy\[1\] \(key\).*split alike"),
        (((Q, Q), None), "3 to 5 tuples"),
        (((Q, Q, Q, (2, 1, 1)), None), r"attention_mask.*allowed is \(4, 1, 1\) or \(1, 1, 1\)"),
        (((Q, Q, Q, (1, 1), (4, 4, 1, 1)), None), "alibi_mask.*allowed is"),
        (((Q, Q, Q, (4,), ()), None), r"attention_mask.*allowed is \(\) or rank 2, 3 or 4"),
        (((Q, Q, ()), None), r"in_strategy\[2\] \(value\): got \(\)"),
        (((Q, Q, Q), ((8, 1, 1, 1),)), r"out_strategy\[0\]: got \(8, 1, 1, 1\)"),
        ((((4, 2, 1),) * 3, None), "one number per axis"),
        ((((0, 2, 1, 1),) * 3, None), "got 0"),
    ],
)
def test_wrong_strategies_say_so(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        ShardPlan.from_strategies(*arguments)


def test_devices_must_be_as_many_as_parts():
    with pytest.raises(ValueError, match=r"4 \* 2 = 8 for 4 devices"):
        ShardPlan(4, 2, 4)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (ShardPlan(4, 1, 4), "dp: got 4 for batch 2"),
        (ShardPlan(1, 3, 3), "mp: got 3 for 8 heads"),
        (ShardPlan(1, 8, 8), "mp: got 8 for 4 key/value heads"),
    ],
)
def test_shards_must_divide(plan, message):
    with pytest.raises(ValueError, match=message):
        plan.local(Call(batch=2, heads=8, kv_heads=4, seq_q=8, seq_k=8, head_dim=8), 0)


@pytest.mark.parametrize("mask_shape", [None, (1, 1, 40, 40), (4, 1, 40, 40)], ids=("none", "shared", "batch"))
@pytest.mark.parametrize("bias", ["none", "alibi", "per_key"])
def test_shards_are_bit_equal_to_the_whole(mask_shape, bias):
    ms.set_context(mode=ms.PYNATIVE_MODE)
    bias_shape = (1, 8, 1, 40) if bias == "per_key" else None
    sizes = {"batch": 4, "heads": 8, "kv_heads": 4, "seq_q": 40, "seq_k": 40, "head_dim": 16, "dtype": "float32"}
    given = {"mask_shape": mask_shape, "mask_dtype": mask_shape and "bool"}
    given.update(bias_shape=bias_shape, bias_dtype=bias_shape and "float32")
    rules = AttentionRules(alibi=bias == "alibi", dropout_rate=0.3)
    whole = Call(**sizes, **given, training=True, rules=rules)
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(s).astype(np.float32) for s in (whole.shape_query(), *[whole.shape_key()] * 2)]
    mask = None if mask_shape is None else random.random(mask_shape) < 0.3
    added = None if bias_shape is None else random.standard_normal(bias_shape).astype(np.float32)
    seed = Tensor([3, 5], ms.int64)
    plan = ShardPlan(2, 2, 4)

    def run(problem, *tensors):
        tensors = [Tensor(np.ascontiguousarray(array)) for array in tensors if array is not None]
        results = registry.build(problem, "cpu")(*tensors[:3], (*tensors[3:], seed))
        return [result.asnumpy() for result in results]

    output, logsumexp = run(whole, *arrays, mask, added)
    for rank in range(4):
        parts = [take(plan, array, TENSOR, rank) for array in arrays]
        for array in (mask, added):
            parts.append(None if array is None else take(plan, array, axes_of(array.shape), rank))
        found = run(plan.local(whole, rank), *parts)
        np.testing.assert_array_equal(found[0], take(plan, output, TENSOR, rank))
        np.testing.assert_array_equal(found[1], take(plan, logsumexp, ROWS, rank))
