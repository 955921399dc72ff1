"""Numbers in arguments: forbidden numbers in small tensors, NumPy's integers, Tensors of int64."""

import time

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
from flash_attention.backends.registry import attention_backend
from flash_attention.bridge.constants import tensor_of
from flash_attention.bridge.versions import OLD
from flash_attention.compat.flash_attn import flash_attn_varlen_func, flash_attn_with_kvcache
from flash_attention.compat.mindspore_ops.operators import flash_attention_score
from mindspore import Parameter, Tensor, nn, ops

from tests.train.flash_attention.support.cells import Call, Gradients
from tests.train.flash_attention.support.layer_inputs import draw
from tests.train.flash_attention.support.modes import in_mode

ROWS = Tensor(np.random.default_rng(3).standard_normal((300, 2, 16)).astype(np.float32))
BATCH = Tensor(np.ones((2, 2, 5, 16), np.float32))
TOKEN, TOKENS = Tensor(np.ones((2, 2, 16), np.float32)), Tensor(np.ones((2, 1, 2, 16), np.float32))
CACHE = Tensor(np.ones((3, 16, 2, 16), np.float32))
ENDS = Tensor([180, 300], ms.int32)


def integers(*numbers, dtype=np.int32) -> Tensor:
    """Return the numbers as a tensor."""
    return Tensor(np.array(numbers, dtype))


def packed(query, key, value, ends_q, ends_k, prefix=None):
    """Compute attention of packed sequences, causal if there is a prefix."""
    return flash_attention_varlen(query, key, value, ends_q, ends_k, prefix=prefix, causal=prefix is not None)


def prefixed(query, prefix):
    """Compute attention of a tensor to itself with a prefix."""
    return flash_attention(query, query, query, prefix=prefix, causal=True)


def of_flash_attn(query, key, value, ends_q, ends_k):
    """Compute attention of packed sequences by flash_attn's function."""
    return flash_attn_varlen_func(query, key, value, ends_q, ends_k, 200, 200)


def cached(query, cache, lengths, table):
    """Compute attention against a cache in pages by flash_attn's function."""
    return flash_attn_with_kvcache(query, cache, cache, cache_seqlens=lengths, block_table=table)


def indexed(query, cache, lengths, rows, padding):
    """Compute attention against a cache in rows by flash_attn's function."""
    return flash_attn_with_kvcache(
        query, cache, cache, cache_seqlens=lengths, cache_batch_idx=rows, cache_leftpad=padding
    )


PACKED = ROWS, ROWS, ROWS
PAGED = TOKEN, CACHE, CACHE
WRONG = {
    "lengths": (packed, (*PACKED, integers(180, 120), ENDS), r"cu_seqlens_q: got \(180, 120\), .* here 300"),
    "int64": (packed, (*PACKED, ENDS, integers(0, 310, dtype=np.int64)), r"cu_seqlens_k: got \(0, 310\), .* here 300"),
    "sequences": (packed, (*PACKED, integers(9, 180, 300), ENDS), "cu_seqlens_k: got the lengths of 2 sequences, but"),
    "prefix of a sequence": (packed, (*PACKED, ENDS, ENDS, integers(3, 121)), "prefix: got 121, allowed are 0 to 120"),
    "prefix below 0": (packed, (*PACKED, ENDS, ENDS, integers(-1, 3)), "prefix: got -1"),
    "prefixes": (packed, (*PACKED, ENDS, ENDS, integers(3)), r"prefix: got shape \(1,\), but .*_q has 2 sequences"),
    "prefix": (prefixed, (BATCH, integers(3, 6)), "prefix: got 6, allowed are 0 to 5"),
    "flash_attn": (of_flash_attn, (*PACKED, integers(0, 180, 310), ENDS), "cu_seqlens_q: got"),
    "context": (
        paged_attention,
        (*PAGED, integers([0, 1], [2, 0]), integers(3, 33)),
        "context_lens: got 33, .* 0 to 32",
    ),
    "block": (paged_attention, (*PAGED, integers([0, 1], [3, 0]), integers(3, 17)), "block_tables: got 3, .* 0 to 2"),
    "page": (cached, (TOKENS, CACHE, integers(3, 17), integers([0, 1], [2, -1])), "block_table: got -1, .* 0 to 2"),
    "cache": (cached, (TOKENS, CACHE, integers(3, 33), integers([0, 1], [2, 0])), "cache_seqlens: got 33"),
}


