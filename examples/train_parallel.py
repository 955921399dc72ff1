#!/usr/bin/env python
"""Train a small GPT, its batch split over dp devices and its heads over mp.

    python examples/train_parallel.py                                                     # one process
    msrun --worker_num=8 --local_worker_num=8 --join=True examples/train_parallel.py --device CPU --dp 4 --mp 2

docs/parallel.md has the lines for an Ascend. Every process prints the mean loss of every whole batch as "step <n> loss
<loss>": the same losses for every arrangement, but for rounding. On Ascend the graph is written as for one device, and
MindSpore splits it by the strategies of the operators (semi-automatic parallelism). It refuses that on a CPU. There the
weights are cut and the sums are called by hand: what MindSpore does on Ascend, in some thirty lines. On a CPU this
shows that parallel training is right; it is not faster than one process that uses all cores.
"""

from __future__ import annotations

import argparse
import os

import mindspore as ms
import numpy as np
from flash_attention import FlashAttention
from mindspore import Parameter, Tensor, nn, ops
from mindspore.communication import create_group, get_group_size, get_rank, init
from mindspore.ops import operations as P
from small_gpt import batches, standard_library

try:
    from mindspore.parallel.auto_parallel import AutoParallel
except ImportError:  # older MindSpore: the context says it
    AutoParallel = None


# ------------------------------------------------------------------------------------------------ who has what
class ByMindSpore:
    """Write down the whole model; MindSpore splits it by the operators' strategies."""

    def __init__(self, dp: int, mp: int):
        self.dp, self.mp = dp, mp
        # The arguments of the layers: MindSpore splits them.
        self.attention = {"dp": dp, "mp": mp}
        self.heads_in = self.heads_out = self.sum_of_gradients = nn.Identity()

    def split(self, primitive, *strategies: tuple):
        """Return the primitive, with a strategy for each input: into how many parts each axis is split."""
        return primitive.shard(strategies)

    def part(self, array: np.ndarray, axis: int | None) -> np.ndarray:
        """Return a weight as this process keeps it; MindSpore cuts it."""
        return array

    def rows(self, batch: np.ndarray) -> np.ndarray:
        """Return the items of the batch that this process is fed."""
        return batch

    def mean(self, loss: Tensor) -> Tensor:
        """Return the loss of the whole batch."""
        return loss


class ByHand:
    """Hold a part of weights and batch in every process, and sum over the others.

    Neighbours share items and have different heads: process r has part r // mp of the batch and r % mp of the heads.
    """

    def __init__(self, dp: int, mp: int):
        self.dp, self.mp = dp, mp
        rank = get_rank() if dp * mp > 1 else 0
        self.batch_part, self.head_part = divmod(rank, mp)
        self.attention = {}
        heads = [self.batch_part * mp + one for one in range(mp)]
        batch = [one * mp + self.head_part for one in range(dp)]
        self.heads_in, self.heads_out = SumOfGradients(heads), Sum(heads)
        self.sum_of_gradients = Sum(batch)

    def split(self, primitive, *strategies: tuple):
        return primitive

    def part(self, array: np.ndarray, axis: int | None) -> np.ndarray:
        return array if axis is None else np.split(array, self.mp, axis)[self.head_part]

    def rows(self, batch: np.ndarray) -> np.ndarray:
        return np.split(batch, self.dp)[self.batch_part]

    def mean(self, loss: Tensor) -> Tensor:
        return self.sum_of_gradients(loss) / self.dp


class Sum(nn.Cell):
    """The sum of a tensor over some processes. All have the same gradient, so each takes it as its own."""

    def __init__(self, processes: list[int]):
        super().__init__()
        self.alone = len(processes) == 1
        if not self.alone:
            self.sum = ops.AllReduce(group=group(processes))

    def construct(self, tensor):
        if self.alone:
            return tensor
        return self.sum(tensor)

    def bprop(self, tensor, output, gradient):
        return (gradient,)


class SumOfGradients(Sum):
    """The tensor itself, which some processes share. Its gradient is the sum of their gradients."""

    def construct(self, tensor):
        return tensor

    def bprop(self, tensor, output, gradient):
        if self.alone:
            return (gradient,)
        return (self.sum(gradient),)


def group(processes: list[int]) -> str:
    """Return the name of a group of processes, which is made at the first call."""
    name = "-".join(map(str, processes))
    if name not in _groups:
        create_group(name, processes)
        _groups.add(name)
    return name


_groups: set[str] = set()


