"""Test uses of layers: `Model.train`, a call after a fork, lists in cells."""

import mindspore as ms
import numpy as np
import pytest
from flash_attention import FlashAttention
from mindspore import Tensor, nn
from mindspore.dataset import GeneratorDataset

# The state after a step must not depend on the time at which operators run.
pytestmark = [pytest.mark.asynchronous, pytest.mark.system]

HEADS, DIM, SEQ = 2, 8, 24


class Block(nn.Cell):
    """Run attention layers of a CellList on a projection. Maps (batch, seq, heads * dim) to a number per token."""

    def __init__(self, dropout_rate=0.0):
        super().__init__()
        self.project = nn.Dense(HEADS * DIM, HEADS * DIM)
        self.layers = nn.CellList(
            [FlashAttention(DIM, dropout_rate, input_layout="BSH", causal=True, seed=seed) for seed in (1, 2)]
        )
        self.head = nn.Dense(HEADS * DIM, 1)

    def construct(self, tokens):
        for layer in self.layers:
            hidden = self.project(tokens)
            tokens = tokens + layer(hidden, hidden, hidden)
        return self.head(tokens)


def batches():
    """Yield eight batches of tokens and of the results that are wanted."""
    random = np.random.default_rng(0)
    for _ in range(8):
        tokens = random.standard_normal((2, SEQ, HEADS * DIM)).astype(np.float32)
        yield tokens, tokens.mean(-1, keepdims=True)


class Losses(ms.train.Callback):
    """Keep the loss of every call of the graph."""

    def __init__(self):
        super().__init__()
        self.values = []

    def step_end(self, run_context):
        self.values.append(float(run_context.original_args().net_outputs.asnumpy()))


def trained(path, sink_size):
    """Return the losses of four epochs of `Model.train`, and the parameters after them. They are saved to `path`."""
    ms.set_seed(5)
    np.random.seed(5)
    block = Block(0.1)
    model = ms.train.Model(block, nn.MSELoss(), nn.Adam(block.trainable_params(), 1e-2))
    losses = Losses()
    dataset = GeneratorDataset(lambda: batches(), ["tokens", "wanted"], shuffle=False)
    model.train(4, dataset, losses, dataset_sink_mode=sink_size is not None, sink_size=sink_size or -1)
    ms.save_checkpoint(block, str(path))
    return losses.values, block


@pytest.mark.parametrize(
    ("mode", "sink_size"),
    [
        *(("graph", None), ("graph", 4), ("pynative", -1)),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("graph", -1), ("pynative", None), ("pynative", 4))),
    ],
    indirect=["mode"],
)
def test_model_train_learns_with_and_without_data_sinking(sink_size, mode, tmp_path):
    losses, block = trained(tmp_path / "block.ckpt", sink_size)
    assert np.isfinite(losses).all() and losses[-1] < 0.5 * losses[0]
    restored = Block(0.1).set_train(False)
    assert ms.load_checkpoint(str(tmp_path / "block.ckpt"), restored)
    tokens = Tensor(next(batches())[0])
    np.testing.assert_array_equal(restored(tokens).asnumpy(), block.set_train(False)(tokens).asnumpy())


FORK = """
import os
import numpy as np

def forked(compute, expected):
    child = os.fork()
    if child == 0:
        output = compute()
        os._exit(0 if np.array_equal(output, output if expected is None else expected) else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

query = np.random.default_rng(0).standard_normal((1, 2, 300, 16)).astype(np.float32)
"""

KERNEL = """
from flash_attention.backends.cpu import library
from flash_attention.call import Call, AttentionRules

call = Call(1, 2, 300, 300, 16, dtype="float32", rules=AttentionRules(causal=True))
compute = lambda: library.forward(call, query, query, query)[0]
forked(compute, None)
forked(compute, compute())
"""

LAYER = """
import mindspore as ms
from flash_attention import FlashAttention

ms.set_context(mode=ms.PYNATIVE_MODE)  # a compiled graph may wait forever in a child for MindSpore's own threads
ms.runtime.launch_blocking()  # likewise any operator without this
layer, query = FlashAttention(16, causal=True), ms.Tensor(query)
compute = lambda: layer(query, query, query).asnumpy()
forked(compute, compute())
forked(compute, compute())
"""


@pytest.mark.parametrize(
    "program, threads", [(KERNEL, "1"), (KERNEL, "2"), (LAYER, "2")], ids=("kernel-1", "kernel-2", "layer-2")
)
def test_kernel_and_layer_run_in_a_forked_process(run_python, program, threads):
    """OpenMP's threads do not survive a fork. Data loaders and multiprocessing fork after such threads have run."""
    assert run_python("-c", FORK + program, OMP_NUM_THREADS=threads, timeout=120).split()[-2:] == ["0", "0"]
