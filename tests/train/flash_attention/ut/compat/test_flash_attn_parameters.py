"""Compare `import flash_attn` with float64 NumPy over a sample of its own parameters. A fixed seed draws shapes,
head sizes, kinds of heads, masks, pages and caches from its test file.
"""

import random as chance

import flash_attention
import mindspore as ms
import numpy as np
import pytest
from flash_attention.compat.ascend910 import uninstall
from mindspore import Parameter, Tensor, nn, ops

from tests.train.flash_attention.support.arrays import pages
from tests.train.flash_attention.support.case_list import covering
from tests.train.flash_attention.support.flash_attn_truth import CLOSE, exact, random, shown, slopes_of, turned
from tests.train.flash_attention.support.modes import in_mode
from tests.train.flash_attention.support.versions import dtype_named

HEAD_DIMS = (32, 40, 59, 64, 80, 96, 111, 128, 160, 192, 224, 256)
LENGTHS = ((113, 203), (128, 217), (113, 211), (108, 256), (256, 512), (512, 256), (333, 332), (1, 147))
DECODED = ((1, 239), (3, 799), (1, 128), (1, 339), (3, 1024), (64, 256), (16, 800), (128, 128))
CAUSAL = ((1, 239), (3, 799), (127, 512), (127, 513), (113, 203), (128, 217), (108, 256), (256, 512))
KV_HEADS = (6, 1, 2)  # of 6 heads: as many, one, grouped
SLOPES = ("none", "heads", "batch")


@pytest.fixture(scope="module")
def flash_attn():
    """Provide the shim: one line, and the name is there."""
    flash_attention.install(flash_attn=True)
    import flash_attn
    import flash_attn.bert_padding

    yield flash_attn
    uninstall()


def drawn(count: int, seed: int, **choices) -> list:
    """Draw `count` of all combinations, each a dict with one choice for each name."""
    draw = chance.Random(seed)
    return [{name: draw.choice(values) for name, values in choices.items()} for _ in range(count)]


def parameters(cases: list) -> list:
    """Return the cases as parameters. Every day those run that together have every choice."""
    everyday = covering(lambda at: set(map(str, cases[at].items())), range(len(cases)), lambda at: at)
    names = ["-".join(f"{name}={value}" for name, value in case.items()).replace(" ", "") for case in cases]
    return [
        pytest.param(case, id=name, marks=[pytest.mark.slow] * (at not in everyday))
        for at, (case, name) in enumerate(zip(cases, names))
    ]


def window_of(local: bool, seq_k: int, seed: int) -> tuple:
    """Return a random window, as the tests there draw it, or none."""
    draw = chance.Random(seed)
    return (draw.randrange(seq_k), draw.randrange(seq_k)) if local else (-1, -1)


OUTPUTS = drawn(
    20,
    1,
    lengths=LENGTHS,
    dim=HEAD_DIMS,
    kv_heads=KV_HEADS,
    causal=(False, True),
    local=(False, True),
    alibi=SLOPES,
    softcap=(0.0, 50.0),
    dtype=("float16", "bfloat16"),
)


@pytest.mark.parametrize("case", parameters(OUTPUTS))
def test_output_and_gradients(flash_attn, case):
    (seq_q, seq_k), dim, kv_heads = case["lengths"], case["dim"], case["kv_heads"]
    window, kind = window_of(case["local"], seq_k, dim), dtype_named(case["dtype"])
    given, slopes = slopes_of(case["alibi"], 2, 6)
    shapes = (2, seq_q, 6, dim), (2, seq_k, kv_heads, dim), (2, seq_k, kv_heads, dim), (2, seq_q, 6, dim)
    tensors = [Tensor(random(*shape, seed=seed).astype(np.float32)).astype(kind) for seed, shape in enumerate(shapes)]
    q, k, v, upstream = (tensor.astype(ms.float32).asnumpy() for tensor in tensors)
    rules = {"causal": case["causal"], "window_size": window, "softcap": case["softcap"], "alibi_slopes": given}

    def attend(*tensors, **more):
        return flash_attn.flash_attn_func(*tensors, **rules, **more)

    output, logsumexp, nothing = attend(*tensors[:3], return_attn_probs=True, deterministic=True)
    again = attend(*tensors[:3]).astype(ms.float32)
    assert nothing is None and np.array_equal(again.asnumpy(), output.astype(ms.float32).asnumpy())
    gradients = ops.GradOperation(get_all=True, sens_param=True)(lambda q, k, v: attend(q, k, v))(*tensors)
    results = [tensor.astype(ms.float32).asnumpy() for tensor in (output, *gradients)]
    visible = shown(seq_q, seq_k, case["causal"], window)
    unit = 2.0**-10 if case["dtype"] == "float16" else 2.0**-7
    for item in range(2):
        expected = exact(
            q[item], k[item], v[item], visible, softcap=case["softcap"], slopes=slopes[item], upstream=upstream[item]
        )
        np.testing.assert_allclose(logsumexp.asnumpy()[item], expected[1], rtol=1e-3, atol=1e-3)
        for result, wanted in zip(results, (expected[0], *expected[2:])):
            np.testing.assert_allclose(
                result[item], wanted, rtol=4 * unit, atol=6 * unit * max(1, np.abs(wanted).max())
            )


