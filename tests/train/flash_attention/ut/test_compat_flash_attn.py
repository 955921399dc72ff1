"""The functions of flash_attn against float64 NumPy, for some of the parameters that its own tests go through."""

import flash_attention
import mindspore as ms
import numpy as np
import pytest
from flash_attention.compat import flash_attn
from flash_attention.compat.flash_attn.bert_padding import index_first_axis, pad_input, unpad_input
from flash_attention.compat.flash_attn.layers.rotary import apply_rotary_emb
from mindspore import Parameter, Tensor, nn, ops

from tests.train.flash_attention.modes import in_mode

# float16 results of sums in float32 on stored float16 tensors: a unit in the last place of numbers around one.
CLOSE = {"rtol": 2e-3, "atol": 2e-3}


def random(*shape, seed=0) -> np.ndarray:
    """Normal random float16 elements."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


def shown(seq_q: int, seq_k: int, causal=False, window=(-1, -1), leftpad=0) -> np.ndarray:
    """Boolean (seq_q, seq_k): what a query sees, the last lines of both meeting."""
    row, column = np.arange(seq_q)[:, None] + seq_k - seq_q, np.arange(seq_k)
    left, right = window
    visible = np.broadcast_to(column >= leftpad, (seq_q, seq_k)).copy()
    if causal:
        right = 0
    if right >= 0:
        visible &= column <= row + right
    if left >= 0:
        visible &= column >= row - left
    return visible


def exact(q, k, v, visible, *, scale=None, softcap=0.0, slopes=None, upstream=None) -> tuple:
    """One sequence, (seq, heads, dim) each: output, logsumexp (heads, seq), and gradients where `upstream` is given."""
    q, k, v = (array.astype(np.float64) for array in (q, k, v))
    group = q.shape[1] // k.shape[1]
    wide_k, wide_v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = np.einsum("qhd,khd->hqk", q, wide_k) * scale
    slope = 1.0
    if softcap:
        squashed = np.tanh(scores / softcap)
        scores, slope = squashed * softcap, 1 - squashed**2
    if slopes is not None:
        distance = np.abs(np.arange(len(q))[:, None] + len(k) - len(q) - np.arange(len(k)))
        scores = scores - np.asarray(slopes, np.float64)[:, None, None] * distance
    scores = np.where(visible, scores, -np.inf)
    top = scores.max(-1, keepdims=True, initial=-1e300)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    probability = weights / np.where(total == 0, 1, total)
    output = np.einsum("hqk,khd->qhd", probability, wide_v)
    with np.errstate(divide="ignore"):
        logsumexp = (np.log(total) + top)[..., 0]
    if upstream is None:
        return output, logsumexp
    upstream = upstream.astype(np.float64)
    d_probability = np.einsum("qhd,khd->hqk", upstream, wide_v)
    d_scores = probability * (d_probability - (probability * d_probability).sum(-1, keepdims=True)) * slope * scale
    d_k, d_v = np.einsum("hqk,qhd->khd", d_scores, q), np.einsum("hqk,qhd->khd", probability, upstream)
    grouped = len(k), k.shape[1], group, -1
    return (
        *(output, logsumexp, np.einsum("hqk,khd->qhd", d_scores, wide_k)),
        *(d_k.reshape(grouped).sum(2), d_v.reshape(grouped).sum(2)),
    )


def slopes_of(kind: str, batch: int, heads: int):
    """None, or slopes for the heads, or for each item too, as the caller gives them and as (batch, heads)."""
    values = np.random.default_rng(3).uniform(0.0, 0.3, (batch, heads)).astype(np.float32)
    if kind == "none":
        return None, [None] * batch
    return (Tensor(values), values) if kind == "batch" else (Tensor(values[0]), [values[0]] * batch)


# seq_q, seq_k, head_dim, kv_heads of 6, causal, window, softcap, slopes
CALLS = (
    (113, 203, 40, 6, True, (-1, -1), 0.0, "none"),
    (128, 217, 64, 2, False, (20, 31), 0.0, "batch"),
    (113, 211, 32, 1, True, (40, 7), 15.0, "heads"),
    (108, 70, 59, 2, True, (-1, -1), 0.0, "heads"),
    (64, 64, 96, 6, False, (-1, -1), 30.0, "none"),
)


@pytest.mark.parametrize("packing", ("apart", "kv", "qkv"))
@pytest.mark.parametrize("call", range(len(CALLS)))
def test_batches(call, packing):
    seq_q, seq_k, dim, kv_heads, causal, window, softcap, kind = CALLS[call]
    if packing == "qkv":
        seq_k, kv_heads = seq_q, 6
    given, slopes = slopes_of(kind, 2, 6)
    q, k, v = random(2, seq_q, 6, dim), random(2, seq_k, kv_heads, dim, seed=1), random(2, seq_k, kv_heads, dim, seed=2)
    upstream = random(2, seq_q, 6, dim, seed=4)
    rules = {"causal": causal, "window_size": window, "softcap": softcap, "alibi_slopes": given}
    if packing == "apart":
        function, tensors = flash_attn.flash_attn_func, (q, k, v)
    elif packing == "kv":
        function, tensors = flash_attn.flash_attn_kvpacked_func, (q, np.stack((k, v), 2))
    else:
        function, tensors = flash_attn.flash_attn_qkvpacked_func, (np.stack((q, k, v), 2),)
    tensors = [Tensor(array) for array in tensors]
    output, logsumexp, nothing = function(*tensors, **rules, return_attn_probs=True, deterministic=True)
    assert nothing is None
    assert np.array_equal(function(*tensors, **rules).asnumpy(), output.asnumpy())

    def loss(*tensors):
        return (function(*tensors, **rules).astype(ms.float32) * Tensor(upstream).astype(ms.float32)).sum()

    gradients = ops.grad(loss, tuple(range(len(tensors))))(*tensors)
    gradients = [gradients] if len(tensors) == 1 else list(gradients)
    packed = gradients.pop().asnumpy()
    if packing != "apart":
        gradients = [gradient.asnumpy() for gradient in gradients] + list(np.moveaxis(packed, 2, 0))
    else:
        gradients = [gradient.asnumpy() for gradient in gradients] + [packed]
    visible = shown(seq_q, seq_k, causal, window)
    for item in range(2):
        expected = exact(
            q[item], k[item], v[item], visible, softcap=softcap, slopes=slopes[item], upstream=upstream[item]
        )
        np.testing.assert_allclose(output.asnumpy()[item], expected[0], **CLOSE)
        np.testing.assert_allclose(logsumexp.asnumpy()[item], expected[1], rtol=1e-4, atol=1e-4)
        for gradient, wanted in zip(gradients, expected[2:]):
            np.testing.assert_allclose(gradient[item], wanted, rtol=4e-3, atol=1e-2)


@pytest.mark.parametrize("packing", ("apart", "kv", "qkv"))
@pytest.mark.parametrize("causal, window, kind", ((True, (-1, -1), "none"), (False, (9, 4), "batch")))
def test_padded_batches_as_rows(packing, causal, window, kind):
    batch, seq, heads, dim = 3, 50, 6, 32
    lengths_q = np.array([50, 11, 30])
    lengths_k = lengths_q if packing == "qkv" else np.array([40, 50, 7])
    kv_heads = heads if packing == "qkv" else 2
    masks = [np.arange(seq) < lengths[:, None] for lengths in (lengths_q, lengths_k)]
    q, k, v = random(batch, seq, heads, dim), *(random(batch, seq, kv_heads, dim, seed=n) for n in (1, 2))
    rows_q, indices_q, ends_q, most_q, used = unpad_input(Tensor(q), Tensor(masks[0]))
    (rows_k, _, ends_k, most_k, _), rows_v = (
        unpad_input(Tensor(k), Tensor(masks[1])),
        unpad_input(Tensor(v), Tensor(masks[1]))[0],
    )
    assert used.asnumpy().tolist() == lengths_q.tolist() and most_q == lengths_q.max()
    assert ends_q.asnumpy().tolist() == [0, *np.cumsum(lengths_q)]
    given, slopes = slopes_of(kind, batch, heads)
    rules = {"causal": causal, "window_size": window, "alibi_slopes": given, "return_attn_probs": True}
    if packing == "apart":
        call = flash_attn.flash_attn_varlen_func, (rows_q, rows_k, rows_v, ends_q, ends_k, most_q, most_k)
    elif packing == "kv":
        rows = ops.stack((rows_k, rows_v), 1)
        call = flash_attn.flash_attn_varlen_kvpacked_func, (rows_q, rows, ends_q, ends_k, most_q, most_k)
    else:
        rows = ops.stack((rows_q, rows_k, rows_v), 1)
        call = flash_attn.flash_attn_varlen_qkvpacked_func, (rows, ends_q, most_q)
    output, logsumexp, nothing = call[0](*call[1], **rules)
    assert nothing is None
    padded = pad_input(output, indices_q, batch, seq).asnumpy()
    for item, (length_q, length_k) in enumerate(zip(lengths_q, lengths_k)):
        tensors = q[item, :length_q], k[item, :length_k], v[item, :length_k]
        expected = exact(*tensors, shown(length_q, length_k, causal, window), slopes=slopes[item])
        np.testing.assert_allclose(padded[item, :length_q], expected[0], **CLOSE)
        assert not padded[item, length_q:].any()
        rows = slice(ends_q.asnumpy()[item], ends_q.asnumpy()[item + 1])
        np.testing.assert_allclose(logsumexp.asnumpy()[:, rows], expected[1], rtol=1e-4, atol=1e-4)


def test_padding_has_its_gradient():
    mask = np.array([[1, 1, 0], [1, 0, 0]])
    x = random(2, 3, 4)

    def loss(x):
        rows, indices, *_ = unpad_input(x, Tensor(mask))
        return (pad_input(rows * rows, indices, 2, 3)).sum()

    np.testing.assert_array_equal(ops.grad(loss)(Tensor(x)).asnumpy(), 2 * x * mask[..., None])
    unused = np.array([[0, 0, 1], [0, 0, 0]])
    rows, indices, ends, most, used = unpad_input(Tensor(x), Tensor(mask), Tensor(unused))
    assert indices.asnumpy().tolist() == [0, 1, 2, 3] and ends.asnumpy().tolist() == [0, 3, 4]
    assert most == 3 and used.asnumpy().tolist() == [2, 1]
    np.testing.assert_array_equal(rows.asnumpy(), index_first_axis(Tensor(x.reshape(6, 4)), indices).asnumpy())


def test_dropout_is_drawn_anew_and_unbiased():
    q = Tensor(random(1, 64, 2, 16))
    ones = ops.ones((1, 64, 2, 16), ms.float16)
    ms.set_seed(1)
    first, second = (flash_attn.flash_attn_func(q, q, ones, dropout_p=0.25).asnumpy() for _ in range(2))
    assert not np.array_equal(first, second)
    assert abs(np.mean([first, second]) - 1) < 0.02


def turned(x, cos, sin, positions, interleaved) -> np.ndarray:
    """(seq, heads, dim) by the angles of its positions."""
    result, half = x.astype(np.float64), cos.shape[1]
    first = slice(0, 2 * half, 2) if interleaved else slice(0, half)
    second = slice(1, 2 * half, 2) if interleaved else slice(half, 2 * half)
    a, b = result[..., first].copy(), result[..., second].copy()
    c, s = (table.astype(np.float64)[positions][:, None] for table in (cos, sin))
    result[..., first], result[..., second] = a * c - b * s, a * s + b * c
    return result


class Decode(nn.Cell):
    """A cache as Parameters, and a call that may append to it."""

    def __init__(self, k_cache, v_cache, **rules):
        super().__init__()
        self.k_cache = Parameter(Tensor(k_cache), name="k_cache", requires_grad=False)
        self.v_cache = Parameter(Tensor(v_cache), name="v_cache", requires_grad=False)
        self.rules = rules

    def construct(self, q, k, v, cos, sin, cache_seqlens, cache_batch_idx, cache_leftpad, block_table, alibi_slopes):
        return flash_attn.flash_attn_with_kvcache(
            q, self.k_cache, self.v_cache, k, v, cos, sin, cache_seqlens, cache_batch_idx, cache_leftpad, block_table,
            alibi_slopes=alibi_slopes, **self.rules,
        )  # fmt: skip


# seq_q, new keys, page or 0, causal, window, rotary_dim, interleaved, leftpad, batch index, slopes, logsumexp
CACHES = (
    (1, 1, 0, False, (-1, -1), 16, True, False, False, "none", False),
    (3, 3, 16, True, (-1, -1), 32, False, False, False, "batch", False),
    (5, 2, 0, True, (12, -1), 0, True, False, True, "heads", False),
    (4, 0, 8, False, (-1, -1), 0, True, False, False, "none", True),
    (3, 3, 0, False, (-1, -1), 16, False, True, True, "batch", True),
    (4, 4, 16, False, (9, 1), 32, True, False, False, "heads", False),
    (1, 1, 0, True, (-1, -1), 16, True, True, False, "none", False),
)
IN_GRAPHS = (1, 2, 4)  # at the end and elsewhere, in pages and rows


@pytest.mark.parametrize(
    "mode, case",
    [("pynative", case) for case in range(len(CACHES))] + [("graph", case) for case in IN_GRAPHS],
)
def test_cache(mode, case):
    seq_q, new, page, causal, window, rotary_dim, interleaved, padded, indexed, kind, with_lse = CACHES[case]
    batch, heads, kv_heads, dim, most = 2, 4, 2, 32, 48
    lengths = np.array([37, 19], np.int32)
    pages, size = (batch * most // page, page) if page else (batch + indexed, most)
    caches = [random(pages, size, kv_heads, dim, seed=n) for n in (1, 2)]
    table = np.random.default_rng(0).permutation(pages).astype(np.int32).reshape(batch, -1) if page else None
    index = np.array([2, 0], np.int32) if indexed else None
    leftpad = np.array([5, 0], np.int32) if padded else None
    q, k, v = (
        random(batch, seq_q, heads, dim, seed=3),
        *(random(batch, max(new, 1), kv_heads, dim, seed=n) for n in (4, 5)),
    )
    angles = np.arange(64)[:, None] * 50.0 ** -(np.arange(0, max(rotary_dim, 2), 2) / 32)
    cos, sin = (function(angles).astype(np.float16) for function in (np.cos, np.sin))
    given, slopes = slopes_of(kind, batch, heads)
    rules = {"causal": causal, "window_size": window, "rotary_interleaved": interleaved, "return_softmax_lse": with_lse}
    net = Decode(*caches, num_splits=3, **rules)
    tables = [cos, sin] if rotary_dim else [None, None]
    arrays = [q, *((k, v) if new else (None, None)), *tables, lengths, index, leftpad, table]
    with in_mode(mode):
        result = net(*(None if array is None else Tensor(array) for array in arrays), given)
    output, logsumexp = result if with_lse else (result, None)
    held = [net.k_cache.asnumpy().copy(), net.v_cache.asnumpy().copy()]
    for item, length in enumerate(lengths):
        row = slice(None) if page else [item if index is None else index[item]]
        rows = table[item] if page else row
        before = [cache[rows].reshape(-1, kv_heads, dim) for cache in caches]
        after = [cache[rows].reshape(-1, kv_heads, dim) for cache in held]
        start = 0 if leftpad is None else leftpad[item]
        own_q, own_k = q[item], k[item]
        if rotary_dim:
            own_k = turned(own_k, cos, sin, np.arange(new) + length - start, interleaved)
            steps = np.arange(seq_q) if causal or max(window) >= 0 else np.zeros(seq_q, int)
            own_q = turned(own_q, cos, sin, steps + length - start, interleaved).astype(np.float16)
        if new:
            np.testing.assert_allclose(after[0][length : length + new], own_k, rtol=1e-3, atol=1e-3)
            np.testing.assert_array_equal(after[1][length : length + new], v[item])
        end = length + new
        for old, now in zip(before, after):
            np.testing.assert_array_equal(np.delete(now, slice(length, end), 0), np.delete(old, slice(length, end), 0))
        visible = shown(seq_q, end, causal, window, start)
        expected = exact(own_q, after[0][:end], after[1][:end], visible, slopes=slopes[item])
        np.testing.assert_allclose(output.asnumpy()[item], expected[0], **CLOSE)
        if with_lse:
            np.testing.assert_allclose(logsumexp.asnumpy()[item], expected[1], rtol=1e-3, atol=1e-3)


def test_cache_lengths_by_number():
    q, cache = Tensor(random(2, 1, 4, 32)), Tensor(random(2, 24, 4, 32, seed=1))
    of_all = flash_attn.flash_attn_with_kvcache(q, cache, cache)
    assert np.array_equal(
        of_all.asnumpy(), flash_attn.flash_attn_with_kvcache(q, cache, cache, cache_seqlens=24).asnumpy()
    )
    fewer = flash_attn.flash_attn_with_kvcache(q, cache, cache, cache_seqlens=Tensor(np.full(2, 9, np.int32)))
    assert np.array_equal(
        fewer.asnumpy(), flash_attn.flash_attn_with_kvcache(q, cache, cache, cache_seqlens=9).asnumpy()
    )
    assert not np.array_equal(fewer.asnumpy(), of_all.asnumpy())


def test_jit_and_bfloat16():
    kind = getattr(ms, "bfloat16", ms.float16)

    @ms.jit
    def compiled(q, kv):
        return flash_attn.flash_attn_kvpacked_func(q, kv, causal=True)

    q, kv = Tensor(random(2, 9, 4, 32)).astype(kind), Tensor(random(2, 30, 2, 2, 32, seed=1)).astype(kind)
    output = compiled(q, kv)
    assert output.dtype == kind
    held = [tensor.astype(ms.float32).asnumpy() for tensor in (q, kv, output)]
    for item in range(2):
        expected = exact(held[0][item], held[1][item, :, 0], held[1][item, :, 1], shown(9, 30, True))[0]
        np.testing.assert_allclose(held[2][item], expected, rtol=2e-2, atol=2e-2)


FOUR, CACHE = random(2, 8, 4, 16), random(2, 24, 2, 16)
NEW = random(2, 3, 2, 16)
WRONG = {
    "kv": ("flash_attn_kvpacked_func", (FOUR, FOUR), {}, "kv: got shape"),
    "qkv": ("flash_attn_varlen_qkvpacked_func", (FOUR, FOUR, 3), {}, "allowed is (total, 3, nheads, headdim)"),
    "deterministic": ("flash_attn_func", (FOUR,) * 3, {"deterministic": 1}, "deterministic: got int 1"),
    "pages": ("flash_attn_varlen_func", (FOUR,) * 5 + (8, 8), {"block_table": FOUR}, "block_table: given"),
    "one": ("flash_attn_with_kvcache", (FOUR, CACHE, CACHE, NEW), {"cache_seqlens": 3}, "v: got None"),
    "where": ("flash_attn_with_kvcache", (FOUR, CACHE, CACHE, NEW, NEW), {}, "cache_seqlens: got None beside k"),
    "room": (
        *("flash_attn_with_kvcache", (FOUR, CACHE, CACHE, NEW, NEW), {"cache_seqlens": np.array([2, 22], np.int32)}),
        "k: got 3 keys, which make a sequence of 25; the cache can hold 24",
    ),
    "more": (
        *("flash_attn_with_kvcache", (FOUR, CACHE, CACHE, NEW, NEW), {"cache_seqlens": 22}),
        "cache_seqlens: got 22 and 3 new keys, but the cache can hold 24",
    ),
    "rotary": (
        "flash_attn_with_kvcache",
        (FOUR, CACHE, CACHE, None, None, FOUR, FOUR),
        {},
        "rotary_cos: given without k",
    ),
    "both": (
        *("flash_attn_with_kvcache", (FOUR, CACHE, CACHE)),
        {"block_table": np.zeros((2, 1), np.int32), "cache_batch_idx": np.zeros(2, np.int32)},
        "cache_batch_idx: given beside a block_table",
    ),
    "long": (
        *("flash_attn_with_kvcache", (FOUR, CACHE, CACHE), {"cache_seqlens": np.zeros(2, np.int64)}),
        "cache_seqlens: got dtype int64",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_errors(wrong):
    name, arrays, rules, message = WRONG[wrong]
    tensors = [Tensor(array) if isinstance(array, np.ndarray) else array for array in arrays]
    rules = {key: Tensor(rule) if isinstance(rule, np.ndarray) else rule for key, rule in rules.items()}
    with pytest.raises((TypeError, ValueError)) as caught:
        getattr(flash_attn, name)(*tensors, **rules)
    assert message in str(caught.value)


def test_rotary_by_its_name():
    x, angles = Tensor(random(2, 5, 4, 32)), np.arange(9)[:, None] * np.linspace(1, 0.1, 16)
    cos, sin = Tensor(np.cos(angles).astype(np.float32)), Tensor(np.sin(angles).astype(np.float32))
    ours = flash_attention.rotary_embedding(x, cos, sin, interleaved=True, offsets=2)
    assert np.array_equal(apply_rotary_emb(x, cos, sin, True, seqlen_offsets=2).asnumpy(), ours.asnumpy())
    for refused in ({"inplace": True}, {"cu_seqlens": x}):
        with pytest.raises(ValueError, match=next(iter(refused))):
            apply_rotary_emb(x, cos, sin, **refused)


IMPORTS = """
import sys
import numpy as np
import flash_attention
report = flash_attention.install(flash_attn=True)
assert report["flash_attn"] == "installed" == flash_attention.install(flash_attn=True)["flash_attn"], report
from flash_attn import __version__, flash_attn_func, flash_attn_varlen_kvpacked_func, flash_attn_with_kvcache
from flash_attn.bert_padding import index_first_axis, pad_input, unpad_input
from flash_attn.flash_attn_interface import flash_attn_qkvpacked_func
from flash_attn.layers.rotary import apply_rotary_emb
import flash_attn, flash_attention.compat.flash_attn as ours
assert __version__.startswith("2.8") and flash_attn.bert_padding.pad_input is ours.bert_padding.pad_input
import importlib.util
assert importlib.util.find_spec("flash_attn") and importlib.util.find_spec("flash_attn.layers")
assert flash_attn_func is ours.flash_attn_func
from flash_attention.compat.ascend910 import uninstall
uninstall()
assert not [name for name in sys.modules if name.partition(".")[0] == "flash_attn"]
try:
    import flash_attn
except ModuleNotFoundError:
    assert ours.bert_padding.pad_input is pad_input
    print("done")
"""


def test_install(run_python):
    assert "done" in run_python("-c", IMPORTS)


def test_install_leaves_another_package_alone(run_python, tmp_path):
    (tmp_path / "flash_attn").mkdir()
    (tmp_path / "flash_attn" / "__init__.py").write_text("theirs = True\n")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import flash_attention\n"
        "print(flash_attention.install(flash_attn=True)['flash_attn'][:10])\n"
        "import flash_attn; print(flash_attn.theirs)\n"
        "flash_attention.install(flash_attn=True, replace=True)\n"
        "import flash_attn; print(flash_attn.flash_attn_func.__name__)\n"
    )
    assert run_python("-c", program).split("\n")[:3] == ["left alone", "True", "flash_attn_func"]
