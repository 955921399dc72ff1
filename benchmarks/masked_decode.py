"""One query against many keys with a rule of keys beside it: the time as a multiple of the time without.

    PYTHONPATH=train python -m benchmarks.figures masked_decode

MindSpore and torch have a process each. In both the calls with and without a rule take turns, so a ratio compares the
same minutes. A process prints one JSON object: [median ratio, median milliseconds] by name.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
from flash_attention.call import DTYPES
from flash_attention.measuring.figures import Figure
from flash_attention.measuring.implementations import choose_cpu
from flash_attention.measuring.timing import on_cores, rounds_in_turns

KEYS, DIM, ROUNDS = 32768, 128, 9
HEADS = ((8, 8), (8, 2), (32, 4), (32, 1))
THREADS = (1, 2)
# Keys at the start or end that are padding.
PADDING = 7
PLAIN = ("without", "without, kvcache")
CALLS = (
    *("mask row", "bias row", "segment ids", "mask row with logsumexp"),
    *("kvcache with logsumexp", "kvcache with left padding"),
)


def figures(quick: bool) -> list[Figure]:
    """Measure both in processes of their own, print, and return the figures."""
    found = []
    for threads in THREADS:
        ours = _measured("ours", threads, quick)
        theirs = _measured("torch", threads, quick) if importlib.util.find_spec("torch") else {}
        for name, (ratio, milliseconds) in ours.items():
            beside = "; torch " + "{:.2f}x, {:.2f} ms".format(*theirs[name]) if name in theirs else ""
            print(f"masked decode, {threads} threads, {name}: {ratio:.2f}x, {milliseconds:.2f} ms{beside}", flush=True)
            if not name.endswith(PLAIN):
                note = f"torch {theirs[name][0]:.2f}" if name in theirs else ""
                found.append(Figure(f"masked decode, {threads} threads, {name}", ratio, "x the time", note))
    return found


def names() -> list[str]:
    """Return the names of all figures."""
    kinds = [f"{dtype} {heads}/{kv_heads} {call}" for dtype in DTYPES for heads, kv_heads in HEADS for call in CALLS]
    return [f"masked decode, {threads} threads, {kind}" for threads in THREADS for kind in kinds]


def _measured(which: str, threads: int, quick: bool) -> dict[str, list[float]]:
    command = [sys.executable, "-m", __name__, which, str(512 if quick else KEYS), str(1 if quick else ROUNDS)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, **on_cores(threads))
    return json.loads(done.stdout.splitlines()[-1])


def measure(calls_of: Callable[..., dict], keys: int, rounds: int) -> dict[str, tuple[float, float]]:
    """Return ratios and milliseconds of all calls, by name."""
    measured = {}
    for dtype in DTYPES:
        for heads, kv_heads in HEADS:
            calls = calls_of(dtype, heads, kv_heads, keys)
            found = dict(zip(calls, rounds_in_turns([_seconds_of(call) for call in calls.values()], rounds)))
            for name, seconds in found.items():
                plain = found[PLAIN["kvcache" in name]] if name not in PLAIN else seconds
                ratio = statistics.median(own / other for own, other in zip(seconds, plain))
                measured[f"{dtype} {heads}/{kv_heads} {name}"] = ratio, 1e3 * statistics.median(seconds)
    return measured


def _seconds_of(call: Callable[[], object]) -> Callable[[], float]:
    """Return a step that gives the shortest time of three calls: others use the machine as well."""

    def seconds() -> float:
        times = []
        for _ in range(3):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        return min(times)

    return seconds


def _arrays(heads: int, kv_heads: int, keys: int) -> tuple:
    """Return query, key and value, and which keys a row of padding hides."""
    generator = np.random.default_rng(0)
    shapes = (1, heads, 1, DIM), (1, kv_heads, keys, DIM), (1, kv_heads, keys, DIM)
    tensors = [generator.standard_normal(shape, np.float32) for shape in shapes]
    return (*tensors, np.arange(keys).reshape(1, 1, 1, -1) >= keys - PADDING)


def our_calls(dtype: str, heads: int, kv_heads: int, keys: int) -> dict[str, Callable]:
    """Return the calls of this package, by name."""
    import mindspore as ms
    from flash_attention import flash_attention
    from flash_attention.compat.flash_attn import flash_attn_with_kvcache
    from mindspore import Tensor

    choose_cpu()
    ms.set_context(mode=ms.PYNATIVE_MODE)
    *arrays, hidden = _arrays(heads, kv_heads, keys)
    query, key, value = (Tensor(array).astype(getattr(ms, dtype)) for array in arrays)
    rows = [Tensor(array.swapaxes(1, 2).copy()).astype(getattr(ms, dtype)) for array in arrays]
    row, bias = Tensor(hidden), Tensor(np.zeros(hidden.shape, np.float32)).astype(getattr(ms, dtype))
    ids = {"segment_ids": Tensor([[0]], ms.int32), "kv_segment_ids": Tensor(hidden[0, 0].astype(np.int32))}
    padding, length = Tensor([PADDING], ms.int32), Tensor([keys], ms.int32)

    def attend(mask=None, **options):
        result = flash_attention(query, key, value, mask, backend="cpu", **options)
        (result[0] if isinstance(result, tuple) else result).asnumpy()

    def cached(**options):
        result = flash_attn_with_kvcache(*rows, cache_seqlens=length, **options)
        (result[0] if isinstance(result, tuple) else result).asnumpy()

    rules = (
        *(lambda: attend(row), lambda: attend(bias=bias), lambda: attend(**ids), lambda: attend(row, return_lse=True)),
        *(lambda: cached(return_softmax_lse=True), lambda: cached(cache_leftpad=padding)),
    )
    return dict(zip((*PLAIN, *CALLS), (attend, cached, *rules)))


def torch_calls(dtype: str, heads: int, kv_heads: int, keys: int) -> dict[str, Callable]:
    """Return the calls of torch that are the same, by name."""
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    *arrays, hidden = _arrays(heads, kv_heads, keys)
    tensors = [torch.from_numpy(array).to(getattr(torch, dtype)) for array in arrays]
    seen, bias = torch.from_numpy(~hidden), torch.zeros(hidden.shape, dtype=getattr(torch, dtype))

    def attend(mask=None):
        with torch.no_grad():
            torch.nn.functional.scaled_dot_product_attention(*tensors, attn_mask=mask, enable_gqa=True)

    return {PLAIN[0]: attend, "mask row": lambda: attend(seen), "bias row": lambda: attend(bias)}


if __name__ == "__main__":
    chosen = {"ours": our_calls, "torch": torch_calls}[sys.argv[1]]
    print(json.dumps(measure(chosen, int(sys.argv[2]), int(sys.argv[3]))))
