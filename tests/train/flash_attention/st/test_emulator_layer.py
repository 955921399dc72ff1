"""Backend emulator inside MindSpore: modes, repeatability, shards, dropout, recomputation, gradients with a mask."""

import dataclasses

import mindspore as ms
import numpy as np
import pytest
from flash_attention import FlashAttention, attention_backend, reference
from flash_attention.backends import registry
from flash_attention.call import AttentionRules, Call
from flash_attention.dropout import philox
from mindspore import Tensor, nn, ops

from tests.train.flash_attention.support import cases
from tests.train.flash_attention.support.cases import Case
from tests.train.flash_attention.support.cells import Gradients
from tests.train.flash_attention.support.layer_inputs import half
from tests.train.flash_attention.support.problems import make_problem
from tests.train.flash_attention.support.run import run_case

pytestmark = pytest.mark.system

pytest.importorskip("tikemu")

DROPOUT = Case(batch=1, heads=4, kv_heads=2, seq_q=40, seq_k=45, mask="causal", dropout=0.3, alibi="computed")
TRIANGLE = np.triu(np.ones((1, 128, 128), np.float16), 1)


def assert_same(actual: dict, expected: dict) -> None:
    """Check equality bit by bit, by name."""
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(actual[name], value, err_msg=name)


@pytest.mark.asynchronous
def test_two_runs_and_both_modes_are_bit_equal():
    first = run_case(DROPOUT, "emulator").named()
    assert_same(run_case(DROPOUT, "emulator").named(), first)
    ms.set_context(mode=ms.GRAPH_MODE)
    assert_same(run_case(DROPOUT, "emulator").named(), first)


def run_problem(problem: Call, query, key, value, d_output, d_logsumexp, bias=None, mask=None) -> dict:
    """Return the output, logsumexp and gradients of a problem of the backend, by name."""
    cell = registry.build(problem, "emulator")
    mask = None if mask is None else Tensor(mask)
    seed = Tensor(np.array(cases.SEED, np.int64)) if problem.dropout_threshold else None

    def forward(query, key, value, bias=None):
        return cell(query, key, value, tuple(tensor for tensor in (mask, bias, seed) if tensor is not None))

    tensors = [Tensor(array) for array in (query, key, value, bias) if array is not None]
    output, logsumexp = forward(*tensors)
    gradients = ops.GradOperation(get_all=True, sens_param=True)(forward)(
        *tensors, (Tensor(d_output), Tensor(d_logsumexp))
    )
    names = ("output", "logsumexp", "d_query", "d_key", "d_value", "d_bias")
    return {name: result.asnumpy() for name, result in zip(names, (output, logsumexp, *gradients))}