PAGED = drawn(
    18,
    2,
    lengths=CAUSAL,
    swapped=(False, True),
    dim=HEAD_DIMS[:8],
    kv_heads=KV_HEADS,
    local=(False, True),
    page=(None, 16, 256),
    alibi=SLOPES,
    mode=("pynative", "graph"),
    causal=(False, True, True),
)


@pytest.mark.parametrize("case", parameters(PAGED))
def test_varlen(flash_attn, case):
    """Queries are rows of a padded batch, keys are rows or in pages. Entries past the end of a sequence are garbage."""
    seq_q, seq_k = case["lengths"][:: -1 if case["swapped"] else 1]
    batch, dim, kv_heads, page = 3, case["dim"], case["kv_heads"], case["page"]
    draw = np.random.default_rng(dim)
    lengths_q, lengths_k = (draw.integers(max(1, most - 20), most + 1, batch) for most in (seq_q, seq_k))
    window = window_of(case["local"], seq_k, dim)
    given, slopes = slopes_of(case["alibi"], batch, 6)
    q, k, v = random(batch, seq_q, 6, dim), *(random(batch, seq_k, kv_heads, dim, seed=seed) for seed in (1, 2))
    padding = flash_attn.bert_padding
    rows_q, indices, ends_q, most_q, _ = padding.unpad_input(Tensor(q), Tensor(np.arange(seq_q) < lengths_q[:, None]))
    seen = Tensor(np.arange(seq_k) < lengths_k[:, None])
    (keys, _, ends_k, most_k, _), values = padding.unpad_input(Tensor(k), seen), padding.unpad_input(Tensor(v), seen)[0]
    table = None
    if page is not None:
        k, v, keys, values, table = pages(lengths_k, page, kv_heads, dim, dim, np.float16)
        table[1, -(-lengths_k[1] // page) :] = -7
        keys, values, table = Tensor(keys), Tensor(values), Tensor(table)
    call = Varlen(flash_attn, case["causal"], window, most_q, most_k)
    with in_mode(case["mode"]):
        output, logsumexp = call(rows_q, keys, values, ends_q, ends_k, given, table)
    result = padding.pad_input(output, indices, batch, seq_q).asnumpy()
    starts = ends_q.asnumpy()
    for item, (length_q, length_k) in enumerate(zip(lengths_q, lengths_k)):
        visible = shown(length_q, length_k, case["causal"], window)
        parts = q[item, :length_q], k[item][:length_k], v[item][:length_k]
        expected = exact(*parts, visible, slopes=slopes[item])
        np.testing.assert_allclose(result[item, :length_q], expected[0], **CLOSE)
        own = logsumexp.asnumpy()[:, starts[item] : starts[item + 1]]
        np.testing.assert_allclose(own, expected[1], rtol=1e-3, atol=1e-3)
        assert not result[item, length_q:].any()


class Varlen(nn.Cell):
    """A call of packed sequences; (output, logsumexp)."""

    def __init__(self, flash_attn, causal, window, most_q, most_k):
        super().__init__()
        self.call, self.most = (flash_attn.flash_attn_varlen_func,), (most_q, most_k)
        self.rules = {"causal": causal, "window_size": window, "return_attn_probs": True}

    def construct(self, q, k, v, ends_q, ends_k, slopes, table):
        results = self.call[0](
            q, k, v, ends_q, ends_k, *self.most, alibi_slopes=slopes, block_table=table, **self.rules
        )
        return results[0], results[1]


class Decode(nn.Cell):
    """A cache as Parameters, and a call that may append to it."""

    def __init__(self, flash_attn, k_cache, v_cache, **rules):
        super().__init__()
        self.call = (flash_attn.flash_attn_with_kvcache,)
        self.k_cache = Parameter(Tensor(k_cache), name="k_cache", requires_grad=False)
        self.v_cache = Parameter(Tensor(v_cache), name="v_cache", requires_grad=False)
        self.rules = rules

    def construct(self, q, k, v, cos, sin, cache_seqlens, cache_batch_idx, cache_leftpad, block_table, alibi_slopes):
        return self.call[0](
            q, self.k_cache, self.v_cache, k, v, cos, sin, cache_seqlens, cache_batch_idx, cache_leftpad, block_table,
            alibi_slopes=alibi_slopes, **self.rules,
        )  # fmt: skip


CACHES = drawn(
    20,
    3,
    mode=("pynative", "pynative", "graph"),
    lengths=DECODED,
    dim=(32, 59, 64, 80, 128, 256),
    kv_heads=KV_HEADS,
    new=(False, True),
    causal=(False, True),
    local=(False, True),
    alibi=SLOPES,
    rotary=(0.0, 0.5, 1.0),
    interleaved=(False, True),
    page=(None, 16, 256),
    leftpad=(False, True),
    indexed=(False, True),
    splits=(0, 1),
)


@pytest.mark.parametrize("case", parameters(CACHES))
def test_kvcache(flash_attn, case):
    (seq_q, most), dim, kv_heads, page = case["lengths"], case["dim"], case["kv_heads"], case["page"]
    batch, seed = 2, dim + most
    draw = np.random.default_rng(seed)
    new = min(seq_q, most) if case["new"] else 0
    rotary_dim = int(case["rotary"] * dim) // 16 * 16 if new else 0
    most = -(-most // page) * page if page else most
    lengths = draw.integers(0 if new else 1, most - new + 1, batch).astype(np.int32)
    leftpad = draw.integers(0, lengths + 1).astype(np.int32) // 2 if case["leftpad"] else None
    window = window_of(case["local"], most, seed)
    given, slopes = slopes_of(case["alibi"], batch, 6)
    rows = batch * most // page if page else batch + 2
    caches = [random(rows, page or most, kv_heads, dim, seed=n) for n in (1, 2)]
    table = draw.permutation(rows).astype(np.int32).reshape(batch, -1) if page else None
    index = draw.permutation(rows)[:batch].astype(np.int32) if case["indexed"] and not page else None
    q, k, v = random(batch, seq_q, 6, dim, seed=3), *(random(batch, new, kv_heads, dim, seed=n) for n in (4, 5))
    angles = np.arange(most + seq_q)[:, None] * 50.0 ** -(np.arange(0, max(rotary_dim, 2), 2) / max(rotary_dim, 2))
    cos, sin = (function(angles).astype(np.float16) for function in (np.cos, np.sin))
    optional = {"k": k if new else None, "v": v if new else None, "cache_seqlens": lengths, "cache_leftpad": leftpad}
    optional |= {"cache_batch_idx": index, "block_table": table}
    optional |= {name: array if rotary_dim else None for name, array in (("rotary_cos", cos), ("rotary_sin", sin))}
    names = "k", "v", "rotary_cos", "rotary_sin", "cache_seqlens", "cache_batch_idx", "cache_leftpad", "block_table"
    tensors = {name: Tensor(optional[name]) for name in names if optional[name] is not None}
    rules = {"causal": case["causal"], "window_size": window, "rotary_interleaved": case["interleaved"]}
    net = Decode(flash_attn, *caches, num_splits=case["splits"], return_softmax_lse=True, **rules)
    with in_mode(case["mode"]):
        output, logsumexp = net(Tensor(q), *map(tensors.get, names), given)
    held = net.k_cache, net.v_cache
    copies = [Tensor(cache.copy()) for cache in caches]
    plain = flash_attn.flash_attn_with_kvcache(Tensor(q), *copies, **tensors, alibi_slopes=given, **rules)
    for item, length in enumerate(lengths):
        own = table[item] if page else [item if index is None else index[item]]
        keys, values = (cache.asnumpy()[own].reshape(-1, kv_heads, dim) for cache in held)
        before = [cache[own].reshape(-1, kv_heads, dim) for cache in caches]
        turned_q, turned_k = q[item], k[item]
        if rotary_dim:
            steps = np.arange(seq_q) if case["causal"] or max(window) >= 0 else np.zeros(seq_q, int)
            turned_q = turned(q[item], cos, sin, steps + length, case["interleaved"])
            turned_k = turned(k[item], cos, sin, np.arange(new) + length, case["interleaved"])
        end = length + new
        np.testing.assert_allclose(keys[length:end], turned_k, rtol=1e-3, atol=1e-3)
        np.testing.assert_array_equal(values[length:end], v[item])
        for old, now in zip(before, (keys, values)):
            np.testing.assert_array_equal(np.delete(now, slice(length, end), 0), np.delete(old, slice(length, end), 0))
        visible = shown(seq_q, end, case["causal"], window, 0 if leftpad is None else leftpad[item])
        expected = exact(turned_q.astype(np.float16), keys[:end], values[:end], visible, slopes=slopes[item])
        np.testing.assert_allclose(output.asnumpy()[item], expected[0], **CLOSE)
        np.testing.assert_allclose(plain.asnumpy()[item], expected[0], **CLOSE)
        np.testing.assert_allclose(logsumexp.asnumpy()[item], expected[1], rtol=1e-3, atol=2e-3)


def test_concatenated_sequences(flash_attn):
    """The first item has two sequences, the second none, and one sequence fills the third."""
    x, lengths = random(3, 6, 2, 8), np.array([[2, 3, 0, 0, 0, 0], [0] * 6, [6, 0, 0, 0, 0, 0]])
    padding = flash_attn.bert_padding
    rows, indices, ends, most = padding.unpad_input_for_concatenated_sequences(Tensor(x), Tensor(lengths))
    assert ends.asnumpy().tolist() == [0, 2, 5, 11] and ends.dtype == ms.int32 and most == 6
    assert indices.asnumpy().tolist() == [*range(5), *range(12, 18)]
    assert np.array_equal(rows.asnumpy(), np.concatenate((x[0, :5], x[2])))
    output = flash_attn.flash_attn_varlen_func(rows, rows, rows, ends, ends, most, most, causal=True)
    for first, end in ((0, 2), (2, 5), (5, 11)):
        part = rows.asnumpy()[first:end]
        wanted = exact(part, part, part, shown(end - first, end - first, True))[0]
        np.testing.assert_allclose(output.asnumpy()[first:end], wanted, **CLOSE)
    wrongs = (
        (lengths * 2, "got 12 tokens of an item"),
        (-lengths, "got -6"),
        (lengths[:2], "got shape"),
        (lengths / 2, "got dtype float64"),
    )
    for given in ((x, Tensor(lengths)), (Tensor(x), lengths)):
        with pytest.raises(TypeError, match="got ndarray, allowed is a Tensor"):
            padding.unpad_input(*given)
    for wrong, message in wrongs:
        with pytest.raises((TypeError, ValueError), match=f"attention_mask_in_length: {message}"):
            padding.unpad_input_for_concatenated_sequences(Tensor(x), Tensor(wrong))
    halves = padding.unpad_input(Tensor(x), Tensor((lengths > 0) * np.float32(0.5)))
    assert halves[1].asnumpy().tolist() == [0, 1, 12]


def test_a_key_without_a_page_is_nan(flash_attn):
    """A sequence is NaN if it needs a missing page, or is longer than its pages. Wrong arguments are refused."""
    cache, q = Tensor(random(4, 16, 2, 32)), Tensor(random(5, 2, 32, seed=1))
    ends_q = Tensor([0, 2, 5], ms.int32)

    def call(table, ends_k, k=cache):
        table, ends_k = Tensor(np.array(table, np.int32)), Tensor(ends_k, ms.int32)
        return flash_attn.flash_attn_varlen_func(q, k, cache, ends_q, ends_k, 3, 30, block_table=table).asnumpy()

    for table, ends_k in (([[0, 4], [2, 3]], [0, 20, 50]), ([[0, -1], [2, 3]], [0, 17, 40])):
        output = call(table, ends_k)
        assert np.isnan(output[:2]).all() and np.isfinite(output[2:]).all()
    assert np.isfinite(call([[0, 4], [2, 3]], [0, 16, 40])).all()
    output = call([[0, 1], [2, 3]], [0, 20, 65])
    assert np.isfinite(output[:2]).all() and np.isnan(output[2:]).all()
    with pytest.raises(ValueError, match=r"cu_seqlens_k: got \(0, 20, 10\), allowed are cumulative lengths"):
        call([[0, 1], [2, 3]], [0, 20, 10])
    with pytest.raises(ValueError, match=r"k: got shape \(64, 2, 32\), allowed is \(num_blocks, page_block_size"):
        call([[0, 1], [2, 3]], [0, 20, 40], cache.reshape((64, 2, 32)))
    with pytest.raises(ValueError, match=r"cu_seqlens_k: got shape \(2,\), allowed is \(batch \+ 1,\) = \(3,\)"):
        call([[0, 1], [2, 3]], [0, 20])
