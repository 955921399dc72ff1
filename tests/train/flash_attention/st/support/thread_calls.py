"""Threads that meet new shapes at the same time, in PYNATIVE: each result against float64.

Arguments: threads, calls of each, and whether one more thread differentiates. Prints the calls that are wrong.
"""

from __future__ import annotations

import sys
import threading
from functools import partial

import mindspore as ms
import numpy as np
from flash_attention import (
    KVCache,
    flash_attention,
    flash_attention_varlen,
    paged_attention,
    reference,
    rotary_embedding,
)
from mindspore import Tensor, ops

from tests.train.flash_attention.support.arrays import ends, pages
from tests.train.flash_attention.support.calls import make_call
from tests.train.flash_attention.support.flash_attn_truth import turned
from tests.train.flash_attention.support.paged import expected
from tests.train.flash_attention.support.run import array, tensor

HEADS, KV_HEADS, DIM = 4, 2, 16
RULES: tuple[dict, ...] = ({}, {"causal": True}, {"causal": True, "window_size": (3, -1)}, {"softcap": 2.0})
DTYPES = tuple(name for name in ("float32", "float16", "bfloat16") if hasattr(ms, name))
# Elements lie in [-1, 1], so do the results: a rounding to the dtype, and a few of products and sums in float32.
ALLOWED = {name: 2 * reference.EPSILON[name] + 32 * reference.EPSILON["float32"] for name in DTYPES}


def draw(random: np.random.Generator, dtype: str, *shape: int) -> np.ndarray:
    """Return elements in [-1, 1] that the dtype has."""
    return reference.round_to(random.uniform(-1, 1, shape).astype(np.float32), dtype).astype(np.float32)


def dense(random, length: int, dtype: str, rules: dict) -> tuple:
    arrays = [draw(random, dtype, 1, length, heads, DIM) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    output = flash_attention(*(tensor(one.swapaxes(1, 2), dtype) for one in arrays), backend="cpu", **rules)
    return output, expected(*arrays, **{"causal": False, **rules}).swapaxes(1, 2)


def varlen(random, length: int, dtype: str, rules: dict) -> tuple:
    lengths = (length, length // 2 + 1)
    arrays = [draw(random, dtype, sum(lengths), heads, DIM) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    tensors, last = (tensor(one, dtype) for one in arrays), Tensor(np.array(ends(lengths), np.int32))
    output = flash_attention_varlen(*tensors, last, last, backend="cpu", **rules)
    parts = zip(*(np.split(one[None], lengths[:1], axis=1) for one in arrays))
    return output, np.concatenate([expected(*part, **{"causal": False, **rules})[0] for part in parts])


def paged(random, length: int, dtype: str, rules: dict) -> tuple:
    keys, values, *caches, tables = pages((length, 5), 16, KV_HEADS, DIM, DIM)
    query = draw(random, "float32", 2, 3, HEADS, DIM)
    lengths = Tensor(np.array([length, 5], np.int32))
    output = paged_attention(*map(Tensor, (query, *caches, tables)), lengths, backend="cpu")
    largest = max(1.0, *(float(np.abs(one).max()) for one in values))
    return output.astype(ms.float32) / largest, expected(query, keys, values) / largest


def cached(random, length: int, dtype: str, rules: dict) -> tuple:
    query, key, value = (draw(random, "float32", 1, length + 1, heads, DIM) for heads in (HEADS, KV_HEADS, KV_HEADS))
    cache = KVCache(1, length + 1, KV_HEADS, DIM, dtype=ms.float32)
    first, second = ([Tensor(one[:, part]) for one in (query, key, value)] for part in (slice(-1), slice(-1, None)))
    cache(*first)
    return cache(*second), expected(query[:, -1:], key, value)


def rotary(random, length: int, dtype: str, rules: dict) -> tuple:
    x, angles = draw(random, dtype, 1, length, HEADS, DIM), random.uniform(0, 6, (length, DIM // 2))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    output = rotary_embedding(tensor(x, dtype), Tensor(cos), Tensor(sin))
    return output / 2, turned(x[0], cos, sin, np.arange(length), False)[None] / 2


ENTRIES = dense, varlen, paged, cached, rotary


def compare(wrong: list, name: str, dtype: str, output: Tensor, truth: np.ndarray) -> None:
    error = float(np.abs(array(output) - truth).max())
    if not error <= ALLOWED[dtype]:
        wrong.append((name, dtype, truth.shape, error))


def serve(wrong: list, thread: int, calls: int) -> None:
    """Call the entries in turn. Threads draw other numbers, and meet a new shape at about the same time."""
    random = np.random.default_rng(thread)
    for index in range(calls):
        entry, length = ENTRIES[index % len(ENTRIES)], 2 + index // len(ENTRIES)
        dtype, rules = DTYPES[length % len(DTYPES)], RULES[(length + thread) % len(RULES)]
        try:
            compare(wrong, entry.__name__, dtype, *entry(random, length, dtype, rules))
        except Exception as error:
            wrong.append((entry.__name__, dtype, length, f"{type(error).__name__}: {error}"[:300]))


def differentiate(wrong: list, calls: int) -> None:
    """Take gradients of attention while others serve."""
    random = np.random.default_rng(99)
    for length in range(2, 2 + calls):
        tensors = [draw(random, "float32", 1, HEADS, length, DIM) for _ in range(4)]
        upstream = Tensor(tensors[3])
        results = ops.grad(
            lambda *inputs, upstream=upstream: (flash_attention(*inputs, backend="cpu") * upstream).sum(), (0, 1, 2)
        )(*map(Tensor, tensors[:3]))
        call = make_call(1, HEADS, length, length, DIM, dtype="float32")
        truth = reference.truth(call, *tensors[:3], d_output=tensors[3])
        for result, true in zip(results, (truth.d_query, truth.d_key, truth.d_value)):
            largest = max(1.0, float(np.abs(true).max()))
            compare(wrong, "gradient", "float32", result / largest, true / largest)


def main(count: int, calls: int, differentiates: bool) -> None:
    sys.setswitchinterval(1e-4)
    ms.set_context(mode=ms.PYNATIVE_MODE)
    wrong: list = []
    serve(wrong, 1000, len(ENTRIES))  # MindSpore's own operators end the process if threads begin
    if differentiates:
        differentiate(wrong, 1)
    work = [partial(serve, wrong, thread, calls) for thread in range(count)]
    work += [partial(differentiate, wrong, max(1, calls // len(ENTRIES)))] if differentiates else []
    threads = [threading.Thread(target=one) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{count * calls} calls in {count} threads, {len(wrong)} wrong {wrong[:5]}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]), sys.argv[3:] == ["gradients"])
