"""MindSpore's inference operators on our backends, against float64: dialects of prefill, caches, paged attention."""

import flash_attention
import mindspore as ms
import numpy as np
import pytest
from flash_attention.bridge.versions import VERSION
from flash_attention.compat import mindspore_ops
from flash_attention.compat.mindspore_ops import (
    ApplyRotaryPosEmb,
    FlashAttentionScore,
    PagedAttention,
    PagedAttentionMask,
    ReshapeAndCache,
    RotaryPositionEmbedding,
    flash_attention_score,
    rotary_position_embedding,
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
HEADS, KV_HEADS, DIM, BLOCK, SCALE = 4, 2, 16, 8, 0.3
TRIANGLE = np.triu(np.ones((128, 128), np.float16), 1)
LENGTHS = (12, 1, 7)
TABLES = np.array([[3, 1, -1], [6, -1, -1], [5, 2, -1]], np.int32)
ANGLES = np.arange(64)[:, None] / 50 ** (np.arange(DIM // 2) / (DIM // 2))


def heads_first(tokens, heads):
    """Return (heads, tokens, D)."""
    return tokens.reshape(len(tokens), heads, -1).swapaxes(0, 1)


def by_sequence(counts, query, keys, values, added):
    """Return the attention of packed tokens; added(sequence, tokens, keys) gives what is added."""
    starts = np.cumsum([0, *counts])
    results = []
    for sequence, (start, end, key, value) in enumerate(zip(starts, starts[1:], keys, values)):
        if end > start:
            given = heads_first(query[start:end], HEADS), key.swapaxes(0, 1), value.swapaxes(0, 1), SCALE
            output, _ = attention(*given, added(sequence, end - start, len(key)))
            results.append(output.swapaxes(0, 1).reshape(end - start, -1))
    return np.concatenate(results)


def slots(lengths, tables=TABLES):
    """Return the slots of all tokens of the sequences."""
    places = [table[np.arange(n) // BLOCK] * BLOCK + np.arange(n) % BLOCK for table, n in zip(tables, lengths)]
    return np.concatenate(places).astype(np.int32)


def caches(lengths, dtype="float32", heads=KV_HEADS, dim=DIM):
    """Return each sequence's keys and values, and Tensors of caches that hold NaN elsewhere."""
    kept = [[random(n, heads, dim, seed=10 * n + i).astype(np.float16) for n in lengths] for i in range(2)]
    made = []
    for one in kept:
        cache = np.full((9 * BLOCK, heads, dim), np.nan, np.float32)
        cache[slots(lengths)] = np.concatenate(one)
        made.append(Tensor(cache.reshape(9, BLOCK, heads, dim)).astype(dtype_named(dtype)))
    return *kept, *made


# Prefill


def packed(lengths, dtype):
    """Return query, key and value of packed sequences, as arrays and as Tensors."""
    tokens = sum(lengths)
    made = [random(tokens, heads * DIM, seed=i).astype(np.float16) for i, heads in enumerate((HEADS, 2, 2))]
    return made, [Tensor(one).astype(dtype_named(dtype)) for one in made]


def split(tensor, lengths):
    """Return the rows of each sequence with their heads apart."""
    return np.split(tensor.reshape(len(tensor), KV_HEADS, DIM), np.cumsum(lengths)[:-1])


@pytest.mark.spread
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ("TH", "TND"))
@pytest.mark.parametrize("constant", (False, True))
def test_packed_sequences_by_lengths_and_by_ends_are_causal_under_a_floating_triangle(mode, layout, dtype, constant):
    cell = Calls(*(FlashAttentionScore(HEADS, 1.0, SCALE, 2147483647, 0, 0, layout, 0) for _ in range(2)))
    for lengths in (LENGTHS, (5, 14, 1)):  # the second call has other data
        (query, key, value), tensors = packed(lengths, dtype)
        if layout == "TND":
            tensors = [one.reshape((-1, heads, DIM)) for one, heads in zip(tensors, (HEADS, 2, 2))]
        right = by_sequence(lengths, query, split(key, lengths), split(value, lengths), lambda _, q, k: causal(q, k))
        mask = Tensor(TRIANGLE * (1 if layout == "TH" else -10000)).astype(dtype_named(dtype))
        for given in (lengths, tuple(np.cumsum(lengths).tolist())):
            given = given if constant else numbers(given)
            results = cell(*tensors, None, None, None, mask, None, given, given)
            for result in results:
                assert_right(result[3], right, dtype)


def test_packed_sequences_without_a_mask_see_all(mode):
    (query, key, value), tensors = packed(LENGTHS, "float32")
    score = FlashAttentionScore(HEADS, 1.0, SCALE, 2147483647, 0, 0, "TH", 0)
    result = Calls(score)(*tensors, None, None, None, None, None, numbers(LENGTHS), numbers(LENGTHS))[0]
    right = by_sequence(LENGTHS, query, split(key, LENGTHS), split(value, LENGTHS), lambda *_: 0)
    assert_right(result[3], right)


@pytest.mark.parametrize("numbers_of", ((12, 1, 8), (12, 13, 21), (-1, 14, 7)))
def test_numbers_that_are_neither_lengths_nor_ends_are_an_error_or_nan(mode, numbers_of):
    _, tensors = packed(LENGTHS, "float32")
    score = FlashAttentionScore(HEADS, 1.0, SCALE, 2147483647, 0, 0, "TH", 0)
    given = *tensors, None, None, None, Tensor(TRIANGLE), None, numbers(numbers_of), numbers(numbers_of)
    if mode == "pynative":
        with pytest.raises(ValueError, match="actual_seq_qlen: got .* allowed are lengths of the sequences, whose sum"):
            score(*given)
    else:
        assert np.isnan(Calls(score)(*given)[0][3].asnumpy()).all()


def test_keys_of_other_lengths_than_queries_are_refused_under_a_triangle(mode):
    _, tensors = packed(LENGTHS, "float32")
    score = FlashAttentionScore(HEADS, 1.0, SCALE, 2147483647, 0, 0, "TH", 0)
    given = *tensors, None, None, None, Tensor(TRIANGLE), None, numbers(LENGTHS), numbers((11, 2, 7))
    if mode == "pynative":
        with pytest.raises(ValueError, match="actual_seq_kvlen: got .* no source says how others are aligned"):
            score(*given)
        with pytest.raises(ValueError, match="the contents are different"):
            score(*given[:6], Tensor(TRIANGLE.T), None, numbers(LENGTHS), numbers(LENGTHS))
    else:
        assert np.isnan(Calls(score)(*given)[0][3].asnumpy()).any()


@pytest.mark.spread
@pytest.mark.parametrize("layout", ("BSH", "BNSD"))
@pytest.mark.parametrize("by", ("argument", "patch", "jit config"))
def test_next_tokens_0_without_a_mask_is_what_was_decided(mode, layout, by, monkeypatch):
    query, key, value = (random(2, 10, heads * DIM, seed=heads) for heads in (HEADS, KV_HEADS, KV_HEADS))
    tensors = [Tensor(one) for one in (query, key, value)]
    if layout == "BNSD":
        tensors = [one.reshape((2, 10, -1, DIM)).swapaxes(1, 2) for one in tensors]
    call = {"scalar_value": SCALE, "next_tokens": 0, "input_layout": layout}
    for inference in (True,) if by == "jit config" else (True, False):
        if by == "argument":
            call["inference"] = inference
            output = flash_attention_score(*tensors, HEADS, **call)
        elif by == "patch":
            with flash_attention.patch_mindspore(inference=inference) as patch:
                assert patch.report["inference"].startswith(str(inference))
                output = ops.flash_attention_score(*tensors, HEADS, **call)
                score = FlashAttentionScore(HEADS, 1.0, SCALE, 2147483647, 0, 0, layout, 0)
            np.testing.assert_array_equal(Calls(score)(*tensors)[0][3].asnumpy(), output.asnumpy())
        else:
            monkeypatch.setattr(ms.context, "get_jit_config", lambda: {"infer_boost": "on"}, raising=False)
            output = flash_attention_score(*tensors, HEADS, **call)
        output = output.asnumpy() if layout == "BSH" else output.asnumpy().swapaxes(1, 2)
        kept = [[one.reshape(10, KV_HEADS, DIM) for one in array] for array in (key, value)]
        hidden = (lambda _, q, k: causal(q, k)) if inference else (lambda *_: 0)
        right = by_sequence((10, 10), query.reshape(20, -1), *kept, hidden)
        np.testing.assert_allclose(output.reshape(20, -1), right, atol=3e-6)


UNDECIDED = {
    "nobody decided": ({}, 10, "next_tokens: got 0 without attn_mask, which has two readings"),
    "unequal": ({"inference": True}, 7, "next_tokens: got 0 .* S1 = 10, S2 = 7"),
    "window": ({"inference": True, "pre_tokens": 5}, 10, "pre_tokens: got 5"),
}


@pytest.mark.parametrize("case", UNDECIDED)
def test_what_no_source_decides_is_refused_by_name(case):
    more, keys, message = UNDECIDED[case]
    query, key = Tensor(random(2, 10, 64)), Tensor(random(2, keys, 64))
    with pytest.raises(ValueError, match=message):
        flash_attention_score(query, key, key, HEADS, scalar_value=SCALE, next_tokens=0, **more)


# The cache


class Update(nn.Cell):
    """Write into its caches twice."""

    def __init__(self, key_cache, value_cache):
        super().__init__()
        self.key_cache = Parameter(key_cache, name="key_cache")
        self.value_cache = None if value_cache is None else Parameter(value_cache, name="value_cache")
        self.update, self.other = ReshapeAndCache(), ReshapeAndCache()

    def construct(self, key, value, slots, other):
        first = self.update(key, value, self.key_cache, self.value_cache, slots)
        second = self.other(key, value, self.key_cache, self.value_cache, other)
        return ops.depend(first, second)


@pytest.mark.spread
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", ((6, 32), (2, 3, 32), (6, 2, 16), (1, 6, 32)))
@pytest.mark.parametrize("latent", (False, True))
def test_reshape_and_cache_writes_every_form_of_tokens(mode, dtype, shape, latent):
    before = np.full((9 * BLOCK, KV_HEADS, DIM), 7.0, np.float32)
    cache = [Tensor(before.reshape(9, BLOCK, KV_HEADS, DIM)).astype(dtype_named(dtype)) for _ in range(2)]
    cell = Update(cache[0], None if latent else cache[1])
    names = ("key",) if latent else ("key", "value")
    expected = {name: before.reshape(-1, KV_HEADS, DIM).copy() for name in names}
    for seed in (0, 1):
        key, value = (random(*shape, seed=seed + i).astype(np.float16) for i in range(2))
        places = np.array([[17, -1, 3, 40, 8, -1], [50, 51, -1, -1, -1, 2]], np.int32) + seed
        places[places < 3] = -1
        tensors = [Tensor(one).astype(dtype_named(dtype)) for one in (key, value)]
        result = cell(tensors[0], None if latent else tensors[1], *map(numbers, places))
        assert result.shape == shape
        kept_and_new = {"key": (cell.key_cache, key), "value": (cell.value_cache, value)}
        for name in expected:
            kept, new = kept_and_new[name]
            found = kept.astype(ms.float32).asnumpy().reshape(-1, KV_HEADS, DIM)
            rows = Tensor(new.reshape(6, KV_HEADS, DIM)).astype(dtype_named(dtype)).astype(ms.float32).asnumpy()
            for row in places:
                expected[name][row[row >= 0]] = rows[row >= 0]
            np.testing.assert_array_equal(found, expected[name])


# Paged attention


@pytest.mark.spread
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", ("TH", "B1H", "1TH"))
def test_paged_attention_of_one_token_each(mode, dtype, shape):
    cell = Calls(PagedAttention(HEADS, SCALE, DIM), PagedAttention(HEADS, SCALE, KV_HEADS))  # some give D for the heads
    for lengths in (LENGTHS, (2, 8, 9)):
        keys, values, *given = caches(lengths, dtype)
        query = random(3, HEADS * DIM, seed=sum(lengths)).astype(np.float16)
        tensor = (
            Tensor(query)
            .astype(dtype_named(dtype))
            .reshape({"TH": (3, -1), "B1H": (3, 1, -1), "1TH": (1, 3, -1)}[shape])
        )
        right = by_sequence((1, 1, 1), query, keys, values, lambda *_: 0)
        mask = Tensor(np.zeros((1, 1), np.float32))
        for result in cell(tensor, *given, numbers(TABLES), numbers(lengths), None, None, mask):
            assert result.shape == tensor.shape
            assert_right(result, right, dtype)


MASKS = ("none", "trapezoidal", "added", "one")


@pytest.mark.spread
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("ragged", (False, True))
def test_paged_attention_of_several_tokens(mode, dtype, kind, ragged):
    operator = PagedAttention(
        HEADS, SCALE, KV_HEADS, mask_mode="TRAPEZOIDAL" if kind == "trapezoidal" else "MASK_DEFAULT"
    )
    cell = Calls(operator)
    for lengths, counts in (((12, 1, 7), (4, 0, 2)), ((9, 5, 8), (1, 4, 1))) if ragged else (((12, 3, 7), (2, 2, 2)),):
        keys, values, *given = caches(lengths, dtype)
        tokens = sum(counts)
        query = random(tokens, HEADS * DIM, seed=tokens + lengths[0]).astype(np.float16)
        added = random(tokens, 20, seed=3)
        starts = np.cumsum((0, *counts))
        if kind == "one":
            for start, count, length in zip(starts, counts, lengths):
                added[start : start + count, :length] = causal(count, length) < 0

        def hidden(sequence, count, length, added=added, starts=starts):
            rows = added[starts[sequence] : starts[sequence] + count, :length]
            return {"none": 0, "trapezoidal": causal(count, length), "added": np.where(rows > 0, -np.inf, rows)}.get(
                kind, np.where(rows > 0, -np.inf, 0)
            )

        if kind == "added":
            added[:] = -np.abs(added)
        mask = Tensor(added) if kind in ("added", "one") else None
        tensor = Tensor(query).astype(dtype_named(dtype))
        tensor = tensor if ragged else tensor.reshape((3, 2, -1))
        lens = numbers(counts) if ragged else None
        right = by_sequence(counts, query, keys, values, hidden)
        for result in cell(tensor, *given, numbers(TABLES), numbers(lengths), None, None, mask, lens):
            assert result.shape == tensor.shape
            assert_right(result, right, dtype)


@pytest.mark.parametrize("masked", (False, True))
def test_tokens_that_do_not_add_up_are_an_error_or_nan(mode, masked):
    _, _, *given = caches(LENGTHS)
    mask = Tensor(np.zeros((6, 24), np.float32)) if masked else None
    others = numbers(TABLES), numbers(LENGTHS), None, None, mask, numbers((4, 0, 1))
    query, operator = Tensor(random(6, HEADS * DIM)), PagedAttention(HEADS, SCALE, KV_HEADS)
    if mode == "pynative":
        with pytest.raises(ValueError, match="q_seq_lens: got .* allowed is a sum of 6"):
            operator(query, *given, *others)
    else:
        assert np.isnan(Calls(operator)(query, *given, *others)[0].asnumpy()).all()


@pytest.mark.parametrize("dtype", ("float32", "float16"))
def test_latent_attention_takes_the_first_columns_of_its_cache_as_values(mode, dtype):
    keys, _, cache, _ = caches(LENGTHS, dtype, heads=1, dim=DIM)
    query = random(3, HEADS * DIM, seed=4).astype(np.float16)
    operator = PagedAttention(HEADS, SCALE, 1, mla_v_dim=12)
    result = Calls(operator)(Tensor(query).astype(dtype_named(dtype)), cache, None, numbers(TABLES), numbers(LENGTHS))[
        0
    ]
    assert_right(result, by_sequence((1, 1, 1), query, keys, [one[..., :12] for one in keys], lambda *_: 0), dtype)


@pytest.mark.spread
@pytest.mark.parametrize("place", ("alibi_mask", "antiquant_scale"))
@pytest.mark.parametrize("dtype", DTYPES)
def test_paged_attention_mask_adds_a_bias_for_each_head(mode, place, dtype):
    keys, values, *given = caches(LENGTHS, dtype)
    query, bias = random(3, 1, HEADS * DIM).astype(np.float16), random(3, HEADS, 1, 13, seed=8).astype(np.float16)
    tail = (None, None, Tensor(bias)) if place == "alibi_mask" else (Tensor(bias),)
    operator = PagedAttentionMask(HEADS, SCALE, KV_HEADS)
    result = Calls(operator)(
        Tensor(query).astype(dtype_named(dtype)), *given, numbers(TABLES), numbers(LENGTHS), *tail
    )[0]
    right = by_sequence((1, 1, 1), query[:, 0], keys, values, lambda one, _, length: bias[one, :, :, :length])
    assert_right(result, right, dtype)


REFUSED = {
    "quantised": ((Tensor([1.0], ms.float32),), {}, "antiquant_scale: got a Tensor"),
    "alibi": ((None,) * 4 + (Tensor([1.0], ms.float32),), {}, "alibi_mask: got a Tensor"),
    "mode": ((), {"kv_cache_quant_mode": "PERCHANNEL"}, "kv_cache_quant_mode: got 'PERCHANNEL'"),
    "mask mode": ((), {"mask_mode": "OTHER"}, "mask_mode: got 'OTHER'"),
    "narrow": ((None,) * 2 + (Tensor(np.zeros((3, 5), np.float32)),), {}, "context_lens: got .*12"),
    "rows": ((None,) * 2 + (Tensor(np.zeros((4, 24), np.float32)),), {}, r"attn_mask: got shape \(4, 24\)"),
    "both": ((None,) * 2 + (Tensor(np.zeros((3, 24), np.float32)),), {"mask_mode": "TRAPEZOIDAL"}, "a mask by itself"),
    "latent": ((), {"mla_v_dim": 12}, "value_cache: got one with mla_v_dim 12"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_paged_attention_refuses_is_named(case):
    given, settings, message = REFUSED[case]
    _, _, *tensors = caches(LENGTHS)
    with pytest.raises(ValueError, match=message):
        operator = PagedAttention(HEADS, SCALE, KV_HEADS, **settings)
        operator(Tensor(random(3, HEADS * DIM)), *tensors, numbers(TABLES), numbers(LENGTHS), *given)


# Rotary embedding


@pytest.mark.spread
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cos_format", (0, 1, 2, 3))
@pytest.mark.parametrize("form", ("packed", "padded", "rows"))
def test_apply_rotary_pos_emb_begins_again_with_each_sequence(mode, form, cos_format, dtype):
    if form == "rows" and cos_format < 2:
        pytest.skip("formats 0 and 1 are tables by position")
    repeat = np.tile if cos_format % 2 == 0 else lambda table, times: np.repeat(table, times[1], 1)
    cell = Calls(ApplyRotaryPosEmb(cos_format))
    for lengths in ((12, 1, 7), (3, 9, 8)):
        positions = np.concatenate([np.arange(n) for n in lengths])
        shape = (20,)
        if form == "padded":
            positions, shape = np.tile(np.arange(10), 2), (2, 10)
            lengths = tuple(min(n, 10) for n in lengths[:2])
        cos, sin = (repeat(table, (1, 2)) for table in (np.cos(ANGLES), np.sin(ANGLES)))
        cos, sin = (one * np.linspace(0.5, 1.5, DIM) for one in (cos, sin))  # halves that differ
        rows = [one[positions] if form == "rows" else one for one in (cos, sin)]
        tensors = [random(*shape, heads * DIM, seed=heads).astype(np.float16) for heads in (HEADS, KV_HEADS)]
        given = [Tensor(one).astype(dtype_named(dtype)) for one in tensors]
        found = cell(*given, *(Tensor(one.astype(np.float32)) for one in rows), numbers(lengths))[0]
        for result, tensor in zip(found, tensors):
            heads = tensor.reshape(20, -1, DIM).astype(np.float64)
            if cos_format % 2 == 0:
                turned = np.concatenate((-heads[..., DIM // 2 :], heads[..., : DIM // 2]), -1)
            else:
                turned = np.stack((-heads[..., 1::2], heads[..., ::2]), -1).reshape(heads.shape)
            right = heads * cos[positions, None] + turned * sin[positions, None]
            assert result.shape == tensor.shape
            assert_right(result, right, dtype)


def test_lengths_beside_a_table_that_do_not_add_up_are_an_error_or_nan(mode):
    cos = Tensor(np.ones((64, DIM), np.float32))
    given = Tensor(random(20, 64)), Tensor(random(20, 32)), cos, cos, numbers((12, 1, 8))
    if mode == "pynative":
        with pytest.raises(ValueError, match="position_ids: got .* whose sum is the number of tokens, here 20"):
            ApplyRotaryPosEmb(2)(*given)
    else:
        assert np.isnan(Calls(ApplyRotaryPosEmb(2))(*given)[0][0].asnumpy()).all()


@pytest.mark.spread
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("turn", (0, 1))
@pytest.mark.parametrize("shape", ((1, 1, 5, DIM), (2, 5, 1, DIM), (1, 3, 1, DIM), (2, 3, 5, DIM)))
def test_rotary_position_embedding_and_its_gradients(mode, shape, turn, dtype):
    sizes = (2, 5, 3, DIM) if shape[1] == 5 else (2, 3, 5, DIM)
    arrays = [
        random(*size, seed=i).astype(np.float16).astype(np.float64) for i, size in enumerate((sizes, shape, shape))
    ]
    x, cos, sin = arrays
    weight = random(*sizes, seed=7).astype(np.float64)

    def turned(array):
        if turn == 0:
            return np.concatenate((-array[..., DIM // 2 :], array[..., : DIM // 2]), -1)
        return np.stack((-array[..., 1::2], array[..., ::2]), -1).reshape(array.shape)

    def summed(array):
        return array.sum(tuple(axis for axis in range(4) if shape[axis] == 1), keepdims=True)

    right = [
        x * cos + turned(x) * sin,
        weight * cos - turned(weight * sin),
        summed(weight * x),
        summed(weight * turned(x)),
    ]
    operator = RotaryPositionEmbedding()

    def loss(x, cos, sin):
        result = rotary_position_embedding(x, cos, sin, turn)
        return (operator(x, cos, sin, turn).astype(ms.float32) * Tensor(weight, ms.float32)).sum(), result

    differentiate = ops.value_and_grad(loss, (0, 1, 2), has_aux=True)
    if mode == "graph":
        differentiate = ms.jit(differentiate)
    (_, result), gradients = differentiate(*(Tensor(one, ms.float32).astype(dtype_named(dtype)) for one in arrays))
    for found, exact in zip((result, *gradients), right):
        assert_right(found, exact, dtype)


def test_operators_take_what_callers_configure():
    for name in mindspore_ops.__all__:
        made = {"PagedAttention": (HEADS, SCALE, KV_HEADS), "PagedAttentionMask": (HEADS, SCALE, KV_HEADS)}
        if name[0].isupper() and name != "FlashAttentionScore":
            operator = getattr(mindspore_ops, name)(*made.get(name, ()))
            assert operator.shard(((1, 1, 1),)) is operator and operator.add_prim_attr("any", 1) is operator
