"""Compare the functions of flash_attn with float64 NumPy for parameters of its tests."""

import flash_attention
import mindspore as ms
import numpy as np
import pytest
from flash_attention.compat import flash_attn
from flash_attention.compat.flash_attn.bert_padding import index_first_axis, pad_input, unpad_input
from flash_attention.compat.flash_attn.layers.rotary import apply_rotary_emb
from mindspore import Tensor, ops

from tests.train.flash_attention.support.flash_attn_truth import CLOSE, exact, random, shown, slopes_of


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
    "no kv": ("flash_attn_kvpacked_func", (FOUR, None), {}, "kv: got NoneType, allowed is a Tensor"),
    "no qkv": ("flash_attn_qkvpacked_func", (3,), {}, "qkv: got int, allowed is a Tensor"),
    "deterministic": ("flash_attn_func", (FOUR,) * 3, {"deterministic": 1}, "deterministic: got int 1"),
    "pages": ("flash_attn_varlen_func", (FOUR,) * 5 + (8, 8), {"block_table": FOUR}, "block_table: got dtype float16"),
}
TABLE, BEFORE = np.array([[1, -1], [2, 0]], np.int32), np.array([2, -1], np.int32)
FULL = "and 3 new keys, but the cache can hold 24"
# New keys and values, and tables of rotary embeddings.
WRONG_OF_CACHES = {
    "scale": ((), {"cache_seqlens": 3, "softmax_scale": [1]}, "softmax_scale: got list [1]"),
    "one": ((NEW,), {"cache_seqlens": 3}, "v: got None"),
    "where": ((NEW, NEW), {}, "cache_seqlens: got None beside k"),
    "room": ((NEW, NEW), {"cache_seqlens": np.array([2, 22], np.int32)}, f"cache_seqlens: got 22 {FULL}"),
    "more": ((NEW, NEW), {"cache_seqlens": 22}, f"cache_seqlens: got 22 {FULL}"),
    "rotary": ((None, None, FOUR, FOUR), {}, "rotary_cos: got one without k"),
    "both": (
        *((), {"block_table": np.zeros((2, 1), np.int32), "cache_batch_idx": np.zeros(2, np.int32)}),
        "cache_batch_idx: got one beside a block_table",
    ),
    "slopes": ((), {"alibi_slopes": np.ones((3, 4), np.float32)}, "alibi_slopes: got shape (3, 4)"),
    "past": ((), {"cache_seqlens": np.array([2, 25], np.int32)}, "cache_seqlens: got 25 and 0 new keys"),
    "before": ((NEW, NEW), {"cache_seqlens": BEFORE}, "cache_seqlens: got -1, allowed are 0 to 21"),
    "row": ((), {"cache_batch_idx": np.array([0, -1], np.int32)}, "cache_batch_idx: got -1, allowed are 0 to 1"),
    "page": ((NEW, NEW), {"cache_seqlens": 20, "block_table": TABLE}, "block_table: got 2, allowed are 0 to 1"),
    "padding": (
        *((), {"cache_seqlens": 5, "cache_leftpad": np.array([0, 6], np.int32)}),
        "cache_leftpad: got 6, allowed are 0 to 5",
    ),
    "half": ((), {"cache_seqlens": np.zeros(2, np.float16)}, "cache_seqlens: got dtype float16"),
}
for name, (more, rules, message) in WRONG_OF_CACHES.items():
    WRONG[name] = "flash_attn_with_kvcache", (FOUR, CACHE, CACHE, *more), rules, message


@pytest.mark.parametrize("wrong", WRONG)
def test_errors(wrong):
    name, arrays, rules, message = WRONG[wrong]
    tensors = [Tensor(array) if isinstance(array, np.ndarray) else array for array in arrays]
    rules = {key: Tensor(rule) if isinstance(rule, np.ndarray) else rule for key, rule in rules.items()}
    with pytest.raises((TypeError, ValueError)) as caught:
        getattr(flash_attn, name)(*tensors, **rules)
    assert message in str(caught.value)


def test_a_mask_that_is_no_tensor_is_refused_by_name():
    with pytest.raises(TypeError, match="attention_mask: got NoneType, allowed is a Tensor"):
        unpad_input(Tensor(np.ones((2, 3, 4), np.float32)), None)


def test_on_the_emulated_operators():
    q, k, v = random(1, 20, 2, 16), *(random(1, 33, 1, 16, seed=seed) for seed in (1, 2))
    cache = [np.zeros((1, 48, 1, 16), np.float16) for _ in range(2)]
    for part, tokens in zip(cache, (k, v)):
        part[0, :30] = tokens[0, :30]
    with flash_attention.attention_backend("emulator"):
        output = flash_attn.flash_attn_func(*map(Tensor, (q, k, v)), causal=True)
        tensors = map(Tensor, (q[:, -3:], *cache, k[:, 30:], v[:, 30:]))
        last = flash_attn.flash_attn_with_kvcache(*tensors, cache_seqlens=30, causal=True)
    expected = exact(q[0], k[0], v[0], shown(20, 33, True))[0]
    np.testing.assert_allclose(output.asnumpy()[0], expected, **CLOSE)
    np.testing.assert_allclose(last.asnumpy()[0], expected[-3:], **CLOSE)


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


def test_any_negative_window_is_unlimited():
    q, k = Tensor(random(1, 9, 2, 16)), Tensor(random(1, 12, 2, 16, seed=1))
    for window, same in (((-1, -3), (-1, -1)), ((-7, 2), (-1, 2)), ((3, -2), (3, -1))):
        found, expected = (flash_attn.flash_attn_func(q, k, k, window_size=one).asnumpy() for one in (window, same))
        assert np.array_equal(found, expected)


def test_scale_and_rate_have_the_names_that_the_caller_wrote():
    q, ends = Tensor(random(1, 9, 2, 16)), Tensor([0, 9], ms.int32)
    for wrong, message in (
        ({"softmax_scale": float("inf")}, "^softmax_scale: got inf"),
        ({"dropout_p": 1.0}, "^dropout_p: got 1.0, allowed is 0 <= dropout_p < 1"),
    ):
        with pytest.raises(ValueError, match=message):
            flash_attn.flash_attn_func(q, q, q, **wrong)
        with pytest.raises(ValueError, match=message):
            flash_attn.flash_attn_varlen_func(q[0], q[0], q[0], ends, ends, 9, 9, **wrong)
    with pytest.raises(ValueError, match="^softmax_scale: got inf"):
        flash_attn.flash_attn_with_kvcache(q, q, q, softmax_scale=float("inf"))


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
