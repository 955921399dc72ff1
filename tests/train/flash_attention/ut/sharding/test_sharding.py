"""Shard strategies: what they tell MindSpore, what they refuse, and that shards are the whole bit by bit."""

import itertools

import mindspore as ms
import numpy as np
import pytest
from flash_attention import BlockMask, FlashAttention
from flash_attention.backends import registry
from flash_attention.backends.tik import explicit_mask
from flash_attention.call import LAYOUTS, AttentionRules, Call
from flash_attention.kernels.tik import describe, signatures
from flash_attention.kernels.tik.operators import check_tensors
from flash_attention.sharding.shard import ROWS, TENSOR, Shard, Sharding, ShardRequest, sharding
from flash_attention.sharding.strategy import DeviceGrid, axes_of
from mindspore import Tensor, ops

from tests.train.flash_attention.support.calls import make_call, make_kernel_problem
from tests.train.flash_attention.support.versions import require

Q = (4, 2, 1, 1)
ALIVE = BlockMask(np.ones((8, 1, 1, 1), np.uint8), 64)


def take(grid, array, axes: tuple, rank: int):
    """Return device `rank`'s part of a NumPy array. For the axes see `DeviceGrid.strategy`."""
    index = []
    for size, axis in zip(array.shape, axes):
        parts, place = {"dp": (grid.dp, rank // grid.mp), "mp": (grid.mp, rank % grid.mp), None: (1, 0)}[axis]
        index.append(slice(place * size // parts, (place + 1) * size // parts))
    return array[tuple(index)]


def test_tuples_and_attributes():
    grid = DeviceGrid(4, 2, 8)
    query, mask = TENSOR, axes_of((8, 16, 16))
    assert grid.strategy(query) == (4, 2, 1, 1)
    assert grid.strategy(mask) == (4, 1, 1)
    assert grid.strategy(axes_of((1, 16, 16))) == (1, 1, 1)
    assert grid.strategy(axes_of((16, 16))) == (1, 1)
    assert grid.strategy(axes_of((1, 4, 1, 16))) == (1, 2, 1, 1)
    attributes = grid.primitive_attributes([query, query, query, mask], [query, ROWS])
    assert attributes == {
        "self_define_shard": True,
        "dev_matrix_shape": [4, 2],
        "inputs_tensor_map": [[1, 0, -1, -1]] * 3 + [[1, -1, -1]],
        "outputs_tensor_map": [[1, 0, -1, -1], [1, 0, -1]],
        "as_loss_divisor": 1,
        "empty_mirror_ops": 0,
    }


@pytest.mark.parametrize(
    ("layout", "strategy"), [("BNSD", (2, 4, 1, 1)), ("BSND", (2, 1, 4, 1)), ("BSH", (2, 1, 4)), ("SBH", (1, 2, 4))]
)
def test_layouts_of_tensors(layout, strategy):
    grid = DeviceGrid(2, 4, 8, layout)
    axes = LAYOUTS[layout].sharding
    assert grid.strategy(axes) == strategy
    require("Layout")
    assert DeviceGrid.from_strategies((strategy,) * 3, (strategy,), layout) == grid
    described = grid.layout(axes).to_dict()
    assert described["device_matrix"] == (2, 4)
    assert described["tensor_map"] == tuple({"dp": 1, "mp": 0, None: -1}[axis] for axis in axes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((((4, 1, 2, 1),) * 3, None), r"splits seq into 2; allowed is 1 \(context parallelism.*GatherAttention"),
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
        DeviceGrid.from_strategies(*arguments)


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        (DeviceGrid(4, 1, 4), "dp: got 4 for batch 2"),
        (DeviceGrid(1, 3, 3), "mp: got 3 for 8 heads"),
        (DeviceGrid(1, 8, 8), "mp: got 8 for 4 key/value heads"),
    ],
)
def test_shards_must_divide(grid, message):
    with pytest.raises(ValueError, match=message):
        grid.local(Call(batch=2, heads=8, kv_heads=4, seq_q=8, seq_k=8, head_dim=8), 0)


def results(call, backend, query, key, value, d_output, mask, bias):
    """Return the output, logsumexp and gradients of query, key, value and bias, as arrays."""
    cell, seed = registry.choose(call, backend).build(call), Tensor([3, 5], ms.int64)
    mask = None if mask is None else Tensor(np.ascontiguousarray(mask))

    def forward(query, key, value, bias=None):
        return cell(query, key, value, tuple(one for one in (mask, bias, seed) if one is not None))

    given = [Tensor(np.ascontiguousarray(one)) for one in (query, key, value, bias) if one is not None]
    output, logsumexp = forward(*given)
    upstream = Tensor(np.ascontiguousarray(d_output)), logsumexp * 0 + 1
    gradients = ops.GradOperation(get_all=True, sens_param=True)(forward)(*given, upstream)
    return [one.asnumpy() for one in (output, logsumexp, *gradients)]


BIASES = "none", "alibi", "per_key", "per_key of all"


@pytest.mark.parametrize(
    ("backend", "mask", "bias"),
    [
        *itertools.product(["cpu"], ("none", "shared", "batch"), BIASES),
        *(pytest.param("emulator", "none", bias, marks=pytest.mark.system) for bias in BIASES[1::2]),
    ],
)
def test_shards_are_bit_equal_to_the_whole(mask, bias, backend):
    """A shard that is told its position has the dropout and the slopes of the whole."""
    dtype = "float16" if backend == "emulator" else "float32"
    sizes = {"batch": 4, "heads": 8, "kv_heads": 4, "seq_q": 40, "seq_k": 40, "head_dim": 16, "dtype": dtype}
    shapes = {
        "shared": (1, 1, 40, 40),
        "batch": (4, 1, 40, 40),
        "per_key": (1, 8, 1, 40),
        "per_key of all": (4, 8, 1, 40),
    }
    given = {"mask_shape": shapes.get(mask), "mask_dtype": shapes.get(mask) and "bool"}
    given.update(bias_shape=shapes.get(bias), bias_dtype=shapes.get(bias) and dtype)
    rules = AttentionRules(causal=True, alibi=bias == "alibi", dropout_rate=0.3)
    whole = Call(**sizes, **given, training=True, return_lse=True, rules=rules)
    random = np.random.default_rng(0)
    of_tensors = whole.shape_query(), whole.shape_key(), whole.shape_key(), whole.shape_query()
    arrays = [random.standard_normal(shape).astype(dtype) for shape in of_tensors]
    arrays.append(None if mask == "none" else random.random(shapes[mask]) < 0.3)
    arrays.append(random.standard_normal(shapes[bias]).astype(dtype) if bias in shapes else None)
    grid, expected = DeviceGrid(2, 2, 4), results(whole, backend, *arrays)
    axes = [
        TENSOR,
        ROWS,
        *[TENSOR] * 3,
        *[axes_of((4, 8, 1, 40))] * (bias == "per_key of all"),
    ]  # else batches share it
    for rank in range(4):
        parts = [None if one is None else take(grid, one, axes_of(one.shape), rank) for one in arrays]
        for one, right, own in zip(results(grid.local(whole, rank), backend, *parts), expected, axes):
            np.testing.assert_array_equal(one, take(grid, right, own, rank))


SIZES = {"batch": 8, "heads": 4, "kv_heads": 2, "seq_q": 24, "seq_k": 24, "head_dim": 16, "dtype": "float32"}
MASKED = {"mask_shape": (8, 1, 24, 24), "mask_dtype": "bool"}


def of_device(request, mask=None, rank=3, **rules):
    """Return the share that one of eight devices computes."""
    return Sharding(request, 8, rank).shard(make_call(**{**SIZES, **rules}), mask)


@pytest.fixture
def semi_auto():
    """Set semi-automatic parallel mode on eight devices. MindSpore 2.0 has it in graphs alone."""
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=8, global_rank=3)
    yield
    ms.reset_auto_parallel_context()
    ms.set_context(mode=ms.PYNATIVE_MODE)


def test_only_automatic_parallelism_shards(semi_auto):
    assert sharding((4, 2)) == Sharding(ShardRequest(4, 2), 8, 3)
    assert sharding(None) is None
    ms.set_auto_parallel_context(parallel_mode="data_parallel")
    assert sharding((4, 2)) is None
    ms.reset_auto_parallel_context()
    assert sharding((4, 2)) is None


def test_pipeline_stages_share_the_devices(semi_auto):
    ms.set_auto_parallel_context(pipeline_stages=2, global_rank=7)
    assert sharding((2, 2)) == Sharding(ShardRequest(2, 2), 4, 3)


@pytest.mark.parametrize("sharded", [{"dp": 3, "mp": 5}, {"dp": 2, "have_attention_mask_batch": False}])
@pytest.mark.parametrize("number", [ms.GRAPH_MODE, ms.PYNATIVE_MODE], ids=("graph", "pynative"))
def test_one_device_takes_no_notice(sharded, number):
    ms.set_context(mode=number)
    query = Tensor(np.random.default_rng(0).standard_normal((1, 2, 20, 16)).astype(np.float32))
    outputs = [FlashAttention(16, causal=True, **rules)(query, query, query).asnumpy() for rules in ({}, sharded)]
    np.testing.assert_array_equal(*outputs)


def test_shard_sets_dp_and_mp_and_returns_the_layer():
    layer = FlashAttention(16, input_layout="BSH")
    assert layer.shard(((4, 1, 2),) * 3 + ((4, 1, 1), (1, 2, 1, 1)), ((4, 1, 2),)) is layer
    assert (layer.dp, layer.mp) == (4, 2)
    assert layer.shards.construct() == ShardRequest(4, 2, True, (4, 1, 1), (1, 2, 1, 1))
    assert FlashAttention(16, dp=2, mp=4, have_attention_mask_batch=False).shards.construct() == ShardRequest(
        2, 4, False
    )


def test_an_empty_strategy_leaves_an_input_to_dp_and_mp():
    layer = FlashAttention(16).shard((Q, Q, Q, (4, 1, 1), ()))
    assert layer.shards.construct() == ShardRequest(4, 2, True, (4, 1, 1), ())
    layer.shard((Q, Q, Q, (), (1, 2, 1, 1)))
    request = layer.shards.construct()
    assert of_device(request, (8, 24, 24), **MASKED).mask_axes == ("dp", None, None, None)


def test_strategies_that_cannot_be_had_are_refused_at_once():
    for strategies, message in (((Q, Q), "3 to 5 tuples: query, key, value"), ("dp", "in_strategy: got 'dp'")):
        with pytest.raises((TypeError, ValueError), match=message):
            FlashAttention(16).shard(strategies)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"request": ShardRequest(2, 2)}, r"dp, mp: got 2 \* 2 = 4 for 8 devices"),
        ({"request": ShardRequest(4, 2, False), "mask": (8, 24, 24), **MASKED}, "have_attention_mask_batch=False"),
        (
            {"request": ShardRequest(4, 2, True, (1, 1, 1)), "mask": (8, 24, 24), **MASKED},
            r"in_strategy\[3\] \(attention_mask\): got \(1, 1, 1\) for .* \(8, 24, 24\), allowed is \(4, 1, 1\)",
        ),
        (
            {"request": ShardRequest(4, 2, alibi=(4, 2, 1, 1)), "bias_shape": (1, 4, 1, 24), "bias_dtype": "float32"},
            r"in_strategy\[4\] \(alibi_mask\): got \(4, 2, 1, 1\) .*, allowed is \(1, 2, 1, 1\)",
        ),
    ],
)
def test_what_does_not_fit_the_call_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        of_device(**call)