# ------------------------------------------------------------------------------------------------ model
class Sizes:
    """Return the parameters of the model."""

    def __init__(self, seq: int, heads: int, head_dim: int, vocabulary: int, layers: int, backend: str):
        self.seq, self.heads, self.head_dim = seq, heads, head_dim
        self.vocabulary, self.layers, self.backend = vocabulary, layers, backend
        self.width = heads * head_dim
        self.matmul = ms.float16 if backend == "tik" else ms.float32


def weight(generator: np.random.Generator, how, *shape: int, axis: int | None = None) -> Parameter:
    """Make a parameter whose `axis` is split over mp. Every process draws the whole."""
    whole = (generator.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
    return Parameter(Tensor(np.ascontiguousarray(how.part(whole, axis))))


class Linear(nn.Cell):
    """Multiply x (tokens, inputs) with a weight (inputs, outputs); add a bias. Columns or rows of the weight are split
    over mp.

    Columns: each process has its own outputs. Rows: each has a part of every sum.
    """

    def __init__(self, generator, sizes: Sizes, how, inputs: int, outputs: int, split: str = ""):
        super().__init__()
        columns, rows = (how.mp if split == one else 1 for one in ("columns", "rows"))
        axis = {"columns": 1, "rows": 0}.get(split)
        self.weight = weight(generator, how, inputs, outputs, axis=axis)
        self.bias = Parameter(Tensor(how.part(np.zeros(outputs, np.float32), 0 if split == "columns" else None)))
        self.product = how.split(P.MatMul(), (how.dp, rows), (rows, columns))
        self.add = how.split(P.Add(), (how.dp, columns), (columns,))
        self.before = how.heads_in if split == "columns" else nn.Identity()
        self.after = how.heads_out if split == "rows" else nn.Identity()
        self.cast, self.dtype = P.Cast(), sizes.matmul

    def construct(self, x):
        product = self.product(self.cast(self.before(x), self.dtype), self.cast(self.weight, self.dtype))
        return self.add(self.after(self.cast(product, ms.float32)), self.bias)


class Norm(nn.Cell):
    """LayerNorm of tokens, which are split over dp."""

    def __init__(self, sizes: Sizes, how):
        super().__init__()
        self.gamma, self.beta = (Parameter(Tensor(make(sizes.width, np.float32))) for make in (np.ones, np.zeros))
        self.norm = how.split(P.LayerNorm(1, 1), (how.dp, 1), (1,), (1,))

    def construct(self, x):
        return self.norm(x, self.gamma, self.beta)[0]


class Block(nn.Cell):
    """Attention and a feed-forward part: heads and the inner width are split over mp, tokens over dp."""

    def __init__(self, generator, sizes: Sizes, how):
        super().__init__()
        width, inner = sizes.width, 4 * sizes.width
        self.norm1, self.norm2 = Norm(sizes, how), Norm(sizes, how)
        self.query, self.key, self.value = (Linear(generator, sizes, how, width, width, "columns") for _ in range(3))
        self.out = Linear(generator, sizes, how, width, width, "rows")
        self.up = Linear(generator, sizes, how, width, inner, "columns")
        self.down = Linear(generator, sizes, how, inner, width, "rows")
        self.attention = FlashAttention(sizes.head_dim, causal=True, backend=sizes.backend, **how.attention)
        self.split = how.split(P.Transpose(), (how.dp, 1, how.mp, 1))
        self.merge = how.split(P.Transpose(), (how.dp, how.mp, 1, 1))
        self.add = how.split(P.Add(), (how.dp, 1), (how.dp, 1))
        self.relu = how.split(P.ReLU(), (how.dp, how.mp))
        self.reshape, self.cast, self.dtype = P.Reshape(), P.Cast(), sizes.matmul
        self.shape = (-1, sizes.seq, len(how.part(np.zeros(sizes.heads), 0)), sizes.head_dim)
        self.mixed_shape = (-1, self.shape[2] * sizes.head_dim)

    def heads(self, x):
        return self.split(self.reshape(self.cast(x, self.dtype), self.shape), (0, 2, 1, 3))

    def construct(self, x):
        y = self.norm1(x)
        mixed = self.attention(self.heads(self.query(y)), self.heads(self.key(y)), self.heads(self.value(y)))
        mixed = self.reshape(self.merge(mixed, (0, 2, 1, 3)), self.mixed_shape)
        x = self.add(x, self.out(mixed))
        return self.add(x, self.down(self.relu(self.up(self.norm2(x)))))


class Loss(nn.Cell):
    """Tokens and targets int32 (batch, seq) -> mean cross-entropy. `how`: ByMindSpore or ByHand."""

    def __init__(self, sizes: Sizes, how):
        super().__init__()
        generator = np.random.default_rng(0)
        width, vocabulary, dp = sizes.width, sizes.vocabulary, how.dp
        self.table, self.places = (weight(generator, how, rows, width) for rows in (vocabulary, sizes.seq))
        self.blocks = nn.CellList([Block(generator, sizes, how) for _ in range(sizes.layers)])
        self.norm, self.head = Norm(sizes, how), Linear(generator, sizes, how, width, vocabulary)
        self.gather = how.split(P.Gather(), (1, 1), (dp, 1))
        self.add = how.split(P.Add(), (dp, 1, 1), (1, 1))
        self.one_hot = how.split(P.OneHot(), (dp, 1), (), ())
        self.entropy = how.split(P.SoftmaxCrossEntropyWithLogits(), (dp, 1), (dp, 1))
        self.mean = how.split(P.ReduceMean(), (dp,))
        self.on, self.off = Tensor(1.0, ms.float32), Tensor(0.0, ms.float32)
        self.reshape, self.width, self.vocabulary = P.Reshape(), width, vocabulary

    def construct(self, tokens, targets):
        x = self.reshape(self.add(self.gather(self.table, tokens, 0), self.places), (-1, self.width))
        for block in self.blocks:
            x = block(x)
        labels = self.one_hot(self.reshape(targets, (-1,)), self.vocabulary, self.on, self.off)
        losses, _ = self.entropy(self.head(self.norm(x)), labels)
        return self.mean(losses, 0)


class StepByHand(nn.TrainOneStepCell):
    """Take a step with gradients averaged over processes with other parts of the batch."""

    def __init__(self, network: nn.Cell, optimizer: nn.Optimizer, how: ByHand):
        super().__init__(network, optimizer)
        self.sum, self.dp = how.sum_of_gradients, how.dp

    def construct(self, tokens, targets):
        loss = self.network(tokens, targets)
        gradients = self.grad(self.network, self.weights)(tokens, targets, ops.ones_like(loss))
        means = ()
        for gradient in gradients:
            means += (self.sum(gradient) / self.dp,)
        return ops.depend(loss, self.optimizer(means))


# ------------------------------------------------------------------------------------------------ training
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=("CPU", "Ascend"), default="CPU")
    parser.add_argument("--dp", type=int, default=1, help="parts of the batch")
    parser.add_argument("--mp", type=int, default=1, help="parts of the heads and of the inner width")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--batch", type=int, default=8, help="of all processes together")
    parser.add_argument("--seq", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=16)
    options = parser.parse_args()
    processes = options.dp * options.mp
    for name, parts in (("batch", options.dp), ("heads", options.mp)):
        if getattr(options, name) % parts:
            parser.error(f"--{name}: got {getattr(options, name)}, allowed are multiples of {parts}")

    ms.set_context(mode=ms.GRAPH_MODE, device_target=options.device)
    ms.set_seed(0)
    if processes > 1:
        # On a CPU a process that is missing is an error after this time, on Ascend after HCCL_EXEC_TIMEOUT.
        os.environ.setdefault("MS_CPU_COMM_OP_TIMEOUT", "300")
        init("mccl" if options.device == "CPU" else "hccl")
        if get_group_size() != processes:
            parser.error(f"--dp times --mp: got {processes}, allowed is the number of processes, {get_group_size()}")
    on_ascend = options.device == "Ascend"
    semi_automatic = on_ascend and processes > 1
    if semi_automatic and AutoParallel is None:  # before there is any parameter
        parallel = {"parallel_mode": "semi_auto_parallel", "device_num": processes}
        ms.set_auto_parallel_context(dataset_strategy="full_batch", **parallel)
    how = (ByMindSpore if on_ascend else ByHand)(options.dp, options.mp)
    backend = "tik" if on_ascend else "cpu"
    network = Loss(Sizes(options.seq, options.heads, options.head_dim, 256, options.layers, backend), how)
    optimizer = nn.AdamWeightDecay(network.trainable_params(), 1e-3)
    step = nn.TrainOneStepCell(network, optimizer) if on_ascend else StepByHand(network, optimizer, how)
    if semi_automatic and AutoParallel is not None:
        step = AutoParallel(step, parallel_mode="semi_auto")
        step.dataset_strategy("full_batch")
    step.set_train()
    source = batches(standard_library(1 << 20)[0], options.batch, options.seq, seed=0)
    for number in range(options.steps):
        crop = how.rows(next(source))
        loss = how.mean(step(Tensor(crop[:, :-1]), Tensor(crop[:, 1:])))
        print(f"step {number + 1} loss {float(loss.asnumpy()):.7f}", flush=True)


if __name__ == "__main__":
    main()
