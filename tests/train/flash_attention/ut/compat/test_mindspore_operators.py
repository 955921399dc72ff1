"""MindSpore's smaller attention operators on our backends, against float64."""

import copy

import flash_attention
import mindspore as ms
import numpy as np
import pytest
from flash_attention.bridge.versions import VERSION
from flash_attention.compat.mindspore_ops import (
    KVCacheScatterUpdate,
    LightningIndexer,
    RingAttentionUpdate,
    SparseFlashAttention,
    SpeedFusionAttention,
    kv_cache_scatter_update,
    lightning_indexer,
    ring_attention_update,
    sparse_flash_attention,
    speed_fusion_attention,
)
from mindspore import Parameter, Tensor, nn, ops

from tests.train.flash_attention.support.arrays import random
from tests.train.flash_attention.support.mindspore_operators import (
    DTYPES,
    Calls,
    assert_right,
    attention,
    causal,
    numbers,
)
from tests.train.flash_attention.support.versions import dtype_named

pytestmark = pytest.mark.skipif(VERSION < (2, 6), reason="tested with 2.6 and later")
BATCH, HEADS, DIM, SCALE = 2, 4, 16, 0.3


def given(*shape, seed, dtype="float32"):
    """Return an array that float16 holds, and a Tensor of it."""
    array = random(*shape, seed=seed).astype(np.float16).astype(np.float32)
    return array, Tensor(array).astype(dtype_named(dtype))


# Attention with seven results


def lanes(statistic):
    return np.broadcast_to(statistic, (*statistic.shape[:-1], 8))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", (0, 1))
def test_speed_fusion_attention_adds_the_shift_where_its_type_says(dtype, kind):
    ms.set_context(mode=ms.PYNATIVE_MODE)
    (query, *_), (key, *_), (value, *_), (shift, *_) = made = [
        given(BATCH, HEADS, *size, seed=seed, dtype=dtype)
        for seed, size in enumerate(((5, DIM), (9, DIM), (9, DIM), (5, 9)))
    ]
    added = shift * (SCALE if kind else 1)
    truth, logsumexp = attention(query, key, value, SCALE, added)
    highest = (query.astype(np.float64) @ key.swapaxes(2, 3) * SCALE + added).max(-1, keepdims=True)
    tensors = [one for _, one in made]
    named = {"pse": tensors[3], "scale": SCALE, "pse_type": kind}
    by_function = speed_fusion_attention(*tensors[:3], HEADS, "BNSD", **named)
    seed = Tensor(0, ms.int64)
    for results in (by_function, SpeedFusionAttention()(*tensors[:3], HEADS, "BNSD", seed, seed, **named)):
        assert len(results) == 7
        assert_right(results[0], truth, dtype)
        assert_right(results[1], lanes(highest), as_exact_as=dtype)
        assert_right(results[2], lanes(np.exp(logsumexp - highest)), as_exact_as=dtype)


def test_speed_fusion_attention_has_gradients_and_stays_out_of_graphs():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    tensors = [given(BATCH, 6, HEADS * DIM, seed=seed)[1] for seed in range(3)]

    def loss(*tensors):
        return (speed_fusion_attention(*tensors, HEADS, "BSH", scale=SCALE)[0] ** 2).sum()

    gradients = ms.grad(loss, (0, 1, 2))(*tensors)
    step = 1e-2
    for place, gradient in enumerate(gradients):
        way = given(BATCH, 6, HEADS * DIM, seed=7 + place)[0]
        moved = [
            loss(*(one + Tensor(sign * step * way) if i == place else one for i, one in enumerate(tensors))).asnumpy()
            for sign in (1, -1)
        ]
        slope = (moved[0] - moved[1]) / (2 * step)
        np.testing.assert_allclose((gradient.asnumpy() * way).sum(), slope, rtol=1e-2, atol=1e-2)
    with pytest.raises(ValueError, match="got a compiled graph, allowed is PYNATIVE"):
        ms.jit(loss)(*tensors)


# Joining partial attention


