"""Test that a write reaches any cache and is read in the same call."""

import mindspore as ms
import numpy as np
import pytest
from flash_attention import cache_update, paged_attention, reshape_and_cache
from flash_attention.compat.flash_attn import flash_attn_with_kvcache
from mindspore import Parameter, Tensor, nn, ops

from tests.train.flash_attention.support.cells import Call
from tests.train.flash_attention.support.modes import in_mode
from tests.train.flash_attention.support.versions import dtype_named

has_views = pytest.mark.skipif(not hasattr(Tensor, "data_ptr"), reason="a slice is a tensor of its own")
ONE = Tensor(np.ones((1, 1, 1, 16), np.float32))
WHOLE = (2, 1, 4, 1, 16)
# Caches of keys and of values of a tensor of shape WHOLE.
VIEWS = {
    "slices": lambda whole: (whole[0], whole[1]),
    "ranges": lambda whole: (whole[:1].reshape(1, 4, 1, 16), whole[1:].squeeze(0)),
    "unbind": lambda whole: ops.unbind(whole),
    "split": lambda whole: [part[0] for part in ops.split(whole, 1)],
    "chunk": lambda whole: [part.view(1, 4, 1, 16) for part in ops.chunk(whole, 2)],
    "swapaxes": lambda whole: [part.swapaxes(1, 2).swapaxes(1, 2) for part in whole],
    "expand_dims": lambda whole: [ops.expand_dims(whole[part, 0], 0) for part in (0, 1)],
    "reshape": lambda whole: [one.reshape(1, 4, 1, 16) for one in (whole.reshape(2, -1)[0], whole.reshape(2, -1)[1])],
    "apart": lambda whole: [whole.reshape(1, 2, 4, 1, 16)[:, part] for part in (0, 1)],
}


def new_whole(kind, dtype=ms.float32):
    """Return zeros that hold both caches, as a Tensor or a Parameter."""
    whole = Tensor(np.zeros(WHOLE, np.float32)).astype(dtype)
    return Parameter(whole, name="whole") if kind == "parameter" else whole


def check(outputs, *caches):
    """Check the outputs of a token of ones, then of a token of twos."""
    for output, seen in zip(outputs, (1, 1 + 1 / (1 + np.exp(-8.0)))):
        np.testing.assert_allclose(output[0, 0, 0].astype(ms.float32).asnumpy(), seen, 1e-2)
    for cache in caches:
        rows = cache.astype(ms.float32).asnumpy().reshape(-1, 4, 16)
        np.testing.assert_array_equal(rows, np.broadcast_to([[[1], [2], [0], [0]]], rows.shape))


def two_steps(step, k_cache, v_cache):
    """Return the outputs of a token of ones, then of a token of twos."""
    return [step(ONE * (at + 1), k_cache, v_cache, Tensor([at], ms.int32)) for at in (0, 1)]


def grown(q, k_cache, v_cache, lengths):
    """Compute attention by pages for a token that the call appends."""
    return flash_attn_with_kvcache(q, k_cache, v_cache, q, q, cache_seqlens=lengths)


def with_logsumexp(q, k_cache, v_cache, lengths):
    """Compute `grown` for a whole row, as a logsumexp needs it."""
    return flash_attn_with_kvcache(q, k_cache, v_cache, q, q, cache_seqlens=lengths, return_softmax_lse=True)[0]


def by_two_calls(q, k_cache, v_cache, lengths):
    """Compute `grown` by two functions, on a backend that reads by MindSpore's own operators."""
    token = reshape_and_cache(q, q, k_cache, v_cache, lengths)
    k_cache, v_cache = ops.depend(k_cache, token), ops.depend(v_cache, token)
    return paged_attention(q, k_cache, v_cache, ops.reshape(lengths * 0, (1, 1)), lengths + 1, backend="math")


def without_token(q, k_cache, v_cache, lengths):
    """Compute `grown` on backend cpu, whose operator a graph keeps behind the writing operator."""
    reshape_and_cache(q, q, k_cache, v_cache, lengths)
    return paged_attention(q, k_cache, v_cache, ops.reshape(lengths * 0, (1, 1)), lengths + 1, backend="cpu")


STEPS = (grown, with_logsumexp, by_two_calls, without_token)


