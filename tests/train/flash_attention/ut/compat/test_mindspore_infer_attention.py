"""MindSpore's operators for prompts and for steps of inference, on our backends against float64."""

import copy

import mindspore as ms
import numpy as np
import pytest
from flash_attention import attention_backend
from flash_attention.bridge.versions import VERSION
from flash_attention.compat.mindspore_ops import (
    FusedInferAttentionScore,
    IncreFlashAttention,
    PromptFlashAttention,
    fused_infer_attention_score,
    incre_flash_attention,
    prompt_flash_attention,
)
from mindspore import Tensor, nn

from tests.train.flash_attention.support.arrays import random
from tests.train.flash_attention.support.mindspore_operators import DTYPES, Calls, assert_right, attention, numbers
from tests.train.flash_attention.support.versions import dtype_named

pytestmark = pytest.mark.skipif(VERSION < (2, 6), reason="tested with 2.6 and later")
BATCH, HEADS, KV_HEADS, DIM, SCALE = 3, 4, 2, 16, 0.3
COMPRESSED = np.ones((2048, 2048), np.uint8)


def arrays(seq_q, seq_k, seed=0):
    """Return query, key and value with the heads in front."""
    sizes = (HEADS, seq_q), (KV_HEADS, seq_k), (KV_HEADS, seq_k)
    return [random(BATCH, *size, DIM, seed=seed + i).astype(np.float16) for i, size in enumerate(sizes)]


def tensors(arrays, layout, dtype, seq_k=None):
    """Return them in a layout. Keys behind a sequence's length are NaN."""
    made = []
    for place, array in enumerate(arrays):
        array = array.astype(np.float32)
        if seq_k is not None and place > 0:
            for item, length in zip(array, seq_k):
                item[:, length:] = np.nan
        if layout[:4] != "BNSD":
            array = array.swapaxes(1, 2)
        made.append(
            Tensor(array.reshape(*array.shape[:2], -1) if layout == "BSH" else array).astype(dtype_named(dtype))
        )
    return made


def in_layout(truth, layout):
    """Return an output with the heads in front as the operator gives it."""
    return truth if layout == "BNSD" else truth.swapaxes(1, 2)


def hidden_where(hidden):
    return np.where(hidden, -np.inf, 0.0)


def rules(kind, seq_q, seq_k, seed):
    """Return the keywords of a kind of call, and what they add to the scores."""
    lengths_q, lengths_k = (np.random.default_rng(seed).integers(1, most + 1, BATCH) for most in (seq_q, seq_k))
    row, column = np.arange(seq_q)[:, None], np.arange(seq_k)
    outside = column >= lengths_k.reshape(-1, 1, 1, 1)
    shifted = row + (lengths_k - lengths_q).reshape(-1, 1, 1, 1)
    mask = np.random.default_rng(seed).random((BATCH, 1, seq_q, seq_k)) < 0.3
    shift = random(BATCH, HEADS, seq_q + 1, seq_k + 3, seed=seed).astype(np.float16)
    lengths = {"actual_seq_lengths": numbers(lengths_q), "actual_seq_lengths_kv": numbers(lengths_k)}
    every = {"next_tokens": 2147483647}
    return {
        "no mask, no tokens behind": ({}, 0.0),
        "mask and tokens": ({"attn_mask": Tensor(mask)}, hidden_where(mask | (column > row))),
        "int8 mask": ({"attn_mask": Tensor(mask.astype(np.int8)[:, 0]), **every}, hidden_where(mask)),
        "float16 mask": ({"attn_mask": Tensor(mask.astype(np.float16)[0, 0]), **every}, hidden_where(mask[:1])),
        "all of the mask": ({"attn_mask": Tensor(mask), "sparse_mode": 1}, hidden_where(mask)),
        "causal": ({"attn_mask": Tensor(COMPRESSED), "sparse_mode": 2}, hidden_where(column > row)),
        "causal from the end": (
            {"attn_mask": Tensor(COMPRESSED[None]), "sparse_mode": 3},
            hidden_where(column > row + seq_k - seq_q),
        ),
        "band": (
            {"attn_mask": Tensor(COMPRESSED[None, None]), "sparse_mode": 4, "pre_tokens": 3, "next_tokens": 1},
            hidden_where(abs(column - (row + seq_k - seq_q) + 1) > 2),
        ),
        "shift": ({"pse_shift": Tensor(shift)}, shift[:, :, :seq_q, :seq_k].astype(np.float64)),
        "lengths": (lengths, hidden_where(outside)),
        "lengths and a mask": ({**lengths, "attn_mask": Tensor(mask), "sparse_mode": 1}, hidden_where(mask | outside)),
        "lengths, causal": (
            {**lengths, "attn_mask": Tensor(COMPRESSED), "sparse_mode": 3},
            hidden_where(outside | (column > shifted)),
        ),
        "lengths, band": (
            {**lengths, "attn_mask": Tensor(COMPRESSED), "sparse_mode": 4, "pre_tokens": 3, "next_tokens": 1},
            hidden_where(outside | (abs(column - shifted + 1) > 2)),
        ),
    }[kind]