@pytest.mark.spread
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ("SBH", "TND"))
def test_ring_attention_update_joins_two_parts(mode, layout, dtype):
    batch, seq = (1, 10) if layout == "TND" else (BATCH, 5)
    for seed in (0, 30):
        query, key, value = (given(batch, HEADS, n, DIM, seed=seed + n)[0] for n in (seq, 12, 13))
        value, truth, parts = value[:, :, :12], [], []
        hidden = np.zeros((seq, 12))
        hidden[1, :7], hidden[2, 7:], hidden[3] = -np.inf, -np.inf, -np.inf  # one part, or both, show nothing
        for columns in (slice(0, 7), slice(7, 12), slice(0, 12)):
            k, v, added = key[:, :, columns], value[:, :, columns], hidden[:, columns]
            output, logsumexp = attention(query, k, v, SCALE, added)
            highest = (query.astype(np.float64) @ k.swapaxes(2, 3) * SCALE + added).max(-1, keepdims=True)
            total = np.exp(logsumexp - np.where(np.isinf(highest), 0, highest))
            if layout == "TND":
                outs = output[0].swapaxes(0, 1), lanes(highest[0].swapaxes(0, 1)), lanes(total[0].swapaxes(0, 1))
            else:
                outs = output.transpose(2, 0, 1, 3).reshape(seq, batch, -1), lanes(highest), lanes(total)
            parts.append(outs)
        *first, truth = parts
        for output, *_ in first:
            output[(slice(3, 4),)] = np.nan  # where a part shows nothing, its output is never read
        tensors = [
            Tensor(one.astype(np.float32)).astype(dtype_named("float32" if place else dtype))
            for part in first
            for place, one in enumerate(part)
        ]
        ends = Tensor([0, 10], ms.int64) if layout == "TND" else None
        for results in Calls(ring_attention_update, RingAttentionUpdate())(*tensors, ends, layout):
            assert_right(results[0], truth[0], dtype)
            assert_right(results[1], truth[1])
            assert_right(results[2], truth[2])


# Writing into a cache


class Writes(nn.Cell):
    """Write into a cache by the function, then by the primitive."""

    def __init__(self, cache, axis):
        super().__init__()
        self.cache, self.axis, self.write = Parameter(cache, name="cache"), axis, KVCacheScatterUpdate()

    def construct(self, first, updates, second):
        one = kv_cache_scatter_update(self.cache, first, updates, self.axis, "update")
        return ops.depend(self.write(self.cache, second, updates, self.axis, "update"), one)


@pytest.mark.spread
@pytest.mark.parametrize("dtype", ("float32", "float16"))
@pytest.mark.parametrize("axis", (-1, -2))
@pytest.mark.parametrize("count", (1, 3))
def test_kv_cache_scatter_update_writes_in_place(mode, dtype, axis, count):
    expected, cache = given(BATCH, 3, 8, 6, seed=0, dtype=dtype)
    cell = Writes(cache, axis)
    cell = copy.deepcopy(cell)
    for seed in (1, 2):
        updates, tensor = given(BATCH, 3, *((8, count) if axis == -1 else (count, 6)), seed=seed, dtype=dtype)
        for indices in ((0, 3), (2, 1)):
            for item, index in enumerate(indices):
                place = [slice(None)] * 4
                place[0], place[axis] = item, slice(index, index + count)
                source = [item, slice(None), slice(None), slice(None)]
                expected[tuple(place)] = updates[tuple(source)]
        result = cell(Tensor([0, 3], ms.int64), tensor, numbers([2, 1]))
        assert_right(result, expected, dtype)
        assert_right(cell.cache.value() if hasattr(cell.cache, "value") else cell.cache, expected, dtype)


# Sparse attention


