"""First calls in both modes. test_quiet.py runs this program and reads its output."""

import flash_attention
import mindspore as ms
import numpy as np
from flash_attention import FlashAttention, KVCache, flash_attention_varlen, scaled_dot_product_attention
from flash_attention.backends.registry import get_backend
from flash_attention.context_parallel import GatherAttention, RingAttention  # noqa: F401
from mindspore import Tensor, nn, ops

DYNAMIC = "cpu" if get_backend("cpu").dynamic else "math"  # 2.0 announces that it chooses math


def draw(*shape):
    """Return normal random float32 elements."""
    return Tensor(np.random.default_rng(0).standard_normal(shape).astype(np.float32))


class Square(nn.Cell):
    """The sum of the squares of a function's result."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def construct(self, query, key, value):
        return (self.function(query, key, value) ** 2).sum()


class Function(nn.Cell):
    """flash_attention."""

    def construct(self, query, key, value):
        return flash_attention.flash_attention(query, key, value, causal=True)


class Torch(nn.Cell):
    """scaled_dot_product_attention."""

    def construct(self, query, key, value):
        return scaled_dot_product_attention(query, key, value, is_causal=True)


class Packed(nn.Cell):
    """flash_attention_varlen with lengths in a Tensor."""

    def construct(self, query, key, value, lengths):
        return flash_attention_varlen(query, key, value, lengths, lengths, causal=True)


def first_calls():
    """Make one call of each in the current mode, with gradients of what has them."""
    tensors = [draw(2, 4, 40, 16) for _ in range(3)]
    for net in (FlashAttention(16), FlashAttention(16, dropout_rate=0.1).set_train(), Function(), Torch()):
        net(*tensors)
        for gradient in ops.grad(Square(net), (0, 1, 2))(*tensors):
            gradient.asnumpy()
    Packed()(*(draw(80, 4, 16) for _ in range(3)), Tensor([0, 30, 80], ms.int32)).asnumpy()
    for paged in (False, True):
        cache = KVCache(2, 32, 4, 16, dtype=ms.float32, paged=paged)
        for tokens in (5, 1):
            cache(*(draw(2, tokens, 4, 16) for _ in range(3))).asnumpy()


for mode in (ms.GRAPH_MODE, ms.PYNATIVE_MODE):
    ms.set_context(mode=mode)
    first_calls()
ms.set_context(mode=ms.GRAPH_MODE)
dynamic = FlashAttention(16, backend=DYNAMIC)
dynamic.set_inputs(*(Tensor(shape=(None, 4, None, 16), dtype=ms.float32) for _ in range(3)))
for seq in (40, 50):
    dynamic(*(draw(2, 4, seq, 16) for _ in range(3))).asnumpy()
