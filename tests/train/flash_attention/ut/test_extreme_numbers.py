"""Very negative biases, scales at the TIK operators' bounds, and subnormal numbers."""

import mindspore as ms
import numpy as np
import pytest
from flash_attention import KVCache, flash_attention, flash_attention_varlen
from mindspore import Tensor, ops

from tests.train.flash_attention.support.cells import Call, Gradients
from tests.train.flash_attention.support.paged import Decoder

BATCH, HEADS, SEQ, DIM = 2, 2, 150, 8
LOWEST = np.finfo(np.float32).min
NAMES = "output", "logsumexp", "query", "key", "value", "bias"
#: The sums of scores and biases are exact, or leave nothing of the scores.
BIASES = {"-1e6": -1e6, "-1e9": -1e9, "lowest": LOWEST, "above": 1e7}
DTYPES = {"float32": (ms.float32, 2e-5), "float16": (ms.float16, 4e-3)}
if hasattr(ms, "bfloat16"):
    DTYPES["bfloat16"] = ms.bfloat16, 3e-2


def draw(seed, *shape):
    """Draw small integers; their products are scores in steps of 1/4."""
    return np.random.default_rng(seed).integers(-1, 2, shape).astype(np.float32)


def truth(query, key, value, bias, d_output):
    """Return the output, logsumexp and gradients, in float64 from scores in float32."""
    scores = (query @ key.swapaxes(-1, -2) * np.float32(0.25) + bias).astype(np.float64)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    weights /= total
    output = weights @ value
    d_weights = d_output @ value.swapaxes(-1, -2)
    d_scores = weights * (d_weights - (output * d_output).sum(-1, keepdims=True))
    logsumexp = (top + np.log(total))[..., 0]
    d_query, d_key = d_scores @ key / 4, d_scores.swapaxes(-1, -2) @ query / 4
    return output, logsumexp, d_query, d_key, weights.swapaxes(-1, -2) @ d_output, d_scores


def computed(call, dtype, query, key, value, bias, d_output):
    """Return the same results as `truth`, from a call."""
    tensors = [Tensor(array).astype(dtype) for array in (query, key, value)]

    def total(*tensors):
        output, logsumexp = call(*tensors)
        return ops.sum(output.astype(ms.float32) * Tensor(d_output)), output, logsumexp

    gradients, (output, logsumexp) = ms.ops.grad(total, (0, 1, 2, 3), has_aux=True)(*tensors, Tensor(bias))
    return [one.astype(ms.float32).asnumpy() for one in (output, logsumexp, *gradients)]


def assert_near(found, wanted, bound):
    """Compare within the rounding of the dtype, relative to the largest number."""
    for name, one, other in zip(NAMES, found, wanted):
        error = np.abs(one - other).max() / max(np.abs(other).max(), 1)
        assert error < bound, (name, error)


