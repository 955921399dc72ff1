"""Call layers over a split sequence twice in one function. A part of parallel_ring.py."""

import mindspore as ms
import numpy as np
from flash_attention import FlashAttention
from flash_attention.context_parallel import GatherAttention, RingAttention, SequenceSplit
from mindspore import Tensor, ops

SHAPE = 1, 2, 64, 16


def total(first, second):
    """Return a function that calls one layer behind the other and sums their weighted outputs."""

    def summed(query, key, value, weights):
        result = first(query, key, value)
        return ((result + second(query + result, key * 2, value * 3)) * weights).sum()

    return summed


def gradients(function, arrays):
    return ops.grad(function, (0, 1, 2))(*map(Tensor, arrays))


def check(rank: int, world: int) -> dict:
    """Return the largest relative errors against one process, and RingAttention's message in a `@jit` function."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(SHAPE).astype(np.float32) for _ in range(4)]
    split = SequenceSplit(world)
    parts = [np.ascontiguousarray(split.split(array, rank, 2)) for array in arrays]
    alone = FlashAttention(SHAPE[3], causal=True)
    expected = [split.split(one.asnumpy(), rank, 2) for one in gradients(total(alone, alone), arrays)]
    found = {}
    for kind, layer, compiled in (
        *(("ring", RingAttention, False), ("gather", GatherAttention, False)),
        ("gather in @jit", GatherAttention, True),
    ):
        first, other = (layer(SHAPE[3], causal=True) for _ in range(2))
        for calls, second in (("one layer", first), ("two alike", other)):
            function = total(first, second)
            results = gradients(ms.jit(function) if compiled else function, parts)
            found[f"{kind}, {calls}"] = max(
                float(np.abs(one.asnumpy() - right).max() / np.abs(right).max())
                for one, right in zip(results, expected)
            )
    try:
        gradients(ms.jit(total(first := RingAttention(SHAPE[3], causal=True), first)), parts)
    except RuntimeError as error:
        found["ring in @jit"] = str(error)
    return found