def documents(query, ids):
    """Compute attention of a tensor to itself between equal ids."""
    return flash_attention(query, query, query, segment_ids=ids)


def wrapping(*numbers) -> Tensor:
    """Return numbers of int64 whose lower halves are these numbers."""
    return integers(*numbers, dtype=np.int64) + Tensor(2**32, ms.int64)


TABLE, FIVE = integers([0, 1], [2, 0]), [[1] * 5, [2] * 5]
#: Numbers beyond int32 do not wrap.
WRONG |= {
    "wrapped lengths": (packed, (*PACKED, wrapping(180, 300), ENDS), r"cu_seqlens_q: got \(4294967476, "),
    "wrapped prefix": (prefixed, (BATCH, wrapping(3, 2)), "prefix: got 4294967299, allowed are 0 to 5"),
    "wrapped ids": (documents, (BATCH, wrapping(*FIVE)), "segment_ids: got 4294967297, .* -2147483648 to 2147483647"),
    "wrapped context": (paged_attention, (*PAGED, TABLE, wrapping(3, 32)), "context_lens: got 4294967299, .* 0 to 32"),
    "wrapped block": (paged_attention, (*PAGED, wrapping([0, 1], [2, 0]), integers(3, 32)), "block_tables: got 42949"),
    "wrapped page": (cached, (TOKENS, CACHE, integers(3, 17), wrapping([0, 1], [2, 1])), "block_table: got 42949672"),
    "wrapped cache": (cached, (TOKENS, CACHE, wrapping(3, 17), TABLE), "cache_seqlens: got 4294967313"),
}


@pytest.mark.asynchronous
@pytest.mark.parametrize("name", WRONG)
def test_the_call_names_the_argument_and_the_number(name):
    function, inputs, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        function(*inputs)
    assert (ROWS + ROWS).asnumpy().shape == ROWS.shape  # nothing is left that fails later


@pytest.mark.parametrize("mode, update", [("pynative", "native"), ("pynative", "composed"), ("graph", "native")])
def test_numbers_of_a_cache_do_not_wrap(mode, update, monkeypatch):
    if update == "composed":
        monkeypatch.setattr("flash_attention.cache_update.serves_native", lambda: False)
    cache = KVCache(batch=2, max_length=8, kv_heads=2, head_dim=16, dtype=ms.float32)
    cache.update(TOKENS, TOKENS)
    with in_mode(mode):
        calls = [(cache.update, (TOKENS, TOKENS, wrapping(1, 0))), (cache.reorder, (wrapping(1, 0),))]
        for call, given in calls if mode == "graph" else (*calls, (cache.reset, (wrapping(1),))):
            with pytest.raises((ValueError, RuntimeError), match="got|returned|Return value"):
                Call(call)(*given).asnumpy()
            assert cache.lengths.asnumpy().tolist() == [1, 1]


@pytest.mark.parametrize("sizes", [(3, 16, 0), (3, 0, 2), (0, 16, 2)], ids=["table", "block", "cache"])
@pytest.mark.parametrize("length", [7, -5])
def test_a_cache_without_room_holds_nothing(sizes, length):
    blocks, block_size, width = sizes
    cache = tensor_of(np.ones((blocks, block_size, 2, 16), np.float32))
    table = tensor_of(np.zeros((2, width), np.int32))
    with pytest.raises(ValueError, match=f"context_lens: got {length}, allowed are 0 to 0"):
        paged_attention(TOKEN, cache, cache, table, integers(length, 0))
    assert (paged_attention(TOKEN, cache, cache, table, integers(0, 0)).asnumpy() == 0).all()


@pytest.mark.parametrize("name", [name for name in WRONG if "page" not in name])
def test_a_graph_gives_nan(name):
    function, inputs, _ = WRONG[name]
    with in_mode("graph"):
        output = Call(function)(*inputs)
        found = output.asnumpy()
        assert (found == 0).all() if name == "wrapped ids" else np.isnan(found).all()
        if name in ("lengths", "prefix"):
            for gradient in Gradients(Call(function))(*inputs, ops.ones_like(output))[: len(inputs) - 2 or 1]:
                assert np.isnan(gradient.asnumpy()).all()


