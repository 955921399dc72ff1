"""Networks that hand inputs without a gradient to two calls."""

import mindspore as ms
import numpy as np
from flash_attention import flash_attention, flash_attention_varlen, rotary_embedding
from mindspore import Tensor, nn, ops

from tests.train.flash_attention.support.arrays import draw

BATCH, HEADS, SEQ, HEAD_DIM = 2, 2, 24, 16


def masked(x, mask, numbers):
    return flash_attention(x, x, x, mask) + flash_attention(x, x, x, numbers)


def masked_in_bytes(x, mask, bias, slopes):
    return flash_attention(x, x, x, mask, bias, bias_grad=False) + flash_attention(x, x, x, alibi_slopes=slopes)


def with_ids(x, ids, kv_ids, prefix, bits):
    given = {"segment_ids": ids, "kv_segment_ids": kv_ids, "prefix": prefix, "keep_bits": bits}
    return flash_attention(x, x, x, causal=True, dropout_rate=0.5, **given)


def with_seed(x, ids, prefix, seed):
    return flash_attention(x, x, x, segment_ids=ids, prefix=prefix, seed=seed, causal=True, dropout_rate=0.5)


def packed(x, ends_q, ends_k, prefix):
    rows = ops.reshape(x, (-1, HEADS, HEAD_DIM))
    return ops.reshape(flash_attention_varlen(rows, rows, rows, ends_q, ends_k, causal=True, prefix=prefix), x.shape)


def turned(x, offsets):
    return rotary_embedding(x, *TABLES, offsets=offsets, input_layout="BNSD")


RANDOM = np.random.default_rng(0)
TABLES = [Tensor(draw(SEQ + 8, HEAD_DIM // 2, seed=seed)) for seed in (1, 2)]
MASK = np.triu(RANDOM.random((BATCH, SEQ, SEQ)) < 0.5, 1)
IDS = np.sort(RANDOM.integers(0, 3, (2, BATCH, SEQ)))
IDS[:, :, 0] = 0  # the first query sees the first key
BITS = RANDOM.integers(0, 256, (BATCH, HEADS, SEQ, SEQ // 8)).astype(np.uint8)
# Together where a graph would take long to compile for each.
INPUTS = {
    masked: (MASK, MASK.astype(np.float16)),
    masked_in_bytes: (MASK.astype(np.uint8), draw(1, 1, 1, SEQ).astype(np.float16), draw(HEADS) ** 2),
    with_ids: (IDS[0].astype(np.int32), IDS[1], np.array([3, 9], np.int32), BITS),
    with_seed: (IDS[0], np.array([3, 9]), np.array([3, 5])),
    packed: (np.array([0, 21, BATCH * SEQ], np.int32), np.array([0, 30, BATCH * SEQ]), np.array([3, 4])),
    turned: (np.array([1, 4], np.int32),),
}


class Twice(nn.Cell):
    """Return a sum over the result of two calls with the same inputs; `computed`: by operations on x, which keep the
    numbers.
    """

    def __init__(self, function, computed: bool):
        super().__init__()
        self.function, self.computed = (function,), computed
        self.weights = Tensor(draw(BATCH, HEADS, SEQ, HEAD_DIM, seed=4))

    def construct(self, x, *given):
        inputs = ()
        for one in given:
            if self.computed:
                moved = ops.cast(one, ms.float32) + ops.cast(ops.reshape(x, (-1,))[0], ms.float32) * 0.0
                one = ops.cast(moved, one.dtype)
            inputs = inputs + (one,)
        result = self.function[0](self.function[0](x, *inputs), *inputs)
        return (ops.cast(result, ms.float32) * self.weights).sum()
