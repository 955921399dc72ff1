#!/usr/bin/env python
"""Trains a small GPT on the same batches with one process, or data-parallel with several.

    python examples/parallel_train.py                                                    # one process
    msrun --worker_num=2 --local_worker_num=2 --join=True examples/parallel_train.py     # two, half a batch each

Each prints the mean loss of every whole batch as "step <n> loss <loss>": the same losses, but for rounding. On a CPU
this shows that parallel training is right; it is not faster than one process that uses all cores.
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

sys.path.insert(0, str(Path(__file__).parent))
from flash_attention import FlashAttention
from flash_attention.context_parallel import initialize
from small_gpt import GPT, Loss, batches, standard_library


class Mean(nn.Cell):
    """Mean over the processes."""

    def __init__(self, world: int):
        super().__init__()
        self.world = world
        self.sum = ops.AllReduce()

    def construct(self, value):
        return self.sum(value) / self.world


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--batch", type=int, default=4, help="of all processes together")
    parser.add_argument("--seq", type=int, default=256)
    options = parser.parse_args()

    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
    # msrun sets MS_WORKER_NUM for the processes that it starts.
    rank, world = initialize() if "MS_WORKER_NUM" in os.environ else (0, 1)
    if options.batch % world:
        parser.error(f"--batch {options.batch} does not divide by {world} processes")
    if world > 1:
        ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True, device_num=world)
    ms.set_seed(0)
    np.random.seed(0)
    attention = partial(FlashAttention, 32, alibi=True, causal=True, backend="cpu", input_layout="BSH")
    model = GPT(layers=2, heads=2, head_dim=32, attention=attention)
    step = nn.TrainOneStepCell(Loss(model), nn.AdamWeightDecay(model.trainable_params(), 1e-3))
    step.set_train()
    mean = Mean(world)
    source = batches(standard_library(1 << 20)[0], options.batch, options.seq, seed=0)
    share = options.batch // world
    for number in range(options.steps):
        crop = next(source)[rank * share : (rank + 1) * share]
        loss = step(Tensor(crop[:, :-1]), Tensor(crop[:, 1:]))
        loss = mean(loss) if world > 1 else loss
        print(f"step {number + 1} loss {float(loss.asnumpy()):.7f}", flush=True)


if __name__ == "__main__":
    main()