@pytest.mark.asynchronous
def test_slots_and_rows_of_caches():
    with pytest.raises(ValueError, match="slot_mapping: got 48, allowed are 0 to 47"):
        reshape_and_cache(TOKEN, TOKEN, CACHE, CACHE, integers(1, 48))
    with pytest.raises(ValueError, match="cache_batch_idx: got 3, allowed are 0 to 2"):
        indexed(TOKENS, CACHE, integers(3, 4), integers(0, 3), None)
    with pytest.raises(ValueError, match="cache_leftpad: got 5, allowed are 0 to 4"):
        indexed(TOKENS, CACHE, integers(3, 4), integers(0, 1), integers(0, 5))


def test_blocks_that_no_query_sees_may_be_anything():
    tables, lengths = integers([0, -1], [99, 1]), integers(16, 32)
    output = paged_attention(*PAGED, tables, lengths, window_size=(3, 0))
    np.testing.assert_array_equal(output.asnumpy(), np.ones(TOKEN.shape))


@pytest.mark.slow
@pytest.mark.asynchronous
def test_numbers_from_python_are_read_without_waiting_and_once():
    if OLD:
        pytest.skip("this MindSpore waits whenever a tensor is read")
    matrix = Tensor(np.ones((1500, 1500), np.float32))
    small = Tensor(np.ones((30, 2, 16), np.float32))

    def call(lengths):
        """Return the seconds of a call beside long products, and the seconds until they end."""
        product = matrix
        for _ in range(12):
            product = product @ matrix
        start = time.perf_counter()
        flash_attention_varlen(small, small, small, lengths, lengths)
        called = time.perf_counter()
        product.asnumpy()
        return called - start, time.perf_counter() - called

    known = integers(10, 30)
    call(known)
    for lengths in (known, integers(11, 30)):
        seconds, products = call(lengths)
        assert seconds < products / 2


FEW_ROWS, DRAWN, ANGLES = draw(8, 2, 16), draw(2, 1, 2, 16), draw(9, 8)


def _cache(integer):
    """Compute attention by a KVCache with such integers as sizes and indices."""
    sizes = {"batch": 2, "max_length": 8, "kv_heads": 2, "head_dim": 16, "value_head_dim": 16}
    sizes |= {"block_size": 4, "num_blocks": 4}
    cache = KVCache(**{name: integer(size) for name, size in sizes.items()}, dtype=DRAWN.dtype, paged=True)
    cache.reorder((integer(1), integer(0)))
    cache.reset([integer(1)])
    return cache(DRAWN, DRAWN, DRAWN)


def _paged(integer):
    """Compute attention over pages."""
    caches = paged_caches(integer(2), integer(4), integer(2), integer(16), integer(10), dtype=DRAWN.dtype)
    tables, lengths = Tensor([[0], [1]], ms.int32), Tensor([3, 4], ms.int32)
    return paged_attention(draw(2, 2, 16), *caches, tables, lengths, value_head_dim=integer(10))


def _ends(integer):
    """Return the cumulative lengths."""
    return [integer(3), integer(8)]


CALLS = {
    "cache": _cache,
    "paged": _paged,
    "rotary": lambda integer: rotary_embedding(DRAWN, ANGLES, ANGLES, offsets=integer(2)),
    "flash_attn": lambda integer: flash_attn_with_kvcache(
        DRAWN, draw(2, 8, 2, 16), draw(2, 8, 2, 16, seed=1), cache_seqlens=integer(3)
    ),
    "score": lambda integer: flash_attention_score(
        *(FEW_ROWS, FEW_ROWS, FEW_ROWS, integer(2)),
        input_layout="TND",
        actual_seq_qlen=_ends(integer),
        actual_seq_kvlen=tuple(_ends(integer)),
    ),
    "prefix": lambda integer: flash_attention_score(
        *(draw(2, 4, 32), draw(2, 4, 32), draw(2, 4, 32), integer(2)),
        attn_mask=Tensor(np.zeros((2, 1, 4, 4), np.uint8)),
        prefix=[integer(1), integer(2)],
        sparse_mode=integer(5),
    ),
    "varlen": lambda integer: flash_attention_varlen(
        FEW_ROWS, FEW_ROWS, FEW_ROWS, _ends(integer), tuple(_ends(integer))
    ),
}


