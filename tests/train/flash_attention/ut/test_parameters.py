"""Parameters as arguments: the weights, sinks, biases and caches of several layers, in turns."""

import functools

import mindspore as ms
import numpy as np
import pytest
from flash_attention import (
    FlashAttention,
    KVCache,
    flash_attention,
    flash_attention_varlen,
    paged_attention,
    paged_caches,
    reshape_and_cache,
    rotary_embedding,
)
from flash_attention.bridge import parameters
from flash_attention.compat.flash_attn import flash_attn_with_kvcache
from flash_attention.compat.mindspore_ops.operators import FlashAttentionScore, flash_attention_score
from flash_attention.context_parallel import GatherAttention, gather
from mindspore import Parameter, Tensor, nn

from tests.train.flash_attention.support.modes import in_mode

ENDS = (0, 3, 8)
TABLE, LENGTH = [[0, 1]], [6]


def _random(*shape, seed=0):
    """Return a float32 Tensor of this shape, the same for the same seed."""
    return Tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def _tokens():
    """Return a query, key or value that is no Parameter."""
    return _random(1, 2, 8, 16)


@functools.cache
def _layer():
    """Return the layer of all calls, which compiles once."""
    return FlashAttention(16, alibi=True)


@functools.cache
def _cache():
    """Return the cache of all calls, wider than its keys."""
    return KVCache(batch=1, max_length=8, kv_heads=2, head_dim=10, dtype=ms.float32)


def _cached(query, key, value):
    """Compute attention by the cache, which holds nothing before."""
    cache = _cache()
    cache.reset()
    return cache(query, key, value)


def _stored(key, value):
    """Compute attention to the keys and values that the cache was given."""
    cache = _cache()
    cache.reset()
    cache.update(key, value)
    return cache.attend(_random(1, 3, 2, 10))


#: For each kind of argument that may be a Parameter: the shapes of the Parameters, and a call.
CALLS = {
    "query": ([(1, 2, 8, 16)], lambda query: flash_attention(query, _tokens(), _tokens())),
    "keys": ([(1, 2, 8, 16)] * 2, lambda key, value: flash_attention(_tokens(), key, value)),
    "sinks": ([(2,)], lambda sinks: flash_attention(_tokens(), _tokens(), _tokens(), sinks=sinks)),
    "bias": ([(1, 2, 1, 8)], lambda bias: flash_attention(_tokens(), _tokens(), _tokens(), None, bias)),
    "layer": ([(1, 2, 1, 8)], lambda bias: _layer()(*[_tokens()] * 3, alibi_mask=bias)),
    "packed": ([(8, 2, 16)] * 2, lambda key, value: flash_attention_varlen(key, key, value, ENDS, ENDS)),
    "angles": ([(8, 4)] * 2, lambda cos, sin: rotary_embedding(_random(1, 8, 2, 16), cos, sin)),
    "caches": (
        [(2, 4, 2, 16)] * 2,
        lambda *caches: paged_attention(_random(1, 2, 16), *caches, *(Tensor(x, ms.int32) for x in (TABLE, LENGTH))),
    ),
    "cache of a layer": ([(1, 3, 2, 10)] * 3, _cached),
    "what a cache takes": ([(1, 3, 2, 10)] * 2, _stored),
    "cache of flash_attn": (
        [(1, 2, 2, 16), (1, 8, 2, 16), (1, 8, 2, 16)],
        lambda query, *caches: flash_attn_with_kvcache(query, *caches, cache_seqlens=5, causal=True),
    ),
    "score": ([(1, 8, 32)] * 3, lambda *tensors: flash_attention_score(*tensors, 2)),
    "statistics": ([(1, 8, 32)] * 3, lambda *tensors: FlashAttentionScore(2)(*tensors)[0]),
}


@pytest.mark.spread
@pytest.mark.parametrize("kind", CALLS)
def test_calls_in_turns(kind, mode):
    """Parameters keep their numbers and each call computes with its own, also in calls from outside of a graph."""
    shapes, call = CALLS[kind]
    arrays = [[_random(*shape, seed=3 * turn + i).asnumpy() for i, shape in enumerate(shapes)] for turn in range(3)]
    given = [[Parameter(Tensor(one), name=f"p{t}{i}") for i, one in enumerate(turn)] for t, turn in enumerate(arrays)]
    for _ in range(2):
        for before, own in zip(arrays, given):
            np.testing.assert_array_equal(call(*own).asnumpy(), call(*map(Tensor, before)).asnumpy())
    for before, own in zip(arrays, given):
        for array, parameter in zip(before, own):
            np.testing.assert_array_equal(parameter.asnumpy(), array)


class _OfOneProcess(nn.Cell):
    """Sum over a single process."""

    def construct(self, tensor):
        return tensor


