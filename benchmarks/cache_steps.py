"""Measure the cost of a `KVCache` token and of packed sequences on pages. One core computes.

    PYTHONPATH=train python -m benchmarks.gates caches

MindSpore hands operators to its threads, as it does by default. One addition of MindSpore's own stands beside the
caches. It shows the cost of handing over, and of waiting for a result, without this package. A process of its own
prints one JSON object: milliseconds by name.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

from flash_attention.measuring.figures import Figure
from flash_attention.measuring.implementations import choose_cpu
from flash_attention.measuring.timing import medians, on_cores

HEADS, KV_HEADS, DIM = 8, 2, 64
STEPS, ROUNDS = 100, 7
LENGTH = 2 * (ROUNDS + 1) * STEPS
KINDS = ("contiguous", "paged")
PAGES = "flash_attn_varlen_func on pages"  # of 16 sequences of 20 keys, whose table could name 262,144
NAMES = (*(f"KVCache {kind}, PYNATIVE: a token" for kind in KINDS), f"{PAGES}, PYNATIVE: a token")
ADDITION = "one addition of MindSpore's own"


def figures(quick: bool) -> list[Figure]:
    """Measure in a process of its own, print, and return the figures."""
    command = [sys.executable, "-m", __name__, str(2 if quick else STEPS)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, **on_cores(1))
    measured = json.loads(done.stdout.splitlines()[-1])
    print(f"KVCache, 1 token, up to {LENGTH} keys, H={HEADS} Hkv={KV_HEADS} D={DIM} float32, one core, ms a step;")
    print(f"{PAGES}: 16 sequences of 20 keys, whose table could name 262,144:")
    for name, (following, waiting) in measured.items():
        print(f"  {name}: {following:.2f}, and {waiting:.2f} if each result is waited for")
    reached = (measured[f"{kind}, PYNATIVE"][0] for kind in (*KINDS, PAGES))
    return [Figure(name, one, "ms") for name, one in zip(NAMES, reached)]


def measure(steps: int) -> dict[str, tuple[float, ...]]:
    """Return the milliseconds of a step, without and with waiting for each result: medians of rounds."""
    import mindspore as ms
    import numpy as np
    from flash_attention import KVCache
    from flash_attention.compat.flash_attn import flash_attn_varlen_func
    from mindspore import Tensor, ops

    choose_cpu()
    generator = np.random.default_rng(3)
    query, token = (
        Tensor(generator.standard_normal((1, 1, heads, DIM)).astype(np.float32)) for heads in (HEADS, KV_HEADS)
    )
    add = ops.Add()
    pages = Tensor(generator.standard_normal((64, 256, KV_HEADS, DIM)).astype(np.float32))
    table, ends = Tensor(np.arange(16 * 64, dtype=np.int32).reshape(16, 64) % 64), Tensor(np.arange(17, dtype=np.int32))
    queries, key_ends = Tensor(generator.standard_normal((16, HEADS, DIM)).astype(np.float32)), ends * 20

    def packed():
        return flash_attn_varlen_func(queries, pages, pages, ends, key_ends, 1, 20, block_table=table)

    measured = {}
    for mode, name in ((ms.PYNATIVE_MODE, "PYNATIVE"), (ms.GRAPH_MODE, "GRAPH")):
        ms.set_context(mode=mode)
        for kind in KINDS:
            cache = KVCache(1, LENGTH, KV_HEADS, DIM, dtype=ms.float32, paged=kind == "paged")
            measured[f"{kind}, {name}"] = _times(lambda: cache(query, token, token), steps)  # noqa: B023
        if mode == ms.PYNATIVE_MODE:
            measured[f"{PAGES}, {name}"] = _times(packed, steps)
            measured[f"{ADDITION}, {name}"] = _times(lambda: add(query, query), steps)
    return measured


def _times(step: Callable, steps: int) -> tuple[float, ...]:
    """Return the milliseconds of `step`, called 2 * (ROUNDS + 1) * steps times."""

    def following():
        for _ in range(steps):
            result = step()
        result.asnumpy()

    def waiting():
        for _ in range(steps):
            step().asnumpy()

    found = medians({"following": following, "waiting": waiting}, ROUNDS)
    return tuple(seconds / steps * 1e3 for (seconds,) in found.values())


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))))