@pytest.mark.parametrize("kind", CALLS)
def test_numbers_of_numpy(kind, mode):
    found, expected = (CALLS[kind](integer).asnumpy() for integer in (np.int64, int))
    np.testing.assert_array_equal(found, expected)


class _Serving(nn.Cell):
    """One graph calls everything that takes integers in Tensors."""

    def __init__(self, dtype):
        super().__init__()
        self.cache = KVCache(2, 8, 2, 16, dtype=ms.float32)
        self.pages = [Parameter(ops.zeros((3, 4, 2, 16), ms.float32), name=name) for name in ("keys", "values")]
        self.key_pages, self.value_pages = self.pages
        self.one, self.two = Tensor([1, 2], dtype), Tensor([2, 1], dtype)
        self.swapped, self.ends = Tensor([1, 0], dtype), Tensor([0, 3, 8], dtype)
        self.table = Tensor([[2, 0], [1, -1]], dtype)

    def construct(self, tokens, rows):
        both = ops.concat((tokens, tokens * 2), 1)
        found = (ops.cast(self.cache.update(both, both, self.one), ms.float32), self.cache.attend(both, self.one))
        found += (ops.cast(self.cache.reorder(self.swapped), ms.float32), self.cache.attend(both))
        found += (ops.cast(self.cache.reset(self.swapped[:1]), ms.float32),)
        token = reshape_and_cache(both, both, self.key_pages, self.value_pages, self.slots())
        table = ops.depend(self.table, token)
        found += (paged_attention(both, self.key_pages, self.value_pages, table, self.two),)
        found += (rotary_embedding(tokens, rows[:, 0, :8], rows[:, 1, :8], offsets=self.two),)
        pages = self.key_pages, self.value_pages
        found += (flash_attn_with_kvcache(tokens, *pages, cache_seqlens=self.two, block_table=table),)
        found += (
            flash_attn_with_kvcache(
                both, *pages, cache_seqlens=self.two, cache_batch_idx=self.two, cache_leftpad=self.swapped
            ),
        )
        return found + (flash_attn_varlen_func(rows, *pages, self.ends, self.ends, 5, 5, block_table=ops.abs(table)),)

    def slots(self):
        return ops.concat((self.one * 4, self.two - 2), 0)


def test_tensors_of_int64_for_caches_and_positions(mode):
    found, expected = (_Serving(dtype)(DRAWN, FEW_ROWS) for dtype in (ms.int64, ms.int32))
    for one, other in zip(found, expected):
        np.testing.assert_array_equal(one.asnumpy(), other.asnumpy())


@pytest.mark.spread
@pytest.mark.parametrize("backend", ["cpu", "math", "emulator"])
def test_tensors_of_int64_for_rules(backend, mode):
    x, packed, layer = draw(2, 2, 8, 16, dtype=np.float16), draw(8, 2, 16), FlashAttention(16, causal=True)

    def gradients(dtype):
        ids, numbers = Tensor([[0, 0, 0, 1, 1, 1, -1, -1]] * 2, dtype), Tensor([3, 1], dtype)

        def loss(query, packed):
            found = flash_attention(query, query, query, segment_ids=ids, kv_segment_ids=ids).sum()
            found = found + layer(query, query, query, prefix=numbers).sum() * 2
            if backend != "emulator":
                packed = flash_attention_varlen(packed, packed, packed, (3, 8), (3, 8), causal=True, prefix=numbers)
            return found.astype(ms.float32) + packed.sum()

        return ops.grad(loss, (0, 1))(x, packed)

    with attention_backend(backend):
        results = [gradients(dtype) for dtype in (ms.int64, ms.int32)]
    assert np.abs(results[0][0].asnumpy()).max() > 0.1
    for one, other in zip(*results):
        np.testing.assert_array_equal(one.asnumpy(), other.asnumpy())
