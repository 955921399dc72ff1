"""The decoding kernels on the emulator: splits over cores, row blocks, windows, pages, hostile numbers."""

import mindspore as ms
import numpy as np
import pytest
from flash_attention import (
    KVCache,
    attention_backend,
    flash_attention,
    paged_attention,
    paged_caches,
    reshape_and_cache,
)
from flash_attention.backends.tik import decode
from flash_attention.kernels.tik import describe
from mindspore import Tensor, nn

from tests.train.flash_attention.support import cases
from tests.train.flash_attention.support.arrays import pages, random
from tests.train.flash_attention.support.calls import make_kernel_problem
from tests.train.flash_attention.support.cases import Case
from tests.train.flash_attention.support.layer_inputs import half
from tests.train.flash_attention.support.paged import expected
from tests.train.flash_attention.support.run import run_case
from tests.train.flash_attention.ut.tik.support.passes import random_arrays
from tests.train.flash_attention.ut.tik.support.shared_cases import check_closely

pytest.importorskip("tikemu")
HEADS, KV_HEADS, DIM, BLOCK = 4, 2, 32, 16
SINKS = Tensor(np.array([1.0, -2.0, 0.5, 9.0], np.float32))


def results(query, key, value, sinks, backend: str) -> list:
    """Return the output, logsumexp and the four gradients."""

    def attend(query, key, value, sinks):
        return flash_attention(
            query, key, value, sinks=sinks, causal=True, causal_alignment="bottom_right", softcap=4.0, return_lse=True
        )

    def total(query, key, value, sinks):
        return attend(query, key, value, sinks)[0].astype(ms.float32).sum()

    given = query, key, value, sinks
    with attention_backend(backend):
        return [*attend(*given), *ms.grad(total, (0, 1, 2, 3))(*given)]


def test_few_queries_are_decoded_and_have_gradients():
    query, key, value = half(2, HEADS, 2, DIM), half(2, KV_HEADS, 70, DIM, seed=1), half(2, KV_HEADS, 70, DIM)
    for ours, plain in zip(*(results(query, key, value, SINKS, backend) for backend in ("emulator", "math"))):
        np.testing.assert_allclose(ours.asnumpy(), plain.asnumpy(), atol=3e-3)


END = {"mask": "causal", "alignment": "bottom_right"}
#: Cores, and calls of which they take parts.
SPLITS = {
    "one short tile": (1, Case(heads=1, kv_heads=1, seq_q=1, seq_k=40, head_dim=16)),
    "several pairs a core": (1, Case(batch=2, heads=4, seq_q=1, seq_k=300, head_dim=64)),
    "several cores a pair": (3, Case(kv_heads=1, seq_q=1, seq_k=300, head_dim=64)),
    "pairs across cores": (3, Case(batch=2, heads=4, seq_q=1, seq_k=300, head_dim=64)),
    "more cores than tiles": (7, Case(heads=3, kv_heads=3, seq_q=1, seq_k=20, head_dim=48)),
    "more cores than tiles of a pair": (9, Case(heads=1, kv_heads=1, seq_q=1, seq_k=70)),
    "window": (5, Case(batch=2, heads=8, seq_q=3, seq_k=300, head_dim=64, window=(50, -1), **END)),
    "both windows": (2, Case(seq_q=2, seq_k=1100, head_dim=128, window=(20, 10))),
    "window without keys": (2, Case(seq_q=4, seq_k=16, window=(0, -1), **END)),
    "128 rows": (4, Case(heads=16, seq_q=16, seq_k=200, head_dim=128, sinks=True, **END)),
    "row blocks of two sizes": (4, Case(heads=19, kv_heads=1, seq_q=16, seq_k=70, head_dim=256, mask="causal")),
    "more queries than keys": (4, Case(heads=3, kv_heads=3, seq_q=5, seq_k=3, head_dim=48, **END)),
    "soft cap and sinks": (3, Case(heads=8, seq_q=2, seq_k=200, head_dim=64, softcap=3.0, sinks=True, **END)),
    "sinks without keys": (2, Case(heads=4, kv_heads=4, seq_q=3, seq_k=2, sinks=True, **END)),
    "alibi": (3, Case(heads=8, seq_q=3, seq_k=700, head_dim=64, alibi="computed", **END)),
    "alibi on both sides": (4, Case(heads=19, kv_heads=1, seq_q=16, seq_k=70, head_dim=256, alibi="computed")),
    "wide values": (3, Case(heads=4, seq_q=1, seq_k=300, head_dim=48, value_dim=144)),
    "narrow values": (3, Case(heads=4, seq_q=2, seq_k=300, head_dim=192, value_dim=128, **END)),
    "odd segment": (2, Case(heads=4, seq_q=1, seq_k=333, head_dim=192, scale=-0.3)),
}