KINDS = (
    *("no mask, no tokens behind", "mask and tokens", "int8 mask", "float16 mask", "all of the mask", "causal"),
    *("causal from the end", "band", "shift", "lengths", "lengths and a mask", "lengths, causal", "lengths, band"),
)


class Prompts(nn.Cell):
    """The function and the primitive, made as callers do."""

    def __init__(self, layout, kind, fused):
        super().__init__()
        keywords, _ = rules(kind, 7, 12, 0)
        more = {name: keywords[name] for name in ("pre_tokens", "next_tokens", "sparse_mode") if name in keywords}
        sizes = {"input_layout": layout, "num_key_value_heads": KV_HEADS, **more}
        self.operator = PromptFlashAttention(HEADS, SCALE, **sizes)
        self.fused = fused
        if fused:
            self.operator = FusedInferAttentionScore(HEADS, SCALE, softmax_lse_flag=True, **sizes)
        self.sizes = sizes

    def construct(self, query, key, value, mask, lengths_q, lengths_k, shift):
        if self.fused:
            named = {"atten_mask": mask, "pse_shift": shift, "num_heads": HEADS, "scale": SCALE}
            lengths = {"actual_seq_lengths": lengths_q, "actual_seq_lengths_kv": lengths_k}
            second = fused_infer_attention_score(query, [key], (value,), **named, **lengths, **self.sizes)
            return self.operator(query, [key], [value], shift, mask, lengths_q, lengths_k), second
        given = query, key, value, mask, lengths_q, lengths_k, shift
        quantisation = None, None, None, None, None
        return self.operator(*given, *quantisation), prompt_flash_attention(
            *given, *quantisation, HEADS, SCALE, **self.sizes
        )


@pytest.mark.spread
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ("BSH", "BNSD", "BSND", "BNSD_BSND"))
def test_prompts_see_what_their_rules_show(mode, layout, dtype, kind):
    fused = layout in ("BSND", "BNSD_BSND")
    cell = Prompts(layout, kind, fused)
    if fused and kind == "mask and tokens":
        pytest.skip("fused shows all tokens by default")
    for seed in (0, 50):  # the second call has other data
        given, (keywords, added) = arrays(7, 12, seed), rules(kind, 7, 12, seed)
        truth, logsumexp = attention(*given, SCALE, added)
        mask, shift = keywords.get("attn_mask"), keywords.get("pse_shift")
        lengths = [keywords.get(name) for name in ("actual_seq_lengths", "actual_seq_lengths_kv")]
        if lengths[0] is not None:
            for item, lse, length in zip(truth, logsumexp, lengths[0].asnumpy()):
                item[:, length:], lse[:, length:] = 0, -np.inf
        kept = None if lengths[1] is None else lengths[1].asnumpy()
        results = cell(*tensors(given, layout, dtype, kept), mask, *lengths, shift)
        for place, result in enumerate(results):
            if fused:
                result, found = result
                if place == 0:
                    assert_right(found, logsumexp, as_exact_as=dtype)
                else:
                    assert found.shape == (1,) and found.asnumpy()[0] == 0
            assert_right(result, in_layout(truth, layout), dtype)


@pytest.mark.parametrize("backend", ("cpu", "math", "emulator"))
def test_no_backend_reads_what_is_behind_a_length(backend):
    ms.set_context(mode=ms.PYNATIVE_MODE)
    given, lengths = arrays(7, 12), np.array((12, 1, 5))
    truth, _ = attention(*given, SCALE, hidden_where(np.arange(12) >= lengths.reshape(-1, 1, 1, 1)))
    named = {"num_heads": HEADS, "scale_value": SCALE, "num_key_value_heads": KV_HEADS}
    with attention_backend(backend):
        made = tensors(given, "BSH", "float16", lengths)
        output = prompt_flash_attention(*made, actual_seq_lengths_kv=tuple(lengths.tolist()), **named)
        assert_right(output, in_layout(truth, "BSH"), "float16")
        if backend != "emulator":  # the TIK kernels take no bias of float32
            mask = Tensor(np.zeros((BATCH, 12), bool))
            step = incre_flash_attention(made[0][:, 2:3], *made[1:], mask, tuple(lengths.tolist()), **named)
            assert_right(step, in_layout(truth[:, :, 2:3], "BSH"), "float16")


STEPS = ("plain", "lengths", "one length", "mask", "shift", "all")


