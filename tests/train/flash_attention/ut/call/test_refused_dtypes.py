"""float64 inputs and int8 caches are refused by name, whatever the backend."""

import mindspore as ms
import numpy as np
import pytest
from flash_attention import (
    FlashAttention,
    KVCache,
    flash_attention,
    flash_attention_varlen,
    paged_attention,
    reshape_and_cache,
    scaled_dot_product_attention,
)
from flash_attention.backends.registry import attention_backend, backend_names
from mindspore import Tensor, nn, ops

BACKENDS = backend_names()
# By function: the arguments, all of the shape (2, 4, 16, 8) or its packed or paged one.
CALLS = {
    "flash_attention": lambda x: flash_attention(x, x, x),
    "layer": lambda x: FlashAttention(8)(x, x, x),
    "scaled_dot_product_attention": lambda x: scaled_dot_product_attention(x, x, x),
    "flash_attention_varlen": lambda x: flash_attention_varlen(x[0], x[0], x[0], (4,), (4,)),
    "paged_attention": lambda x: paged_attention(x[:, 0], x, x, *PAGES),
}
PAGES = Tensor(np.zeros((2, 1), np.int32)), Tensor(np.ones(2, np.int32))


def tensor(dtype):
    """Return a tensor of ones that fits every call."""
    return Tensor(np.ones((2, 4, 16, 8)), dtype)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_float64_is_refused(call, backend):
    with (
        attention_backend(backend),
        pytest.raises(TypeError, match="query: got dtype float64, allowed are float16, bfloat16, float32"),
    ):
        call(tensor(ms.float64))


@pytest.mark.parametrize("backend", BACKENDS)
def test_int8_caches_are_refused(backend):
    x, cache, slots = tensor(ms.float32), tensor(ms.int8), Tensor(np.zeros(32, np.int32))
    message = "got dtype int8, allowed are float32; quantised caches are out of scope"
    for name, call, *given in (
        ("key_cache", paged_attention, x[:, 0], cache, cache, *PAGES),
        ("value_cache", paged_attention, x[:, 0], x, cache, *PAGES),
        ("key_cache", reshape_and_cache, x[:, :, 0], x[:, :, 0], cache, cache, slots[:8]),
    ):
        with attention_backend(backend), pytest.raises(TypeError, match=f"{name}: {message}"):
            call(*given)


@pytest.mark.parametrize("dtype", ["int8", "float64"])
def test_what_fills_a_cache_is_checked_too(dtype):
    hint = "; quantised caches are out of scope" if dtype == "int8" else "$"
    message = f"got dtype {dtype}, allowed are float16, bfloat16, float32{hint}"
    x, slots = tensor(getattr(ms, dtype)), Tensor(np.zeros(8, np.int32))
    with pytest.raises(TypeError, match=f"key: {message}"):
        reshape_and_cache(x[:, :, 0], x[:, :, 0], x, x, slots)
    with pytest.raises(TypeError, match=f"^dtype: {message}"):
        KVCache(batch=2, max_length=8, kv_heads=2, head_dim=8, dtype=getattr(ms, dtype))


class Summed(nn.Cell):
    """The sum of attention, as a Cell: MindSpore 2.0 fails after an exception in a function (mindspore_faults)."""

    def construct(self, x):
        return flash_attention(x, x, x).sum()


def test_float64_gradients_are_refused_too():
    with pytest.raises(TypeError, match="query: got dtype float64"):
        ops.grad(Summed())(tensor(ms.float64))