@pytest.mark.parametrize("name", SPLITS)
def test_every_split_over_cores(name, cores):
    count, case = SPLITS[name]
    assert decode.scheduler.refuse(describe.kernel_problem(case.call)) is None
    cores(count)
    cases.check(case, run_case(case, "emulator", gradients=False))


#: Cores, rules, lengths, size of a block, heads, key/value heads, width, queries.
PAGED = {
    "blocks of 16": (5, {}, (70, 3, 0, 600), 16, 4, 2, 32, 1),
    "odd blocks": (3, {}, (70, 3, 0, 600), 24, 4, 2, 32, 3),
    "empty ones at both ends": (8, {"window_size": (40, -1)}, (0, 7, 0, 0, 130, 0), 128, 6, 3, 64, 2),
    "nothing at all": (3, {}, (0, 0, 0), 24, 4, 2, 32, 3),
    "tables longer than what is on chip at a time": (2, {}, (70, 300), 17, 2, 1, 16, 1),
}


@pytest.mark.parametrize("name", PAGED)
def test_pages_of_any_lengths(name, cores, monkeypatch):
    """Sequences stay as they are if one of them is infinite."""
    if "tables" in name:
        monkeypatch.setattr("flash_attention.kernels.tik.decode.tiling.WINDOW", 24)
        monkeypatch.setattr("flash_attention.kernels.tik.decode.load.WINDOW", 24)
    count, rules, lengths, block_size, heads, kv_heads, dim, seq_q = PAGED[name]
    decode.scheduler.choose.cache_clear()
    cores(count)
    keys, values, *caches, table = pages(lengths, block_size, kv_heads, dim, dim, np.float16)
    query, ends = random(len(lengths), seq_q, heads, dim, seed=5, dtype=np.float16), Tensor(np.array(lengths, np.int32))

    def attend():
        given = *map(Tensor, (query, *caches, table)), ends
        return paged_attention(*given, backend="emulator", **rules).asnumpy()

    found = attend()
    np.testing.assert_allclose(found, expected(query, keys, values, **rules), atol=2e-3)
    for cache in caches:
        cache[table[0, : -(-lengths[0] // block_size)]] = np.inf
    np.testing.assert_array_equal(attend()[1:], found[1:])
    decode.scheduler.choose.cache_clear()


@pytest.mark.parametrize("size", (8.0, 60.0, 700.0))
def test_large_logits_neither_saturate_nor_spoil(size, cores):
    """Scores reach 60000 and more, and are not rounded."""
    cores(3)
    rules = {"causal": True, "causal_alignment": "bottom_right"}
    problem = make_kernel_problem(1, 4, 2, 300, 64, kv_heads=2, **rules)
    query, key, value = random_arrays(problem)
    arrays = query * np.float16(size), key * np.float16(min(size, 60)), value
    found = flash_attention(*map(Tensor, arrays), return_lse=True, backend="emulator", **rules)
    check_closely(problem, arrays, *(one.asnumpy() for one in found), 3.0, 2e-6)


@pytest.mark.parametrize("rows", (1, 4, 8, 16, 64))
@pytest.mark.parametrize("dim", (16, 80, 128, 256))
def test_plans_fit_the_core(rows, dim):
    for seq_q in (1, 16):
        problem = make_kernel_problem(2, rows, seq_q, 5000, dim, kv_heads=1, pages=(80, 128))
        plan = decode.scheduler.choose(problem).plan
        assert plan.group_heads * seq_q <= plan.rows <= 128
        assert plan.segment * dim <= decode.tiling.OPERAND and plan.rows * dim <= decode.tiling.OPERAND


@pytest.fixture
def eight_rows(monkeypatch, cores):
    """Plan row blocks of 8 rows, in plans and cells that no other test meets."""
    monkeypatch.setattr(decode.tiling, "rows_at_once", lambda problem: 8)
    decode.scheduler.choose.cache_clear()
    cores(32)
    yield
    decode.scheduler.choose.cache_clear()


@pytest.mark.parametrize("rules", ({"window_size": (9, 0)}, {"causal": False}))
def test_prompts_come_in_parts(rules, eight_rows):
    """The 20 queries are row blocks of 8, 8 and 4. The second sequence has fewer keys than queries."""
    keys, values = half(9, BLOCK, KV_HEADS, DIM, seed=1), half(9, BLOCK, KV_HEADS, DIM, seed=2)
    tables = Tensor(np.array([[4, 1, 6], [2, 5, 8]], np.int32))
    lengths = Tensor(np.array([41, 7], np.int32))
    given = half(2, 20, HEADS, DIM), keys, values, tables, lengths
    ours, plain = (paged_attention(*given, backend=backend, **rules) for backend in ("emulator", "cpu"))
    np.testing.assert_allclose(ours.asnumpy(), plain.asnumpy(), atol=1e-3)


def test_what_the_decoding_kernels_lack_is_named():
    caches, lengths = [half(4, 8, KV_HEADS, DIM)] * 2, Tensor(np.array([5], np.int32))
    tables = Tensor(np.zeros((1, 1), np.int32))
    with pytest.raises(RuntimeError, match="got blocks of 8 keys, the decoding kernels take 16 and more"):
        paged_attention(half(1, HEADS, DIM), *caches, tables, lengths, backend="emulator")
    caches = [half(4, BLOCK, KV_HEADS, 40)] * 2
    with pytest.raises(RuntimeError, match="head_dim 40, allowed are multiples of 16; paged_caches makes"):
        paged_attention(half(1, HEADS, 40), *caches, tables, lengths, backend="emulator")
    query, caches = half(1, 200, HEADS, DIM), [half(20, BLOCK, KV_HEADS, DIM)] * 2
    tables, lengths = Tensor(np.arange(20, dtype=np.int32)[None]), Tensor(np.array([300], np.int32))
    with pytest.raises(RuntimeError, match="got 200 queries without causal, with a window or ALiBi"):
        paged_attention(query, *caches, tables, lengths, causal=False, alibi=True, backend="emulator")


@pytest.mark.spread
@pytest.mark.parametrize("value_dim", (24, 40))
@pytest.mark.parametrize("backend", ("cpu", "math", "emulator"))
def test_heads_of_any_size_in_caches_that_are_rounded_up(value_dim, backend, mode):
    dim, length = 24, 20
    caches = paged_caches(3, BLOCK, KV_HEADS, dim, value_dim)
    assert [cache.shape[3] for cache in caches] == [32, -(-value_dim // 16) * 16]
    query, key = half(1, 2, HEADS, dim), half(length, KV_HEADS, dim, seed=1)
    value = half(length, KV_HEADS, value_dim, seed=2)
    slots, tables = Tensor(np.arange(BLOCK, BLOCK + length, dtype=np.int32)), Tensor(np.array([[1, 2]], np.int32))
    lengths = Tensor(np.array([length], np.int32))

    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.keys, self.values = caches

        def construct(self, query, key, value):
            written = reshape_and_cache(key, value, self.keys, self.values, slots)
            output = paged_attention(
                query, self.keys, self.values, tables, lengths, value_head_dim=value_dim, backend=backend
            )
            return output, written

    output = Net()(query, key, value)[0].asnumpy()
    whole = [Tensor(np.ascontiguousarray(array.asnumpy()[None])) for array in (key, value)]
    rules = {"causal": True, "causal_alignment": "bottom_right", "input_layout": "BSND", "backend": "cpu"}
    ms.set_context(mode=ms.PYNATIVE_MODE)
    np.testing.assert_allclose(output, flash_attention(query, *whole, **rules).asnumpy(), atol=2e-3)


def test_a_cache_of_rounded_heads():
    """A KVCache rounds head sizes up inside; its users see the true sizes."""
    cache = KVCache(1, 40, KV_HEADS, 24, 20, paged=True, block_size=BLOCK)
    query, key, value = half(1, 5, HEADS, 24), half(1, 5, KV_HEADS, 24, seed=1), half(1, 5, KV_HEADS, 20, seed=2)
    outputs = []
    for backend in ("emulator", "cpu"):
        cache.reset()
        with attention_backend(backend):
            outputs.append(cache(query, key, value).asnumpy())
    rules = {"causal": True, "input_layout": "BSND", "backend": "cpu"}
    right = flash_attention(query, key, value, **rules).asnumpy()
    for output in outputs:
        assert output.shape == (1, 5, HEADS, 20)
        np.testing.assert_allclose(output, right, atol=2e-3)
    with pytest.raises(ValueError, match=r"query: got shape \(1, 5, 4, 20\), allowed is \(1, seq, heads, 24\)"):
        cache.attend(half(1, 5, HEADS, 20))
    with pytest.raises(ValueError, match=r"key: got shape \(1, 5, 2, 20\), allowed is \(1, seq, 2, 24\)"):
        cache.update(value, value)
    given = query, *paged_caches(2, BLOCK, KV_HEADS, 24, 40), Tensor([[0]], ms.int32), Tensor([5], ms.int32)
    with pytest.raises(ValueError, match="value_head_dim: got 24 with a value_cache"):
        paged_attention(*given)