@pytest.mark.spread
@pytest.mark.parametrize("kind", STEPS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ("BSH", "BNSD", "BSND", "BNSD_BSND", "pages of BSH", "pages of BNSD"))
def test_a_step_sees_the_keys_of_its_sequence(mode, layout, dtype, kind):
    pages, layout = "pages" in layout, layout.rpartition(" ")[2]
    if pages and kind in ("plain", "mask", "shift"):
        pytest.skip("pages need lengths")
    sizes = {"num_heads": HEADS, "scale_value": SCALE, "input_layout": layout, "num_key_value_heads": KV_HEADS}
    fused = {"scale": SCALE, **{name: size for name, size in sizes.items() if name != "scale_value"}}
    primitive = IncreFlashAttention(**sizes)

    def by_function(query, key, value, mask, lengths, shift, table):
        return incre_flash_attention(query, [key], (value,), mask, lengths, shift, block_table=table, **sizes)

    def by_primitive(query, key, value, mask, lengths, shift, table):
        given = query, [key], [value], mask, lengths, shift, None, None, None, None, None, None, None, table
        return primitive(*given)

    def by_fused(query, key, value, mask, lengths, shift, table):
        named = {"actual_seq_lengths_kv": lengths, "block_table": table, "sparse_mode": 2, "next_tokens": 0}
        return fused_infer_attention_score(query, key, value, pse_shift=shift, atten_mask=mask, **named, **fused)[0]

    steps = (by_fused,) if layout in ("BSND", "BNSD_BSND") else (by_function, by_primitive, by_fused)
    runs = [ms.jit(step) if mode == "graph" else step for step in steps]
    for seed in (0, 50):
        query, keys, values = arrays(1, 12, seed)
        lengths = np.random.default_rng(seed).integers(1, 13, BATCH).astype(np.int64)
        if kind == "one length":
            lengths[:] = lengths[0]
        seen = lengths if kind in ("lengths", "one length", "all") else np.full(BATCH, 12)
        mask = np.random.default_rng(seed).random((BATCH, 1, 1, 12)) < 0.3
        mask[1] = True  # it sees nothing
        shift = random(1, HEADS, 1, 12, seed=seed).astype(np.float16)
        added = hidden_where(np.arange(12) >= seen.reshape(-1, 1, 1, 1))
        if kind in ("mask", "all"):
            added = added + hidden_where(mask)
        if kind in ("shift", "all"):
            added = added + shift
        truth, _ = attention(query, keys, values, SCALE, added)
        made, table = tensors((query, keys, values), layout, dtype, seen), None
        if pages:
            table, *made[1:] = paged(made[1:], layout, seen, dtype)
        more = [
            Tensor(mask.reshape(BATCH, 12)) if kind in ("mask", "all") else None,
            {"one length": (int(lengths[0]),), "lengths": Tensor(lengths), "all": tuple(lengths.tolist())}.get(kind),
            Tensor(shift) if kind in ("shift", "all") else None,
        ]
        for run in runs:
            result = run(*made, *more, table)
            assert result.shape == (in_layout(truth, layout) if layout == "BNSD_BSND" else made[0]).shape
            assert_right(result, in_layout(truth, layout), dtype)


def paged(made, layout, lengths, dtype):
    """Return a table and caches of blocks of 4, NaN without a token."""
    places = np.random.default_rng(0).permutation(11)[:9].reshape(BATCH, 3)
    blocks = []
    for tensor in made:
        array = tensor.astype(ms.float32).asnumpy()
        if layout == "BSH":
            cache = np.full((11, 4, array.shape[-1]), np.nan, np.float32)
            cache[places] = array.reshape(BATCH, 3, 4, -1)
        else:
            cache = np.full((11, KV_HEADS, 4, DIM), np.nan, np.float32)
            cache[places] = array.reshape(BATCH, KV_HEADS, 3, 4, DIM).swapaxes(1, 2)
        blocks.append(Tensor(cache).astype(dtype_named(dtype)))
    table = np.where(np.arange(3) * 4 < np.reshape(lengths, (-1, 1)), places, -1)
    return numbers(table), *blocks