def test_dynamic_shapes_are_refused():
    with pytest.raises(ValueError, match="shapes that are known"):
        DeviceGrid(4, 2, 8).local(make_call(**{**SIZES, "batch": -1}), 0)


@pytest.mark.parametrize("compact", [False, True])
def test_masks_without_batch_are_not_split(compact):
    rules = {} if compact else {"mask_shape": (1, 1, 24, 24), "mask_dtype": "bool"}
    shard = of_device(ShardRequest(4, 2, False), (1, 24, 24), **rules)
    assert shard.mask_axes == (None if compact else (None,) * 4)


@pytest.mark.parametrize("layouts", [True, False], ids=("layouts", "tuples"))
def test_strategies_on_the_primitives_of_the_layer(layouts, monkeypatch):
    if layouts and not hasattr(ms, "Layout"):
        pytest.skip("this MindSpore takes tuple strategies only")
    if not layouts:
        monkeypatch.setattr("flash_attention.sharding.shard.LAYOUTS", False)
    # Another shape for either form, as cells are kept by call.
    tiles = {"block_mask_shape": (1, SIZES["heads"], 1, 1), "block_mask_tile": 64}
    whole = make_call(**{**SIZES, **MASKED, **tiles, "head_dim": 16 if layouts else 8})
    shard = Sharding(ShardRequest(4, 2), 8, 3).shard(whole, (8, 24, 24))
    cell = registry.get_backend("cpu").build(shard.grid.local(whole, 3), shard)
    attributes = cell.forward.primitive.attrs
    assert attributes["self_define_shard"]
    if layouts:
        maps = [layout["tensor_map"] for layout in attributes["in_layout"]]
        assert maps == [(1, 0, -1, -1)] * 3 + [(1, -1, -1, -1)] + [(-1,)] * 7 + [(-1, 0, -1, -1)] + [(-1,)] * 2
        assert [layout["tensor_map"] for layout in attributes["out_layout"]] == [(1, 0, -1, -1), (1, 0, -1)]
        assert attributes["in_layout"][0]["device_matrix"] == (4, 2)
    else:
        assert attributes["in_strategy"] == (Q, Q, Q, (4, 1, 1, 1)) + ((1,),) * 7 + ((1, 2, 1, 1),) + ((1,),) * 2
        assert attributes["dev_matrix_shape"] == [4, 2]
        assert (
            attributes["inputs_tensor_map"]
            == [[1, 0, -1, -1]] * 3 + [[1, -1, -1, -1]] + [[-1]] * 7 + [[-1, 0, -1, -1]] + [[-1]] * 2
        )
        assert attributes["outputs_tensor_map"] == [[1, 0, -1, -1], [1, 0, -1]]
        assert (attributes["as_loss_divisor"], attributes["empty_mirror_ops"]) == (1, 0)


