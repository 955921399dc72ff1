"""flash_attn's functions for packed sequences: tensors longer than their lengths, and what keys in pages cost."""

import time

import mindspore as ms
import numpy as np
import pytest
from flash_attention.compat.flash_attn import flash_attn_varlen_func
from mindspore import Tensor, ops

from tests.train.flash_attention.support.arrays import random

ENDS_Q, ENDS_K = Tensor([0, 3, 3, 9], ms.int32), Tensor([0, 5, 7, 16], ms.int64)


def loss(q, k, v, ends_q, ends_k, slopes):
    """Return a number that depends on every element of the output, and the output."""
    output = flash_attn_varlen_func(q, k, v, ends_q, ends_k, 6, 9, causal=True, alibi_slopes=slopes)
    return (output**2).sum() + output.sum(), output


@pytest.mark.parametrize("slopes", [None, Tensor(random(3, 4))], ids=["plain", "slopes"])
@pytest.mark.parametrize("more", [(4, 0), (0, 3), (5, 2)], ids=str)
def test_rows_behind_the_sequences_are_zeros(mode, more, slopes):
    longer = [Tensor(random(9 + more[0], 4, 16)), *(Tensor(random(16 + more[1], 2, 16, seed=seed)) for seed in (1, 2))]
    exact = [Tensor(tensor.asnumpy()[:rows]) for tensor, rows in zip(longer, (9, 16, 16))]
    call = ops.value_and_grad(loss, (0, 1, 2), has_aux=True)
    (_, output), gradients = call(*longer, ENDS_Q, ENDS_K, slopes)
    (_, expected), wanted = call(*exact, ENDS_Q, ENDS_K, slopes)
    for one, other in zip((output, *gradients), (expected, *wanted)):
        one, other = one.asnumpy(), other.asnumpy()
        np.testing.assert_allclose(one[: len(other)], other, atol=1e-6)
        assert not one[len(other) :].any()


@pytest.mark.asynchronous
def test_lengths_past_the_rows_are_refused():
    q, k = Tensor(random(8, 4, 16)), Tensor(random(16, 2, 16))
    with pytest.raises(ValueError, match="cu_seqlens_q: got .* allowed are cumulative lengths"):
        flash_attn_varlen_func(q, k, k, ENDS_Q, ENDS_K, 6, 9).asnumpy()
    with pytest.raises(TypeError, match="cu_seqlens_k: got dtype float32, allowed are int32, int64"):
        flash_attn_varlen_func(q, k, k, ENDS_Q, ENDS_K.astype(ms.float32), 6, 9)


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