@has_views
@pytest.mark.spread(2)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["tensor", "parameter"])
@pytest.mark.parametrize("view", VIEWS)
def test_views_are_written(view, kind, dtype):
    dtype = dtype_named(dtype)
    whole = new_whole(kind, dtype)
    k_cache, v_cache = VIEWS[view](whole)

    def step(q, *others):
        return grown(q.astype(dtype), *others)

    check(two_steps(step, k_cache, v_cache), whole, k_cache, v_cache)


@has_views
def test_views_are_written_without_the_kernel(monkeypatch):
    monkeypatch.setattr(cache_update, "serves_native", lambda: False)
    cache_update.update_cell.cache_clear()
    whole = new_whole("tensor")
    for at in (0, 1):
        token = ONE[0] * (at + 1)
        reshape_and_cache(token, token, whole[0], whole[1], Tensor([at], ms.int32))
    cache_update.update_cell.cache_clear()
    check([], whole)


@has_views
@pytest.mark.asynchronous
def test_views_that_cannot_be_written_are_refused():
    wide = Tensor(np.zeros((2, 4, 2, 16), np.float32))
    whole = Tensor(np.zeros((2, 4, 1, 16), np.float32))
    lengths = Tensor([0], ms.int32)
    with pytest.raises(
        ValueError, match=r"k_cache: got a view of shape \(2, 4, 1, 16\) and strides \(128, 32, 16, 1\)"
    ):
        grown(ONE, wide[:, :, :1], whole, lengths)
    with pytest.raises(ValueError, match="value_cache: got a view"):
        reshape_and_cache(ONE, ONE, whole, wide[:, :, 1:], lengths)
    both = Tensor(np.zeros((2, 2, 4, 1, 16), np.float32))
    with pytest.raises(RuntimeError, match="key_cache: got a view of a Tensor, of which a graph gets a copy"):
        ms.jit(grown)(ONE, both[0], both[1], lengths).asnumpy()
    parameter = Parameter(Tensor(np.zeros((2, 4, 1, 16), np.float32)))
    parameter.set_data(both[1])
    with pytest.raises(RuntimeError, match="value_cache: got a view of a Tensor"):
        grown(ONE, whole, parameter, lengths).asnumpy()


class Attributes(nn.Cell):
    """Cache that are attributes, but no Parameters."""

    def __init__(self):
        super().__init__()
        self.k_cache, self.v_cache = (Tensor(np.zeros((1, 4, 1, 16), np.float32)) for _ in range(2))

    def construct(self, q, k_cache, v_cache, lengths):
        return grown(q, self.k_cache, self.v_cache, lengths)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
@pytest.mark.parametrize("how", ["jit", "graph"])
def test_graphs_read_what_they_wrote_into_tensors(how, step):
    caches = [Tensor(np.zeros((1, 4, 1, 16), np.float32)) for _ in range(2)]
    with in_mode("graph" if how == "graph" else "pynative"):
        check(two_steps(Call(step) if how == "graph" else ms.jit(step), *caches), *caches)


def test_graphs_read_what_they_wrote_into_lists_and_attributes():
    @ms.jit
    def of_list(q, caches, lengths):
        return grown(q, caches[0], caches[1], lengths)

    caches = [Tensor(np.zeros((1, 4, 1, 16), np.float32)) for _ in range(2)]
    check(two_steps(lambda q, k, v, lengths: of_list(q, ms.mutable([k, v]), lengths), *caches), *caches)
    with in_mode("graph"):  # an attribute is a constant of the graph
        check(two_steps(Attributes(), *caches))


@pytest.mark.spread
@pytest.mark.parametrize("rules", [{}, {"return_softmax_lse": True}, {"cache_leftpad": Tensor([0], ms.int32)}], ids=str)
def test_gradients_are_refused(mode, rules):
    caches = [Parameter(Tensor(np.zeros((1, 4, 1, 16), np.float32)), name=name) for name in "kv"]

    def loss(q, k, v):
        result = flash_attn_with_kvcache(q, *caches, k, v, cache_seqlens=0, **rules)
        return (result[0] if "return_softmax_lse" in rules else result).sum()

    for place in (0, 1, 2):
        with pytest.raises(NotImplementedError, match="it has no gradient, it is for inference"):
            ops.grad(loss, place)(ONE * 2, ONE * 3, ONE * 4)
