"""What MindSpore users do to layers: train by `Model.train`, call from threads, call after a fork, list in cells."""

import threading

import mindspore as ms
import numpy as np
import pytest
from flash_attention import FlashAttention
from mindspore import Tensor, nn
from mindspore.dataset import GeneratorDataset

HEADS, DIM, SEQ = 2, 8, 24


class Block(nn.Cell):
    """Attention layers of a CellList on a projection; (batch, seq, heads * dim) to a number per token."""

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
    """Eight batches of tokens and what is wanted of them."""
    random = np.random.default_rng(0)
    for _ in range(8):
        tokens = random.standard_normal((2, SEQ, HEADS * DIM)).astype(np.float32)
        yield tokens, tokens.mean(-1, keepdims=True)


class Losses(ms.train.Callback):
    """Keeps the loss of every call of the graph."""

    def __init__(self):
        super().__init__()
        self.values = []

    def step_end(self, run_context):
        self.values.append(float(run_context.original_args().net_outputs.asnumpy()))


def trained(path, sink_size):
    """Losses of four epochs of `Model.train`, and the parameters after them, saved to `path`."""
    ms.set_seed(5)
    np.random.seed(5)
    block = Block(0.1)
    model = ms.train.Model(block, nn.MSELoss(), nn.Adam(block.trainable_params(), 1e-2))
    losses = Losses()
    dataset = GeneratorDataset(lambda: batches(), ["tokens", "wanted"], shuffle=False)
    model.train(4, dataset, losses, dataset_sink_mode=sink_size is not None, sink_size=sink_size or -1)
    ms.save_checkpoint(block, str(path))
    return losses.values, block


@pytest.mark.parametrize("sink_size", (None, -1, 4))
def test_model_train_learns_with_and_without_data_sinking(sink_size, mode, tmp_path):
    losses, block = trained(tmp_path / "block.ckpt", sink_size)
    assert np.isfinite(losses).all() and losses[-1] < 0.5 * losses[0]
    restored = Block(0.1).set_train(False)
    assert ms.load_checkpoint(str(tmp_path / "block.ckpt"), restored)
    tokens = Tensor(next(batches())[0])
    np.testing.assert_array_equal(restored(tokens).asnumpy(), block.set_train(False)(tokens).asnumpy())


def test_threads_share_a_layer():
    layer = FlashAttention(DIM, causal=True)
    random = np.random.default_rng(4)
    inputs = [Tensor(random.standard_normal((1, HEADS, seq, DIM)).astype(np.float32)) for seq in (7, 24, 65, 130)]
    expected = [layer(one, one, one).asnumpy() for one in inputs]
    failed = []

    def call(index):
        for _ in range(10):
            if not np.array_equal(layer(inputs[index], inputs[index], inputs[index]).asnumpy(), expected[index]):
                failed.append(index)

    threads = [threading.Thread(target=call, args=(index,)) for index in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads) and failed == []


FORKED = """
import os, sys
import numpy as np
from flash_attention.backends.cpu import library
from flash_attention.problem import AttentionProblem, AttentionRules

problem = AttentionProblem(1, 2, 300, 300, 16, dtype="float32", rules=AttentionRules(causal=True))
query = np.random.default_rng(0).standard_normal((1, 2, 300, 16)).astype(np.float32)
expected = library.forward(problem, query, query, query)[0] if {warm} else None
child = os.fork()
if child == 0:
    output = library.forward(problem, query, query, query)[0]
    np.testing.assert_array_equal(output, output if expected is None else expected)
    os._exit(0 if np.isfinite(output).all() else 1)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.parametrize("warm", (False, True))
@pytest.mark.parametrize("threads", ("1", "2"))
def test_the_kernel_runs_in_a_forked_process(run_python, warm, threads):
    """OpenMP's threads do not survive a fork, which data loaders and multiprocessing do after the parent used them."""
    printed = run_python("-c", FORKED.format(warm=warm), OMP_NUM_THREADS=threads, timeout=60)
    assert printed.split()[-1] == "0"
