"""Forbidden numbers in small tensors: an error by name at the call, NaN in a graph, which cannot read them."""

import time

import mindspore as ms
import numpy as np
import pytest
from flash_attention import flash_attention, flash_attention_varlen, paged_attention, reshape_and_cache
from flash_attention.bridge.versions import OLD
from flash_attention.compat.flash_attn import flash_attn_varlen_func, flash_attn_with_kvcache
from mindspore import Tensor, ops

from tests.train.flash_attention.support.cells import Call, Gradients
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
    "prefixes": (packed, (*PACKED, ENDS, ENDS, integers(3)), r"prefix: got shape \(1,\), but .*_q has 2 sequences"),
    "prefix": (prefixed, (BATCH, integers(3, 6)), "prefix: got 6, allowed are 0 to 5"),
    "flash_attn": (of_flash_attn, (*PACKED, integers(0, 180, 120), ENDS), "cu_seqlens_q: got"),
    "context": (
        paged_attention,
        (*PAGED, integers([0, 1], [2, 0]), integers(3, 33)),
        "context_lens: got 33, .* 0 to 32",
    ),
    "block": (paged_attention, (*PAGED, integers([0, 1], [3, 0]), integers(3, 17)), "block_tables: got 3, .* 0 to 2"),
    "page": (cached, (TOKENS, CACHE, integers(3, 17), integers([0, 1], [2, -1])), "block_table: got -1, .* 0 to 2"),
    "cache": (cached, (TOKENS, CACHE, integers(3, 33), integers([0, 1], [2, 0])), "cache_seqlens: got 33"),
}


@pytest.mark.asynchronous
@pytest.mark.parametrize("name", WRONG)
def test_the_call_names_the_argument_and_the_number(name):
    function, inputs, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        function(*inputs)
    assert (ROWS + ROWS).asnumpy().shape == ROWS.shape  # nothing is left that fails later


@pytest.mark.parametrize("name", [name for name in WRONG if name != "page"])
def test_a_graph_gives_nan(name):
    function, inputs, _ = WRONG[name]
    with in_mode("graph"):
        output = Call(function)(*inputs)
        assert np.isnan(output.asnumpy()).all()
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
