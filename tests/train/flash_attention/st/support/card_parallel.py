"""A GPT over several cards: card_parallel.py PARALLEL_MODE DP MP [optimizer]. Prints card and loss of four steps.

The model comes from examples/train_parallel.py. PARALLEL_MODE is one of MindSpore's: stand_alone, data_parallel,
semi_auto_parallel. With `optimizer`, the optimizer's states are split over the cards too. Every arrangement sees the
same data and begins with the same weights.
"""

import sys
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from mindspore.communication import get_group_size, get_rank, init

sys.path.insert(0, str(Path(__file__).resolve().parents[5] / "examples"))
from train_parallel import ByMindSpore, Loss, Sizes

BATCH, SEQ, VOCABULARY = 4, 32, 64
SIZES = Sizes(SEQ, heads=2, head_dim=16, vocabulary=VOCABULARY, layers=2, backend="tik")


def main(parallel_mode, dp, mp, *options):
    """Train a GPT. Losses of data_parallel are averaged: each card's loss is for its part of the batch."""
    ms.set_context(mode=ms.GRAPH_MODE, device_target="Ascend")
    rank, cards = 0, 1
    if parallel_mode != "stand_alone":
        init()
        rank, cards = get_rank(), get_group_size()
    extra: dict = {"gradients_mean": True}  # in semi_auto_parallel the loss covers all cards already
    if parallel_mode == "semi_auto_parallel":
        extra = {"dataset_strategy": "full_batch"}
    if "optimizer" in options:
        extra |= {"enable_parallel_optimizer": True, "parallel_optimizer_config": {"parallel_optimizer_threshold": 0}}
    ms.set_auto_parallel_context(parallel_mode=parallel_mode, device_num=cards, **extra)
    network = Loss(SIZES, ByMindSpore(dp, mp))
    optimizer = nn.AdamWeightDecay(network.trainable_params(), 1e-2, eps=1e-3)
    step = nn.TrainOneStepCell(network, optimizer).set_train()
    mine = slice(None)
    if parallel_mode == "data_parallel":
        mine = slice(rank * BATCH // cards, (rank + 1) * BATCH // cards)
    generator = np.random.default_rng(1)
    for _ in range(4):
        tokens = np.cumsum(generator.integers(0, 3, (BATCH, SEQ + 1)), 1).astype(np.int32) % VOCABULARY
        loss = step(Tensor(tokens[mine, :-1]), Tensor(tokens[mine, 1:]))
        print(rank, loss.asnumpy(), flush=True)


if __name__ == "__main__":
    mode, dp, mp, *rest = sys.argv[1:]
    main(mode, int(dp), int(mp), *rest)
