"""Test that the native kernel and its caches keep subnormal numbers in every mode. MindSpore's threads may take them
for zero.

Queries and keys are zero, so that every visible key weighs the same, and all values are one subnormal number.
"""

import mindspore as ms
import numpy as np
import pytest
from flash_attention import KVCache, flash_attention, flash_attention_varlen, paged_attention, reshape_and_cache
from mindspore import Parameter, Tensor, nn

from tests.train.flash_attention.support.cells import Call, Gradients

BITS = 0xAE398  # of 1e-39 in float32; a quarter and a fourfold are exact
HEADS, DIM = 2, 16
ENDS = {"cu_seqlens_q": (0, 4, 8), "cu_seqlens_k": (0, 4, 8)}


def full(*shape: int, bits: int = BITS) -> Tensor:
    """Return float32 elements that all have these bits."""
    return Tensor(np.full(shape, bits, np.uint32).view(np.float32))


def assert_kept(tensor: Tensor) -> None:
    """Compare bits, but for rounding: the thread of the test may flush subnormal numbers itself."""
    np.testing.assert_allclose(tensor.asnumpy().view(np.uint32), BITS, rtol=1e-5)


class Paged(nn.Cell):
    """Four tokens written into the first block, and attended to by one query."""

    def __init__(self):
        super().__init__()
        self.keys, self.values = (Parameter(full(2, 4, HEADS, DIM, bits=0), name=name) for name in ("keys", "values"))

    def construct(self, query, key, value, slots, tables, lengths):
        written = reshape_and_cache(key, value, self.keys, self.values, slots)
        return paged_attention(query, self.keys, self.values, tables, lengths, backend="cpu"), written


@pytest.mark.parametrize(
    ("function", "rules", "queries", "keys"),
    (
        pytest.param(flash_attention, {}, (1, HEADS, 4, DIM), (1, HEADS, 4, DIM), id="attention"),
        pytest.param(flash_attention, {}, (1, HEADS, 1, DIM), (1, HEADS, 256, DIM), id="decode"),
        pytest.param(flash_attention_varlen, ENDS, (8, HEADS, DIM), (8, HEADS, DIM), id="packed"),
    ),
)
def test_values_and_gradients(function, rules: dict, queries: tuple, keys: tuple, mode: str) -> None:
    """The output is the value. With as many queries as keys, each value's gradient is the output's gradient."""
    tensors = full(*queries, bits=0), full(*keys, bits=0), full(*keys)
    cell = Call(function, backend="cpu", **rules)
    assert_kept(cell(*tensors))
    if queries == keys:
        assert_kept(Gradients(cell)(*tensors, full(*queries))[2])


def test_a_paged_cache(mode: str) -> None:
    cell = Paged()
    tables, lengths = Tensor([[0]], ms.int32), Tensor([4], ms.int32)
    query, key, value = full(1, HEADS, DIM, bits=0), full(4, HEADS, DIM, bits=0), full(4, HEADS, DIM)
    assert_kept(cell(query, key, value, Tensor([0, 1, 2, 3], ms.int32), tables, lengths)[0])
    assert_kept(cell.values[0])


@pytest.mark.parametrize("options", ({}, {"paged": True, "block_size": 4}), ids=("contiguous", "paged"))
def test_a_kv_cache(options: dict, mode: str) -> None:
    cache = KVCache(1, 8, HEADS, DIM, dtype=ms.float32, **options)
    zeros = full(1, 4, HEADS, DIM, bits=0)
    assert_kept(cache(zeros, zeros, full(1, 4, HEADS, DIM)))