def test_graphs_for_dynamic_shapes_serve_prompts_and_steps():
    class Both(nn.Cell):
        def __init__(self):
            super().__init__()
            sizes = {"num_key_value_heads": KV_HEADS, "input_layout": "BSH"}
            self.prompt = PromptFlashAttention(HEADS, SCALE, **sizes)
            self.step = IncreFlashAttention(HEADS, scale_value=SCALE, **sizes)

        def construct(self, query, last, key, value, lengths):
            return self.prompt(query, key, value, None, lengths, lengths), self.step(
                last, [key], [value], None, lengths
            )

    if VERSION < (2, 7):
        pytest.skip("the native kernel serves graphs for dynamic shapes from 2.7 on")
    ms.set_context(mode=ms.GRAPH_MODE)
    cell, free = Both(), [Tensor(shape=(None, None, size), dtype=ms.float32) for size in (64, 32, 32)]
    last, length = Tensor(shape=(None, 1, 64), dtype=ms.float32), Tensor(shape=(None,), dtype=ms.int32)
    cell.set_inputs(free[0], last, *free[1:], length)
    for seq, seed in ((7, 0), (12, 4)):
        given, lengths = arrays(seq, seq, seed), np.array((seq, 1, 5))
        added = hidden_where(np.arange(seq) >= lengths.reshape(-1, 1, 1, 1))
        truth, _ = attention(*given, SCALE, added)
        steps, _ = attention(given[0][:, :, :1], *given[1:], SCALE, added)
        for item, length in zip(truth, lengths):
            item[:, length:] = 0
        made = tensors(given, "BSH", "float32", lengths)
        prompt, step = cell(made[0], made[0][:, :1], *made[1:], numbers(lengths))
        assert_right(prompt, in_layout(truth, "BSH"))
        assert_right(step, in_layout(steps, "BSH"))


def test_lengths_that_no_sequence_has_are_an_error_or_nan(mode):
    given = tensors(arrays(7, 12), "BSH", "float32")
    sizes = {"num_heads": HEADS, "num_key_value_heads": KV_HEADS}

    def of_keys(query, key, value, lengths):
        return prompt_flash_attention(query, key, value, actual_seq_lengths_kv=lengths, **sizes)

    def of_queries(query, key, value, lengths):
        return prompt_flash_attention(query, key, value, None, lengths, **sizes)

    calls = ("actual_seq_lengths_kv", of_keys, (13, 1, -1)), ("actual_seq_lengths", of_queries, (8, 1, -1))
    for name, call, lengths in calls:
        if mode == "pynative":
            with pytest.raises(ValueError, match=f"{name}: got "):
                call(*given, numbers(lengths))
        else:
            nan = np.isnan(ms.jit(call)(*given, numbers(lengths)).asnumpy())
            assert nan[0].all() and not nan[1].any() and nan[2].all()


REFUSED = {
    "quantised": (
        prompt_flash_attention,
        {"quant_scale1": Tensor([1.0])},
        "quant_scale1: got a Tensor, allowed is None",
    ),
    "mode": (fused_infer_attention_score, {"antiquant_mode": 1}, "antiquant_mode: got 1, allowed is 0"),
    "prefix": (fused_infer_attention_score, {"key_shared_prefix": Tensor([1.0])}, "key_shared_prefix: got a Tensor"),
    "padding": (incre_flash_attention, {"kv_padding_size": Tensor([1])}, "kv_padding_size: got a Tensor"),
    "unknown": (prompt_flash_attention, {"scale": 1.0}, "prompt_flash_attention: got an argument 'scale'"),
    "layout": (prompt_flash_attention, {"input_layout": "BSND"}, "input_layout: got 'BSND', allowed are BSH, BNSD"),
    "sparse": (prompt_flash_attention, {"sparse_mode": 5}, "sparse_mode: got 5, allowed is an integer from 0 to 4"),
    "heads": (prompt_flash_attention, {"num_key_value_heads": 4}, "num_key_value_heads: got 4"),
    "mask": (prompt_flash_attention, {"attn_mask": Tensor(np.ones((7, 11), bool))}, r"attn_mask: got shape \(7, 11\)"),
    "shift": (prompt_flash_attention, {"pse_shift": Tensor(np.ones((1, 4, 7, 9), np.float32))}, "pse_shift: got shape"),
    "lengths": (
        prompt_flash_attention,
        {"actual_seq_lengths": numbers((1, 2))},
        r"actual_seq_lengths: got shape \(2,\)",
    ),
    "one query": (incre_flash_attention, {}, r"query: got shape \(3, 7, 64\), allowed is one query"),
    "pages": (fused_infer_attention_score, {"block_table": numbers([[0]])}, "block_table: got one"),
}


@pytest.mark.spread
@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_is_named(mode, case):
    function, named, message = REFUSED[case]
    named = {"num_heads": HEADS, "num_key_value_heads": KV_HEADS, **named}
    query, key, value = tensors(arrays(7, 12), "BSH", "float32")

    def call(query, key, value):
        return function(query, key, value, **named)

    with pytest.raises((TypeError, ValueError), match=message):
        (ms.jit(call) if mode == "graph" else call)(query, key, value)


def test_a_copy_computes_the_same(mode):
    given, lengths = tensors(arrays(7, 12), "BSH", "float32"), numbers((7, 1, 5))
    first = PromptFlashAttention(HEADS, SCALE, num_key_value_heads=KV_HEADS).shard(((1, 1, 1),))
    cells = Calls(first, copy.deepcopy(first)), Calls(copy.deepcopy(first))
    results = [one.asnumpy() for cell in (*cells, copy.deepcopy(cells[0])) for one in cell(*given, None, lengths)]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])