@pytest.mark.parametrize("backend", ["cpu", "math"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.spread(2)
def test_rows_of_great_biases(bias, dtype, backend):
    inputs = [draw(seed, BATCH, HEADS, SEQ, DIM) for seed in range(3)]
    biases = np.zeros((BATCH, 1, SEQ, SEQ), np.float32)
    biases[0, :, 20:60] = BIASES[bias]
    biases[1, :, 149] = BIASES[bias]
    biases[:, :, :, 100:120] += np.float32(-1e30)  # without effect beside the lowest biases; elsewhere it hides
    d_output = draw(3, BATCH, HEADS, SEQ, DIM)
    wanted = list(truth(*inputs, biases, d_output))
    wanted[-1] = wanted[-1].sum(1, keepdims=True)
    kind, bound = DTYPES[dtype]

    def call(query, key, value, bias):
        return flash_attention(query, key, value, None, bias, scale=0.25, return_lse=True, backend=backend)

    assert_near(computed(call, kind, *inputs, biases, d_output), wanted, bound)


@pytest.mark.parametrize("backend", ["cpu", "math"])
def test_a_packed_sequence_of_great_biases(backend):
    ends = [0, 40, 41, 150]
    inputs = [draw(seed, SEQ, HEADS, DIM) for seed in range(3)]
    bias = np.zeros((1, SEQ), np.float32)
    bias[:, 41:] = -1e9
    d_output = draw(3, SEQ, HEADS, DIM)

    def call(query, key, value, bias):
        lengths = Tensor(np.array(ends, np.int32))
        return flash_attention_varlen(
            *(query, key, value, lengths, lengths), bias=bias, scale=0.25, return_lse=True, backend=backend
        )

    found = computed(call, ms.float32, *inputs, bias, d_output)
    for start, end in zip(ends, ends[1:]):
        arrays = [array[start:end].swapaxes(0, 1) for array in (*inputs, d_output)]
        wanted = truth(*arrays[:3], bias[:, None, start:end], arrays[3])
        parts = [found[place][start:end].swapaxes(0, 1) for place in (0, 2, 3, 4)]
        assert_near([parts[0], found[1][:, start:end], *parts[1:]], wanted[:5], 2e-5)


def test_sinks_beside_great_biases():
    """The gradient of sinks is right, also through the logsumexp."""
    inputs = [draw(seed, 1, HEADS, 40, DIM) for seed in range(3)]
    bias = np.full((1, 1, 1, 40), -1e6, np.float32)

    def total(sinks):
        output, logsumexp = flash_attention(
            *map(Tensor, inputs), None, Tensor(bias), sinks=sinks, scale=0.25, return_lse=True, backend="cpu"
        )
        return ops.sum(output) + ops.sum(logsumexp)

    scores = (inputs[0] @ inputs[1].swapaxes(-1, -2) / 4).astype(np.float64)
    sinks = np.array([-1e6, -1e6 + 4])
    weights = np.exp(
        np.concatenate([scores, np.broadcast_to((sinks + 1e6)[None, :, None, None], (1, HEADS, 40, 1))], -1)
    )
    weights /= weights.sum(-1, keepdims=True)
    output = weights[..., :-1] @ inputs[2]
    wanted = (weights[..., -1] * (1 - output.sum(-1))).sum((0, 2))
    found = ms.ops.grad(total)(Tensor(sinks.astype(np.float32))).asnumpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-4)


OF_SCALES = np.random.default_rng(0)
Q_SCALED, K_SCALED, V_SCALED = (OF_SCALES.standard_normal((1, 1, 20, 16)).astype(np.float16) for _ in range(3))
#: Beside biases that are all low, a mask hides by less than it does elsewhere.
LOW = Tensor((OF_SCALES.standard_normal((1, 1, 1, 20)) - 30000).astype(np.float16))
MASK = Tensor((np.arange(20) > 12)[None, None, None])


def scaled(backend, scale, **inputs):
    """Return the output, logsumexp and the gradients of query, key and value."""

    def total(query, key, value):
        output, logsumexp = flash_attention(query, key, value, scale=scale, backend=backend, return_lse=True, **inputs)
        return ops.sum(output.astype(ms.float32)), output, logsumexp

    gradients, outputs = ms.ops.grad(total, (0, 1, 2), has_aux=True)(*map(Tensor, (Q_SCALED, K_SCALED, V_SCALED)))
    return [one.asnumpy().astype(np.float64) for one in (*outputs, *gradients)]


@pytest.mark.spread
@pytest.mark.parametrize("scale", [2.0**-10, -(2.0**-10), 0.0, 2.0**10])
@pytest.mark.parametrize(
    "inputs", [{}, {"attention_mask": MASK, "bias": LOW}, {"alibi": True}], ids=["plain", "low", "alibi"]
)
def test_within_the_bounds_they_are_right(inputs, scale):
    for found, wanted in zip(scaled("emulator", scale, **inputs), scaled("math", scale, **inputs)):
        np.testing.assert_allclose(found, wanted, rtol=4e-3, atol=4e-3 * np.abs(wanted).max())


BITS = 0xAE398  # of 1e-39 in float32; a quarter and a fourfold are exact
WIDTH = 16
ENDS = {"cu_seqlens_q": (0, 4, 8), "cu_seqlens_k": (0, 4, 8)}


def full(*shape: int, bits: int = BITS) -> Tensor:
    """Return float32 elements that all have these bits."""
    return Tensor(np.full(shape, bits, np.uint32).view(np.float32))


def assert_kept(tensor: Tensor) -> None:
    """Compare bits, but for rounding: the thread of the test may flush subnormal numbers itself."""
    np.testing.assert_allclose(tensor.asnumpy().view(np.uint32), BITS, rtol=1e-5)


@pytest.mark.parametrize(
    ("function", "rules", "queries", "keys"),
    (
        pytest.param(flash_attention, {}, (1, HEADS, 4, WIDTH), (1, HEADS, 4, WIDTH), id="attention"),
        pytest.param(flash_attention, {}, (1, HEADS, 1, WIDTH), (1, HEADS, 256, WIDTH), id="decode"),
        pytest.param(flash_attention_varlen, ENDS, (8, HEADS, WIDTH), (8, HEADS, WIDTH), id="packed"),
    ),
)
def test_values_and_gradients(function, rules: dict, queries: tuple, keys: tuple, mode: str) -> None:
    """The output is the value. With as many queries as keys, each value's gradient is the output's gradient."""
    tensors = full(*queries, bits=0), full(*keys, bits=0), full(*keys)
    cell = Call(function, backend="cpu", **rules)
    assert_kept(cell(*tensors))
    if queries == keys:
        assert_kept(Gradients(cell)(*tensors, full(*queries))[2])


def test_a_paged_cache(mode: str) -> None:
    cell = Decoder([np.zeros((2, 4, HEADS, WIDTH), np.float32)] * 2, "cpu")
    tables, lengths = Tensor([[0]], ms.int32), Tensor([4], ms.int32)
    query, key, value = full(1, HEADS, WIDTH, bits=0), full(4, HEADS, WIDTH, bits=0), full(4, HEADS, WIDTH)
    assert_kept(cell(query, key, value, Tensor([0, 1, 2, 3], ms.int32), tables, lengths))
    assert_kept(cell.values[0])


@pytest.mark.parametrize("options", ({}, {"paged": True, "block_size": 4}), ids=("contiguous", "paged"))
def test_a_kv_cache(options: dict, mode: str) -> None:
    cache = KVCache(1, 8, HEADS, WIDTH, dtype=ms.float32, **options)
    zeros = full(1, 4, HEADS, WIDTH, bits=0)
    assert_kept(cache(zeros, zeros, full(1, 4, HEADS, WIDTH)))