def test_shapes_of_the_whole_and_of_a_share():
    shard = Shard(DeviceGrid(4, 2, 8), 0)
    infer = shard.infer_shapes((2, 2, 24, 16), [((2, 2, 24, 16), TENSOR), ((2, 2, 24), ROWS)])
    assert infer([2, 2, 24, 16], None) == ([2, 2, 24, 16], [2, 2, 24])
    assert infer([8, 4, 24, 16], None) == ([8, 4, 24, 16], [8, 4, 24])


def test_backends_without_strategies_say_so():
    assert "no shard strategies" in registry.refusal("math", make_call(**SIZES), sharded=True)
    assert registry.refusal("cpu", make_call(**SIZES), sharded=True) is None


@pytest.mark.parametrize("shape", [(8, 4, 1, 1), (8, 1, 1, 1), (1, 4, 1, 1), (1, 1, 1, 1)])
def test_operators_list_the_tiles_of_their_share(shape):
    """The lists of tiles are made for the part of the mask that a device computes."""
    tiles = np.arange(np.prod(shape)).reshape(shape)
    for rank in range(8):
        shard = of_device(ShardRequest(4, 2), rank=rank, block_mask_shape=shape, block_mask_tile=64)
        np.testing.assert_array_equal(
            shard.part(tiles, shard.block_axes), take(shard.grid, tiles, shard.block_axes, rank)
        )


