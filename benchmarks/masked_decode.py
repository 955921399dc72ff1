"""One query against many keys with a rule of keys beside it: the time as a multiple of the time without.

    PYTHONPATH=train python -m benchmarks.figures masked_decode

Backend `cpu`, in PYNATIVE. The calls with and without a rule take turns.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
from flash_attention.call import DTYPES
from flash_attention.measuring.figures import Figure
from flash_attention.measuring.implementations import choose_cpu
from flash_attention.measuring.timing import medians

KEYS, DIM, ROUNDS = 32768, 128, 9
HEADS = ((8, 8), (8, 2), (32, 4), (32, 1))
PADDING = 7  # keys at the start or end
PLAIN = ("without", "kvcache without")
CALLS = (
    *("mask row", "bias row", "segment ids", "mask row with logsumexp"),
    *("kvcache with logsumexp", "kvcache with left padding"),
)


def figures(quick: bool, threads: int) -> list[Figure]:
    """Measure, print and return the figures."""
    os.environ["OMP_NUM_THREADS"] = str(threads)  # the kernel counts its threads when it is loaded
    keys, rounds, found = (512, 1, []) if quick else (KEYS, ROUNDS, [])
    for dtype in DTYPES:
        for heads, kv_heads in HEADS:
            times = medians(_calls(dtype, heads, kv_heads, keys), rounds)
            for name in CALLS:
                (own,), (plain,) = times[name], times[PLAIN["kvcache" in name]]
                label = f"masked decode, {dtype} {heads}/{kv_heads} {name}"
                found.append(Figure(label, own / plain, "x the time", f"{1e3 * own:.2f} ms"))
                print(f"{label}: {own / plain:.2f}x, {1e3 * own:.2f} ms", flush=True)
    return found


def names() -> list[str]:
    """Return the names of all figures."""
    kinds = [f"{dtype} {heads}/{kv_heads} {call}" for dtype in DTYPES for heads, kv_heads in HEADS for call in CALLS]
    return [f"masked decode, {kind}" for kind in kinds]


def _calls(dtype: str, heads: int, kv_heads: int, keys: int) -> dict[str, Callable]:
    """Return the calls by name."""
    import mindspore as ms
    from flash_attention import flash_attention
    from flash_attention.compat.flash_attn import flash_attn_with_kvcache
    from mindspore import Tensor

    choose_cpu()
    ms.set_context(mode=ms.PYNATIVE_MODE)
    generator, kind = np.random.default_rng(0), getattr(ms, dtype)
    shapes = (1, heads, 1, DIM), (1, kv_heads, keys, DIM), (1, kv_heads, keys, DIM)
    arrays = [generator.standard_normal(shape, np.float32) for shape in shapes]
    tensors = [Tensor(array).astype(kind) for array in arrays]
    rows = [Tensor(array.swapaxes(1, 2).copy()).astype(kind) for array in arrays]
    hidden = np.arange(keys).reshape(1, 1, 1, -1) >= keys - PADDING
    row, bias = Tensor(hidden), Tensor(np.zeros(hidden.shape, np.float32)).astype(kind)
    ids = {"segment_ids": Tensor([[0]], ms.int32), "kv_segment_ids": Tensor(hidden[0, 0].astype(np.int32))}
    padding, length = Tensor([PADDING], ms.int32), Tensor([keys], ms.int32)

    def attend(**options):
        result = flash_attention(*tensors, backend="cpu", **options)
        (result[0] if isinstance(result, tuple) else result).asnumpy()

    def cached(**options):
        result = flash_attn_with_kvcache(*rows, cache_seqlens=length, **options)
        (result[0] if isinstance(result, tuple) else result).asnumpy()

    rules = (
        *(lambda: attend(attention_mask=row), lambda: attend(bias=bias), lambda: attend(**ids)),
        *(lambda: attend(attention_mask=row, return_lse=True), lambda: cached(return_softmax_lse=True)),
        lambda: cached(cache_leftpad=padding),
    )
    return dict(zip((*PLAIN, *CALLS), (attend, cached, *rules)))