@pytest.mark.spread
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sparse_mode", (0, 3))
@pytest.mark.parametrize("layout", ("BSND", "TND"))
def test_the_indexer_chooses_the_keys_that_sparse_attention_sees(mode, layout, sparse_mode, dtype):
    counts_q, counts_k, count, dim, rope, wide = (4, 3), (9, 6), 5, 24, 8, 16
    seq_q, seq_k = 4, 9
    rules = {"layout_query": layout, "sparse_mode": sparse_mode}

    def index(*tensors):
        named = {"sparse_count": count, "layout_key": layout, "return_value": True, **rules}
        return cell_of(lightning_indexer, LightningIndexer(), mode)(tensors, named)

    for seed in (0, 20):
        made = {
            name: random(*shape, seed=seed + place).astype(np.float16).astype(np.float32)
            for place, (name, shape) in enumerate(
                {
                    "index_q": (BATCH, seq_q, 3, 8),
                    "index_k": (BATCH, seq_k, 1, 8),
                    "weights": (BATCH, seq_q, 3),
                    "query": (BATCH, seq_q, HEADS, dim),
                    "key": (BATCH, seq_k, 1, dim),
                    "value": (BATCH, seq_k, 1, wide),
                    "query_rope": (BATCH, seq_q, HEADS, rope),
                    "key_rope": (BATCH, seq_k, 1, rope),
                }.items()
            )
        }
        given, lengths = {}, {}
        for name, array in made.items():
            counts = counts_k if name in ("index_k", "key", "value", "key_rope") else counts_q
            rows = np.concatenate([one[:n] for one, n in zip(array, counts)]) if layout == "TND" else array
            given[name] = Tensor(rows).astype(dtype_named(dtype))
        for name, counts in (("query", counts_q), ("key", counts_k)):
            lengths[name] = numbers(np.cumsum(counts) if layout == "TND" else counts)
        indices, values = index(
            *(given[n] for n in ("index_q", "index_k", "weights")), lengths["query"], lengths["key"]
        )
        named = {"layout_kv": layout, **rules, "attention_mode": 2}
        tensors = *(given[n] for n in ("query", "key", "value")), indices, SCALE
        extra = None, lengths["query"], lengths["key"], given["query_rope"], given["key_rope"]
        outputs = cell_of(sparse_flash_attention, SparseFlashAttention(), mode, both=True)((*tensors, *extra), named)
        start = 0
        for item, (n, m) in enumerate(zip(counts_q, counts_k)):
            where = slice(start, start + n) if layout == "TND" else (item, slice(0, n))
            start += n
            product = np.einsum("qhd,kd->qhk", made["index_q"][item, :n], made["index_k"][item, :m, 0])
            scores = (np.maximum(product, 0) * made["weights"][item, :n, :, None]).sum(1)
            scores = scores + (causal(n, m) if sparse_mode == 3 else 0)
            found = indices.asnumpy()[where][:, 0]
            best = -np.sort(-scores, 1)[:, :count]
            hidden = np.full((n, m), -np.inf)
            for row, chosen in enumerate(found):
                kept = chosen[chosen >= 0]
                assert len(set(kept)) == len(kept) == min(count, np.isfinite(scores[row]).sum())
                hidden[row, kept] = 0
                if dtype == "float32":
                    np.testing.assert_allclose(scores[row, kept], best[row, : len(kept)], atol=1e-4)
            assert_right(values[where][:, 0], best, dtype) if dtype == "float32" else None
            query, key = (
                np.concatenate((made[name][item], made[f"{name}_rope"][item]), -1).swapaxes(0, 1)
                for name in ("query", "key")
            )
            if sparse_mode == 3:
                hidden = hidden + causal(n, m)
            truth, _ = attention(query[:, :n], key[:, :m], made["value"][item, :m].swapaxes(0, 1), SCALE, hidden)
            for output in outputs:
                assert_right(output[where], truth.swapaxes(0, 1), dtype)


def cell_of(function, primitive, mode, both=False):
    """Return a call of the function, or of both for their first results."""

    def call(tensors, named):
        def compute(*tensors):
            first = function(*tensors, **named)
            if both:
                return first[0], primitive(*tensors, **named)[0]
            return first

        return (ms.jit(compute) if mode == "graph" else compute)(*tensors)

    return call