@pytest.mark.parametrize(
    "fields",
    [
        {"block_mask_shape": (8, 4, 1, 1)},
        {"block_mask_shape": (1, 1, 1, 1)},
        {"block_mask_shape": (8, 1, 1, 1), "block_mask_key": ALIVE.key},
        {"block_mask_shape": (1, 4, 1, 1), "segments": True},
        {"segments": True},
        {"segments": True, "prefix": True, "causal": True},
    ],
)
def test_operators_list_tiles(fields):
    tile = {"block_mask_tile": 64} if "block_mask_shape" in fields else {}
    call = make_call(**{**SIZES, "dtype": "float16", **tile, **fields})
    shard = Sharding(ShardRequest(4, 2), 8, 3).shard(call, None)
    local = shard.grid.local(call, 3)
    assert explicit_mask.with_mask(shard, local).mask_axes is None
    problem = describe.kernel_problem(local)
    assert problem.mask == "none" and problem.listed


def test_operators_take_masks_with_their_own_axes():
    request = make_kernel_problem(2, 2, 16, 16, 16, mask_shape=(2, 1, 16, 16))
    _, signature = signatures.arguments("forward", request)
    tensors = {t.name: {"shape": t.shape, "dtype": t.dtype} for t in (*signature.inputs, *signature.outputs)}
    planes, *rest = tensors["mask"]["shape"]
    tensors["mask"]["shape"] = (planes, 1, *rest)
    check_tensors(signature, tensors)
    tensors["mask"]["shape"] = (planes, 2, *rest)
    with pytest.raises(ValueError, match="mask: got shape"):
        check_tensors(signature, tensors)


def test_one_strategy_for_every_input_of_glue():
    primitive = Shard(DeviceGrid(4, 2, 8), 0).glue(ops.NotEqual(), ("dp", None, None), ())
    assert primitive.in_strategy == ((4, 1, 1), ())
