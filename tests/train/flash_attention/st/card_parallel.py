"""A GPT over several cards: card_parallel.py PARALLEL_MODE DP MP [optimizer]. Prints card and loss of four steps.

PARALLEL_MODE is one of MindSpore's: stand_alone, data_parallel, semi_auto_parallel; with `optimizer` its states are
shared among the cards too. Every arrangement sees the same data and begins with the same weights.
"""

import sys

import mindspore as ms
import numpy as np
from flash_attention import FlashAttention
from mindspore import Parameter, Tensor, nn
from mindspore.communication import get_group_size, get_rank, init
from mindspore.ops import operations as P

BATCH, SEQ, HEADS, HEAD_DIM, VOCABULARY, LAYERS = 4, 32, 2, 16, 64, 2
WIDTH = HEADS * HEAD_DIM


def weight(generator, *shape):
    """A parameter, the same on every card."""
    return Parameter(Tensor((generator.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)))


class Linear(nn.Cell):
    """x (tokens, inputs) times a weight whose columns, or rows, are split over mp cards."""

    def __init__(self, generator, inputs, outputs, dp, columns, rows):
        super().__init__()
        self.weight = weight(generator, inputs, outputs)
        self.bias = Parameter(Tensor(np.zeros(outputs, np.float32)))
        self.product = P.MatMul().shard(((dp, rows), (rows, columns)))
        self.add = P.Add().shard(((dp, columns), (columns,)))
        self.cast = P.Cast()

    def construct(self, x):
        product = self.product(self.cast(x, ms.float16), self.cast(self.weight, ms.float16))
        return self.add(self.cast(product, ms.float32), self.bias)


class Norm(nn.Cell):
    """LayerNorm of tokens, which are split over dp cards."""

    def __init__(self, dp):
        super().__init__()
        self.gamma, self.beta = (Parameter(Tensor(make(WIDTH, np.float32))) for make in (np.ones, np.zeros))
        self.norm = P.LayerNorm(1, 1).shard(((dp, 1), (1,), (1,)))

    def construct(self, x):
        return self.norm(x, self.gamma, self.beta)[0]


class Block(nn.Cell):
    """Attention and a feed-forward part: heads and the inner width are split over mp cards, tokens over dp."""

    def __init__(self, generator, dp, mp):
        super().__init__()
        self.norm1, self.norm2 = Norm(dp), Norm(dp)
        self.query, self.key, self.value = (Linear(generator, WIDTH, WIDTH, dp, mp, 1) for _ in range(3))
        self.out = Linear(generator, WIDTH, WIDTH, dp, 1, mp)
        self.up = Linear(generator, WIDTH, 4 * WIDTH, dp, mp, 1)
        self.down = Linear(generator, 4 * WIDTH, WIDTH, dp, 1, mp)
        self.attention = FlashAttention(HEAD_DIM, dp=dp, mp=mp, causal=True, backend="tik")
        self.split = P.Transpose().shard(((dp, 1, mp, 1),))
        self.merge = P.Transpose().shard(((dp, mp, 1, 1),))
        self.add = P.Add().shard(((dp, 1), (dp, 1)))
        self.relu = P.ReLU().shard(((dp, mp),))
        self.reshape, self.cast = P.Reshape(), P.Cast()

    def heads(self, x):
        x = self.reshape(self.cast(x, ms.float16), (-1, SEQ, HEADS, HEAD_DIM))
        return self.split(x, (0, 2, 1, 3))

    def construct(self, x):
        y = self.norm1(x)
        mixed = self.attention(self.heads(self.query(y)), self.heads(self.key(y)), self.heads(self.value(y)))
        mixed = self.reshape(self.merge(mixed, (0, 2, 1, 3)), (-1, WIDTH))
        x = self.add(x, self.out(mixed))
        return self.add(x, self.down(self.relu(self.up(self.norm2(x)))))


class Loss(nn.Cell):
    """Tokens and targets int32 (batch, seq) -> mean cross-entropy."""

    def __init__(self, dp, mp):
        super().__init__()
        generator = np.random.default_rng(0)
        self.table, self.places = weight(generator, VOCABULARY, WIDTH), weight(generator, SEQ, WIDTH)
        self.blocks = nn.CellList([Block(generator, dp, mp) for _ in range(LAYERS)])
        self.norm, self.head = Norm(dp), Linear(generator, WIDTH, VOCABULARY, dp, 1, 1)
        self.gather = P.Gather().shard(((1, 1), (dp, 1)))
        self.add = P.Add().shard(((dp, 1, 1), (1, 1)))
        self.one_hot = P.OneHot().shard(((dp, 1), (), ()))
        self.entropy = P.SoftmaxCrossEntropyWithLogits().shard(((dp, 1), (dp, 1)))
        self.mean = P.ReduceMean().shard(((dp,),))
        self.on, self.off = Tensor(1.0, ms.float32), Tensor(0.0, ms.float32)
        self.reshape = P.Reshape()

    def construct(self, tokens, targets):
        x = self.reshape(self.add(self.gather(self.table, tokens, 0), self.places), (-1, WIDTH))
        for block in self.blocks:
            x = block(x)
        labels = self.one_hot(self.reshape(targets, (-1,)), VOCABULARY, self.on, self.off)
        losses, _ = self.entropy(self.head(self.norm(x)), labels)
        return self.mean(losses, 0)


def main(parallel_mode, dp, mp, *options):
    """Trains; losses of data_parallel, which are of a part of the batch, are averaged."""
    ms.set_context(mode=ms.GRAPH_MODE, device_target="Ascend")
    rank, cards = 0, 1
    if parallel_mode != "stand_alone":
        init()
        rank, cards = get_rank(), get_group_size()
    extra: dict = {"gradients_mean": True}  # in semi_auto_parallel the loss is that of all cards already
    if parallel_mode == "semi_auto_parallel":
        extra = {"dataset_strategy": "full_batch"}
    if "optimizer" in options:
        extra |= {"enable_parallel_optimizer": True, "parallel_optimizer_config": {"parallel_optimizer_threshold": 0}}
    ms.set_auto_parallel_context(parallel_mode=parallel_mode, device_num=cards, **extra)
    network = Loss(dp, mp)
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