def test_gathered_keys_in_turns(monkeypatch, mode):
    """GatherAttention runs with one process."""
    monkeypatch.setattr(gather, "processes", lambda: (0, 1))
    monkeypatch.setattr(gather.ops, "AllReduce", _OfOneProcess)
    layer = GatherAttention(16, causal=True)
    given = [Parameter(_random(1, 2, 8, 16, seed=i), name=f"p{i}") for i in range(4)]
    sinks = [Parameter(_random(2, seed=i), name=f"s{i}") for i in range(4)]
    for _ in range(2):
        for turn in range(4):
            tensors = [_random(1, 2, 8, 16, seed=(turn + i) % 4) for i in range(3)]
            expected = flash_attention(*tensors, causal=True, sinks=_random(2, seed=turn)).asnumpy()
            output = layer(*(given[(turn + i) % 4] for i in range(3)), sinks=sinks[turn])
            np.testing.assert_allclose(output.asnumpy(), expected, rtol=1e-5, atol=1e-6)
    for seed, (one, other) in enumerate(zip(given, sinks)):
        np.testing.assert_array_equal(one.asnumpy(), _random(1, 2, 8, 16, seed=seed).asnumpy())
        np.testing.assert_array_equal(other.asnumpy(), _random(2, seed=seed).asnumpy())


class _Layers(nn.Cell):
    """Hold two layers of one shape, each with learnt sinks, biases and queries."""

    def __init__(self, backend, dtype):
        super().__init__()
        rules = {"alibi": True, "backend": backend}
        self.layers = nn.CellList([FlashAttention(16, **rules) for _ in range(2)])
        weights = [_random(*shape, seed=seed) for seed, shape in enumerate([(2,), (2,), (1, 2, 1, 8), (1, 2, 1, 8)])]
        self.sinks = Parameter(weights[0], name="sinks"), Parameter(weights[1], name="other_sinks")
        biases = [bias.astype(dtype) for bias in weights[2:]]
        self.biases = Parameter(biases[0], name="bias"), Parameter(biases[1], name="other_bias")
        queries = [_random(1, 2, 8, 16, seed=seed).astype(dtype) for seed in (4, 5)]
        self.queries = Parameter(queries[0], name="query"), Parameter(queries[1], name="other_query")

    def weights(self):
        """Return all Parameters."""
        return [*self.sinks, *self.biases, *self.queries]

    def construct(self, tokens):
        first = self.layers[0](self.queries[0], tokens, tokens, None, self.biases[0], self.sinks[0])
        second = self.layers[1](self.queries[1], first, first, None, self.biases[1], self.sinks[1])
        return second.astype(ms.float32).sum()


@pytest.mark.spread(since=(2, 8))
@pytest.mark.parametrize("backend", ("cpu", "emulator"))
def test_gradients_of_layers_of_one_shape(backend):
    dtype = ms.float16 if backend == "emulator" else ms.float32
    found = {}
    for name in (backend, "math"):
        with in_mode("pynative"):
            network = _Layers(name, dtype)
            before = [weight.asnumpy().copy() for weight in network.weights()]
            gradient = ms.grad(lambda tokens, network=network: network(tokens), None, network.weights())
            found[name] = [one.asnumpy().astype(np.float32) for one in gradient(_tokens().astype(dtype))]
            for array, weight in zip(before, network.weights()):
                np.testing.assert_array_equal(weight.asnumpy(), array)
    bound = {"rtol": 2e-2, "atol": 5e-3} if backend == "emulator" else {"rtol": 1e-4, "atol": 1e-5}
    for one, other in zip(found[backend], found["math"]):
        np.testing.assert_allclose(one, other, **bound)


def test_caches_in_turns(mode, update):
    """Several layers of a model store into a cache each; each cache has only its own layer's tokens."""
    caches = [KVCache(batch=1, max_length=8, kv_heads=2, head_dim=16, dtype=ms.float32) for _ in range(2)]
    blocks = [paged_caches(2, 4, 2, 16, dtype=ms.float32) for _ in range(2)]
    stored = np.zeros((2, 3, 2, 16), np.float32)
    for token in range(3):
        for layer in range(2):
            one = _random(1, 1, 2, 16, seed=2 * token + layer)
            stored[layer, token] = one.asnumpy()[0, 0]
            caches[layer].update(one, one)
            reshape_and_cache(one, one, *blocks[layer], Tensor([[token]], ms.int32))
    query = _random(1, 1, 2, 16, seed=7)
    for layer in range(2):
        np.testing.assert_array_equal(caches[layer].lengths.asnumpy(), [3])
        for cache in blocks[layer]:
            np.testing.assert_array_equal(cache.asnumpy().reshape(-1, 2, 16)[:3], stored[layer])
        heads = Tensor(stored[layer].transpose(1, 0, 2)[None])
        exact = flash_attention(query.reshape(1, 2, 1, 16), heads, heads).asnumpy()
        np.testing.assert_allclose(caches[layer].attend(query).asnumpy().reshape(1, 2, 1, 16), exact, atol=1e-6)


def test_other_tensors_compile_nothing_anew(monkeypatch):
    """In GRAPH mode a call from outside of a graph is compiled once, whatever a mask or bias holds."""
    compiled = []
    original = nn.Cell.compile_and_run

    def counted(cell, *arguments, **named):
        output = original(cell, *arguments, **named)
        compiled.append(len(cell.compile_cache))
        return output

    monkeypatch.setattr(nn.Cell, "compile_and_run", counted)
    parameters._unpacked.cache_clear()
    with in_mode("graph"):
        for turn in range(3):
            mask = Tensor(np.triu(np.ones((8, 8), np.float32), turn + 1))
            flash_attention(_tokens(), _tokens(), _tokens(), mask, _random(1, 1, 8, 8, seed=turn)).asnumpy()
    assert compiled == [1, 1, 1]