@pytest.mark.spread
@pytest.mark.parametrize("backend", ("cpu", "math"))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block", (1, 2, 4))
def test_an_index_stands_for_a_block_of_keys_once(mode, block, dtype, backend):
    made = [given(1, size, heads, DIM, seed=heads + size, dtype=dtype) for size, heads in ((3, HEADS), (7, 1), (7, 1))]
    (query, _), (key, _), (value, _) = made
    indices = np.array([[0, -1, 0, 2**31 - 1], [1, 0, -(2**31), 1], [-1, -1, 99, -1]])
    hidden = np.full((3, 7), -np.inf)
    for row, chosen in enumerate(indices):
        for one in chosen[(chosen >= 0) & (chosen < 7)]:
            hidden[row, one * block : (one + 1) * block] = 0
    truth, logsumexp = attention(*(one.swapaxes(1, 2) for one in (query, key, value)), SCALE, hidden)
    # Keys and values that no list has may be anything.
    unseen = np.isinf(hidden).all(0)
    tensors = [tensor for _, tensor in made]
    for place in (1, 2):
        array = made[place][0].copy()
        array[:, unseen] = np.nan
        tensors[place] = Tensor(array).astype(dtype_named(dtype))
    named = {"sparse_block_size": block, "sparse_mode": 0}
    tensors += [numbers(indices.reshape(1, 3, 1, -1)), SCALE]
    with flash_attention.attention_backend(backend):
        for output in cell_of(sparse_flash_attention, SparseFlashAttention(), mode, both=True)(tensors, named):
            assert_right(output, truth.swapaxes(1, 2), dtype)
        if dtype != "float32":
            return
        d_output = random(1, 3, HEADS, DIM, seed=5)
        given_key, given_value = Tensor(key), Tensor(value)

        def loss(query, key, value):
            output = sparse_flash_attention(query, key, value, *tensors[3:], **named)[0]
            return (output * Tensor(d_output)).sum()

        gradient = ms.grad(loss, (0, 1, 2))
        found = (ms.jit(gradient) if mode == "graph" else gradient)(tensors[0], given_key, given_value)
    query, key, value, d_output = (one[0].swapaxes(0, 1).astype(np.float64) for one in (query, key, value, d_output))
    scores = query @ key.swapaxes(1, 2) * SCALE + hidden
    weights = np.exp(scores - np.where(np.isinf(logsumexp[0]), 0, logsumexp[0]))
    d_scores = weights * (d_output @ value.swapaxes(1, 2) - (d_output * truth[0]).sum(-1, keepdims=True)) * SCALE
    of_key = (d_scores.swapaxes(1, 2) @ query).sum(0, keepdims=True)
    of_value = (weights.swapaxes(1, 2) @ d_output).sum(0, keepdims=True)
    for one, right in zip(found, (d_scores @ key, of_key, of_value)):
        assert_right(one, right.swapaxes(0, 1)[None])


REFUSED = {
    "pages": (sparse_flash_attention, {"block_table": numbers([[0]])}, "block_table: got a Tensor"),
    "pages by layout": (sparse_flash_attention, {"layout_kv": "PA_BSND"}, "layout_kv: got 'PA_BSND'"),
    "mode": (sparse_flash_attention, {"sparse_mode": 2}, "sparse_mode: got 2, allowed are 0 and 3"),
    "statistics": (sparse_flash_attention, {"return_softmax_lse": True}, "return_softmax_lse: got True"),
    "rope": (sparse_flash_attention, {"attention_mode": 2}, "attention_mode: got 2"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_sparse_attention_refuses_is_named(case):
    function, named, message = REFUSED[case]
    made = [given(1, size, heads, DIM, seed=heads)[1] for size, heads in ((3, HEADS), (7, 1), (7, 1))]
    with pytest.raises(ValueError, match=message):
        function(*made, numbers(np.zeros((1, 3, 1, 2))), SCALE, **named)


def test_what_updates_of_caches_refuse_is_named():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    cache, updates = given(BATCH, 3, 8, 6, seed=0)[1], given(BATCH, 3, 2, 6, seed=1)[1]
    with pytest.raises(TypeError, match="var: got dtype bfloat16"):
        given_bfloat16 = cache.astype(ms.bfloat16), numbers([0, 1]), updates.astype(ms.bfloat16)
        kv_cache_scatter_update(*given_bfloat16, -2, "update")
    with pytest.raises(ValueError, match="reduce: got 'none', allowed are update"):
        kv_cache_scatter_update(cache, numbers([0, 1]), updates, -2)
    with pytest.raises(ValueError, match="indices: got 7, allowed are 0 to 6"):
        kv_cache_scatter_update(cache, numbers([0, 7]), updates, -2, "update")
