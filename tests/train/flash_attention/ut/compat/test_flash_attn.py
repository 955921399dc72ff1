"""Compare the functions of flash_attn with float64 NumPy for parameters of its tests."""

import functools
import time

import flash_attention
import mindspore as ms
import numpy as np
import pytest
from flash_attention.compat import flash_attn
from flash_attention.compat.flash_attn import flash_attn_varlen_func
from flash_attention.compat.flash_attn.bert_padding import index_first_axis, pad_input, unpad_input
from flash_attention.compat.flash_attn.layers.rotary import apply_rotary_emb
from mindspore import Tensor, ops

from tests.train.flash_attention.support.arrays import pages
from tests.train.flash_attention.support.arrays import random as normal
from tests.train.flash_attention.support.flash_attn_truth import CLOSE, exact, random, shown


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


FOUR, CACHE = random(2, 8, 4, 16), random(2, 24, 2, 16)
NEW = random(2, 3, 2, 16)
TABLE, BEFORE = np.array([[1, -1], [2, 0]], np.int32), np.array([2, -1], np.int32)
FULL = "and 3 new keys, but the cache can hold 24"
# New keys and values, and tables of rotary embeddings. test_argument_names.py and test_numbers.py have more.
WRONG = {
    "one": ((NEW,), {"cache_seqlens": 3}, "v: got None"),
    "where": ((NEW, NEW), {}, "cache_seqlens: got None beside k"),
    "room": ((NEW, NEW), {"cache_seqlens": np.array([2, 22], np.int32)}, f"cache_seqlens: got 22 {FULL}"),
    "more": ((NEW, NEW), {"cache_seqlens": 22}, f"cache_seqlens: got 22 {FULL}"),
    "rotary": ((None, None, FOUR, FOUR), {}, "rotary_cos: got one without k"),
    "both": (
        *((), {"block_table": np.zeros((2, 1), np.int32), "cache_batch_idx": np.zeros(2, np.int32)}),
        "cache_batch_idx: got one beside a block_table",
    ),
    "before": ((NEW, NEW), {"cache_seqlens": BEFORE}, "cache_seqlens: got -1, allowed are 0 to 21"),
    "page": ((NEW, NEW), {"cache_seqlens": 20, "block_table": TABLE}, "block_table: got 2, allowed are 0 to 1"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_errors(wrong):
    more, rules, message = WRONG[wrong]
    tensors = [Tensor(array) if isinstance(array, np.ndarray) else array for array in (FOUR, CACHE, CACHE, *more)]
    rules = {key: Tensor(rule) if isinstance(rule, np.ndarray) else rule for key, rule in rules.items()}
    with pytest.raises((TypeError, ValueError)) as caught:
        flash_attn.flash_attn_with_kvcache(*tensors, **rules)
    assert message in str(caught.value)


@pytest.mark.spread
@pytest.mark.parametrize("backend", ["cpu", "math", "emulator"])
@pytest.mark.parametrize("padded, with_lse", [(True, False), (False, True), (True, True)])
def test_hidden_pages_are_not_read(mode, backend, padded, with_lse):
    """Keys before the padding's end or behind a sequence are NaN. Pages of them alone are not in the cache."""
    lengths, block, rules = (41, 2, 0, 23), 16, {"causal": True, "window_size": (30, 0)}
    keys, values, *caches, table = pages(lengths, block, 2, 32, 32, np.float16)
    start = np.array([17, 2, 0, 5] if padded else [0] * 4, np.int32)
    for item, (first, length) in enumerate(zip(start, lengths)):
        for at in range(min(first, length)):
            for cache in caches:
                cache[table[item, at // block], at % block] = np.nan
    if backend == "emulator":  # a dense call of the gathered pages multiplies them, and mmad takes no NaN
        caches = list(map(np.nan_to_num, caches))
    if padded and mode == "graph":  # PYNATIVE looks at the table
        table[0, 0] = 1 << 30
    q = random(4, 3, 4, 32)
    tensors = {"cache_seqlens": Tensor(np.array(lengths, np.int32)), "block_table": Tensor(table)}
    if padded:
        tensors["cache_leftpad"] = Tensor(start)
    with flash_attention.attention_backend(backend):
        call = functools.partial(flash_attn.flash_attn_with_kvcache, **rules, return_softmax_lse=with_lse)
        results = call(Tensor(q), *map(Tensor, caches), **tensors)
    output, logsumexp = results if with_lse else (results, None)
    for item, (first, length) in enumerate(zip(start, lengths)):
        if length == 0:
            assert not output.asnumpy()[item].any()
            assert logsumexp is None or np.all(logsumexp.asnumpy()[item] == -np.inf)
            continue
        expected = exact(q[item], keys[item], values[item], shown(3, length, True, (30, 0), first))
        np.testing.assert_allclose(output.asnumpy()[item], expected[0], **CLOSE)
        if logsumexp is not None:
            np.testing.assert_allclose(logsumexp.asnumpy()[item], expected[1], rtol=1e-3, atol=2e-3)


def test_rotary_by_its_name():
    x, angles = Tensor(random(2, 5, 4, 32)), np.arange(9)[:, None] * np.linspace(1, 0.1, 16)
    cos, sin = Tensor(np.cos(angles).astype(np.float32)), Tensor(np.sin(angles).astype(np.float32))
    ours = flash_attention.rotary_embedding(x, cos, sin, interleaved=True, offsets=2)
    assert np.array_equal(apply_rotary_emb(x, cos, sin, True, seqlen_offsets=2).asnumpy(), ours.asnumpy())


IMPORTS = """
import sys
import numpy as np
import flash_attention
report = flash_attention.install(flash_attn=True)
assert report["flash_attn"] == "installed" == flash_attention.install(flash_attn=True)["flash_attn"], report
from flash_attn import __version__, flash_attn_func, flash_attn_with_kvcache
from flash_attn.bert_padding import index_first_axis, pad_input, unpad_input
from flash_attn.flash_attn_interface import flash_attn_varlen_func
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


@pytest.mark.system
def test_install(run_python):
    assert "done" in run_python("-c", IMPORTS)


@pytest.mark.system
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


NUMBERS = (0, 3, 3, 9), (0, 5, 7, 16)
ENDS_Q, ENDS_K = Tensor(NUMBERS[0], ms.int32), Tensor(NUMBERS[1], ms.int64)


def loss(q, k, v, ends_q, ends_k, slopes):
    """Return a number that depends on every element of the output, and the output."""
    output = flash_attn_varlen_func(q, k, v, ends_q, ends_k, 6, 9, causal=True, alibi_slopes=slopes)
    return (output**2).sum() + output.sum(), output


@pytest.mark.spread
@pytest.mark.parametrize("slopes", [None, Tensor(normal(3, 4))], ids=["plain", "slopes"])
@pytest.mark.parametrize("ends", [(ENDS_Q, ENDS_K), NUMBERS], ids=["data", "constants"])
@pytest.mark.parametrize("more", [(4, 0), (0, 3), (5, 2)], ids=str)
def test_rows_behind_the_sequences_are_zeros(mode, more, ends, slopes):
    longer = [Tensor(normal(9 + more[0], 4, 16)), *(Tensor(normal(16 + more[1], 2, 16, seed=seed)) for seed in (1, 2))]
    exact = [Tensor(tensor.asnumpy()[:rows]) for tensor, rows in zip(longer, (9, 16, 16))]
    call = ops.value_and_grad(loss, (0, 1, 2), has_aux=True)
    (_, output), gradients = call(*longer, *ends, slopes)
    (_, expected), wanted = call(*exact, *ends, slopes)
    for one, other in zip((output, *gradients), (expected, *wanted)):
        one, other = one.asnumpy(), other.asnumpy()
        np.testing.assert_allclose(one[: len(other)], other, atol=1e-6)
        assert not one[len(other) :].any()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_pages_cost_the_keys_in_use(mode, dtype):
    """16 sequences of 20 keys take the same time if their tables could name 4096 keys, or 262,144."""
    cache = Tensor(np.ones((64, 256, 8, 64), dtype))
    q, ends_q = cache[0, :16], Tensor(np.arange(17, dtype=np.int32))
    seconds = []
    for width in (1, 64):
        table = Tensor(np.arange(16 * width, dtype=np.int32).reshape(16, width) % 64)
        times = []
        for _ in range(4):  # the first compiles in a graph
            start = time.perf_counter()
            output = flash_attn_varlen_func(q, cache, cache, ends_q, ends_q * 20, 1, 20, block_table=table).asnumpy()
            times.append(time.perf_counter() - start)
        np.testing.assert_allclose(output, 1, 1e-3)
        seconds.append(min(times))
    assert seconds[1] < 8 * seconds[0] + 0.01