@pytest.mark.parametrize("bias", ("alibi", "per_key"))
def test_shards_are_bit_equal_to_the_whole(bias):
    """A shard of batch and heads that is told its position has the dropout and the slopes of the whole."""
    rules = {"causal": True, "dropout_rate": 0.2, "training": True, "return_lse": True, "alibi": bias == "alibi"}
    sizes = {"batch": 2, "heads": 4, "kv_heads": 2, "seq_q": 20, "seq_k": 37, "head_dim": 24}
    added, shard_bias = None, {}
    if bias == "per_key":
        added = half(2, 4, 1, 37, seed=5).asnumpy()
        rules.update(bias_shape=added.shape, bias_dtype="float16")
        shard_bias = {"bias_shape": (1, 2, 1, 37)}
    whole = make_problem(**sizes, **rules)
    shard = dataclasses.replace(
        whole, batch=1, heads=2, kv_heads=1, batch_offset=1, head_offset=2, all_heads=4, **shard_bias
    )
    shapes = whole.shape_query(), whole.shape_key(), whole.shape_key(), whole.shape_query()
    arrays = [half(*shape, seed=seed).asnumpy() for seed, shape in enumerate(shapes)]
    arrays.append(half(*whole.shape_lse(), seed=4).asnumpy().astype(np.float32))
    parts = [array[1:, array.shape[1] // 2 :] for array in arrays]
    every = run_problem(whole, *arrays, bias=added)
    some = run_problem(shard, *parts, bias=None if added is None else added[1:, 2:])
    assert_same(some, {name: array[1:, array.shape[1] // 2 :] for name, array in every.items()})


def test_dropout_keeps_what_the_cpu_backend_keeps(mode):
    """If value holds unit vectors, the output is the probabilities: zero for a key that was dropped."""
    seq, rate = 61, 0.4
    rules = {"dropout_rate": rate, "training": True, "return_lse": True}
    problem = make_problem(batch=2, heads=2, seq_q=seq, seq_k=seq, head_dim=64, dtype="float16", **rules)
    query, key = half(2, 2, seq, 64, seed=1), half(2, 2, seq, 64, seed=2)
    value = Tensor(np.broadcast_to(np.eye(seq, 64, dtype=np.float16), (2, 2, seq, 64)).copy())
    seed = Tensor(np.array(cases.SEED, np.int64))
    kept = {}
    for name in ("emulator", "cpu"):
        output, _ = registry.build(problem, name)(query, key, value, (seed,))
        kept[name] = output.asnumpy()[..., :seq] > 0
    np.testing.assert_array_equal(kept["emulator"], kept["cpu"])
    np.testing.assert_array_equal(kept["emulator"], reference.keep_mask(problem, cases.SEED))
    assert 0.5 < kept["emulator"].mean() < 0.7


def test_a_seed_and_its_bits_given_are_the_same():
    by_seed = run_case(DROPOUT, "emulator").named()
    bits = philox.keep_bits(DROPOUT.problem, cases.SEED)
    assert_same(run_case(DROPOUT, "emulator", keep_bits=bits).named(), by_seed)


@pytest.mark.parametrize("mask", (False, True))
@pytest.mark.parametrize("rows", (1, 40))
def test_minus_infinity_in_a_bias_hides(rows, mask):
    """Whole rows can be dropped too: with the causal rule the first query sees only the first key."""
    bias = half(1, 2, rows, 50, seed=6).asnumpy()
    bias[0, 0, :, 20:30] = bias[0, 1, :, 0] = -np.inf
    rules = {"causal": True, "bias_shape": bias.shape, "bias_dtype": "float16", "return_lse": True}
    if mask:
        rules.update(mask_shape=(1, 1, 40, 50), mask_dtype="uint8")
    problem = make_problem(batch=1, heads=2, seq_q=40, seq_k=50, head_dim=32, dtype="float16", **rules)
    hidden = (np.random.default_rng(7).random((1, 1, 40, 50)) < 0.2).astype(np.uint8) if mask else None
    arrays = [half(1, 2, seq, 32, seed=seed).asnumpy() for seed, seq in enumerate((40, 50, 50, 40))]
    d_logsumexp = np.zeros((1, 2, 40), np.float32)
    actual = reference.Attention(**run_problem(problem, *arrays, d_logsumexp, bias=bias, mask=hidden))
    given = {"mask": hidden, "bias": bias, "d_output": arrays[3], "d_logsumexp": d_logsumexp}
    assert cases.check_call(problem, arrays[:3], actual, **given) == 6
    assert np.isneginf(actual.logsumexp[0, 1, 0]) and not actual.output[0, 1, 0].any()
    assert not actual.d_key[0, 0, 20:30].any() and not actual.d_bias[np.isneginf(bias)].any()


def test_gradients_with_a_mask_among_the_inputs(mode):
    query, key, value = (half(1, 2, 50, 32, seed=seed) for seed in range(3))
    d_output = half(1, 2, 50, 32, seed=3)
    layer = FlashAttention(32, backend="emulator")
    gradients = Gradients(layer)(query, key, value, Tensor(TRIANGLE), d_output)
    assert len(gradients) == 4 and not gradients[3].asnumpy().any()
    arrays = [tensor.asnumpy() for tensor in (query, key, value)]
    problem = Call(
        batch=1, heads=2, seq_q=50, seq_k=50, head_dim=32, dtype="float16", rules=AttentionRules(causal=True)
    )
    actual = reference.Attention(
        layer(query, key, value, Tensor(TRIANGLE)).asnumpy(), None, *(gradient.asnumpy() for gradient in gradients[:3])
    )
    assert cases.check_call(problem, arrays, actual, d_output=d_output.asnumpy()) == 4


class Twice(nn.Cell):
    """Two layers one after the other."""

    def __init__(self, recompute: bool):
        super().__init__()
        self.layers = nn.CellList([FlashAttention(16, 0.2, alibi=True, seed=seed, causal=True) for seed in (3, 4)])
        if recompute:
            for layer in self.layers:
                layer.recompute()

    def construct(self, query, key, value):
        for layer in self.layers:
            query = layer(query, key, value)
        return query


def test_recomputation_changes_no_bit(mode):
    arguments = [half(1, 2, 40, 16, seed=seed) for seed in range(4)]
    with attention_backend("emulator"):
        plain, again = (
            [gradient.asnumpy() for gradient in Gradients(Twice(recompute).set_train())(*arguments)]
            for recompute in (False, True)
        )
    assert len(plain) == 3
    for left, right in zip(plain, again):
        assert left.any()
        np.testing.assert_array_equal(left, right)


def test_what_the_chip_cannot_do_is_refused_by_name():
    query = Tensor(np.zeros((1, 1, 16, 16), np.float32))
    with pytest.raises(RuntimeError, match="backend 'emulator' cannot run .* float16 only, got float32"):
        FlashAttention(16, backend="emulator")(query, query, query)
