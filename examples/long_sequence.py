#!/usr/bin/env python
"""One long sequence over several processes: forward and backward of GatherAttention, beside one process holding it all.

    msrun --worker_num=2 --local_worker_num=2 --join=True examples/long_sequence.py --seq 4096

Process 0 prints how far output and gradients are from FlashAttention on the whole sequence.
"""

from __future__ import annotations

import argparse
import time

import mindspore as ms
import numpy as np
from flash_attention import FlashAttention
from flash_attention.context_parallel import GatherAttention, SequenceSplit, finalize, initialize
from mindspore import Tensor, ops


def run(attention, tensors: list) -> list:
    """Return the output, and gradients of query, key and value, as arrays."""
    differentiate = ops.GradOperation(get_all=True, sens_param=True)(attention)
    return [tensor.asnumpy() for tensor in (attention(*tensors[:3]), *differentiate(*tensors))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seq", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--head-dim", type=int, default=64)
    options = parser.parse_args()

    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    rank, world = initialize(timeout=120)
    random = np.random.default_rng(0)
    shapes = [(1, heads, options.seq, options.head_dim) for heads in (options.heads, *[options.kv_heads] * 2)]
    arrays = [random.standard_normal(shape).astype(np.float32) for shape in (*shapes, shapes[0])]

    split = SequenceSplit(world)  # zigzag: equal work for all under a causal mask
    start = time.perf_counter()
    parts = [Tensor(split.split(array, rank, 2)) for array in arrays]
    mine = run(GatherAttention(options.head_dim, causal=True), parts)
    seconds = time.perf_counter() - start
    if rank == 0:
        whole = run(FlashAttention(options.head_dim, causal=True), [Tensor(array) for array in arrays])
        print(f"{world} processes, {options.seq} tokens, {seconds:.2f} s; largest difference from one process:")
        for name, part, full in zip(("output", "d_query", "d_key", "d_value"), mine, whole):
            print(f"  {name}: {np.abs(part - split.split(full, 0, 2)).max():.1e}")
    finalize()


if __name__ == "__main__":
    main()
