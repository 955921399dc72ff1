"""Run the main paths under whatever MindSpore this is: forward, gradients, both modes, dropout, dynamic shapes.

    PYTHONPATH=train:. python tests/train/flash_attention/st/support/smoke.py [BACKEND...]

Without names it takes every available backend. It needs no pytest, and MindSpore 2.0 is enough.
"""

import sys

import mindspore as ms
import numpy as np
from flash_attention import FlashAttention, available_backends
from flash_attention.backends.registry import get_backend
from mindspore import Tensor, nn, ops

from tests.train.flash_attention.support import cases
from tests.train.flash_attention.support.cases import Case
from tests.train.flash_attention.support.run import run_case

MODES = {"graph": ms.GRAPH_MODE, "pynative": ms.PYNATIVE_MODE}
OLD = ms.__version__.startswith("2.0")
CASES = (
    Case(batch=2, heads=4, kv_heads=2, seq_q=97, seq_k=150, head_dim=64, mask="compact", dropout=0.1),
    Case(batch=2, heads=3, kv_heads=1, seq_q=150, seq_k=97, head_dim=59, mask="3d", alibi="computed", dtype="float32"),
    Case(seq_q=300, seq_k=300, head_dim=128, mask="causal", blocks=(1, 65536), alibi="shared", dtype="float32"),
    Case(batch=2, seq_q=64, seq_k=64, head_dim=80, mask="rows", dropout=0.5, alibi="given"),
    Case(batch=2, seq_q=60, seq_k=77, mask="4d", mask_dtype="bool", window=(30, -1), dtype="bfloat16"),
)


class Block(nn.Cell):
    """Projections around the layer, as in a model."""

    def __init__(self, backend):
        super().__init__()
        self.project = nn.Dense(32, 96)
        self.attention = FlashAttention(16, 0.1, input_layout="BSH", causal=True, seed=5, backend=backend)

    def construct(self, hidden):
        query, key, value = ops.split(self.project(hidden), 32, 2)
        return hidden + self.attention(query, key, value)


class Loss(nn.Cell):
    """The mean square of a network's output."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def construct(self, hidden):
        return (self.network(hidden) ** 2).mean()


def train(backend, recompute):
    """Return the losses and the last gradients of a few steps of a small model."""
    ms.set_seed(1)
    block = Block(backend)
    network = nn.SequentialCell([block, nn.Dense(32, 32)])
    if recompute:
        block.recompute()
    optimizer = nn.SGD(network.trainable_params(), 0.1)
    step = nn.TrainOneStepCell(Loss(network), optimizer).set_train()
    hidden = Tensor(np.random.default_rng(0).standard_normal((2, 40, 32)).astype(np.float32))
    return [float(step(hidden).asnumpy()) for _ in range(4)]


def check_training(backend, mode):
    """Check that losses fall, repeat bit by bit, and nearly stay with recomputation."""
    losses = train(backend, recompute=False)
    assert losses[-1] < losses[0], losses
    assert train(backend, recompute=False) == losses
    if mode == "graph":
        np.testing.assert_allclose(train(backend, recompute=True), losses, rtol=1e-6)
    return losses


def check_dynamic_shapes(backend):
    """Compare a layer that is compiled once for unknown lengths with one compiled for each."""
    layers = [FlashAttention(16, causal=True, backend=backend) for _ in range(2)]
    layers[0].set_inputs(*(Tensor(shape=(None, 2, None, 16), dtype=ms.float32) for _ in range(3)))
    for batch, seq in ((2, 50), (1, 140)):
        random = np.random.default_rng(seq)
        tensors = [Tensor(random.standard_normal((batch, 2, seq, 16)).astype(np.float32)) for _ in range(3)]
        outputs = [layer(*tensors).asnumpy() for layer in layers]
        np.testing.assert_allclose(*outputs, atol=1e-6)


def main():
    """Run cases, a training and dynamic shapes on every backend and mode."""
    trained = {}
    for backend in sys.argv[1:] or available_backends():
        for mode, number in MODES.items():
            ms.set_context(mode=number)
            for case in CASES:
                if case.dtype == "bfloat16" and OLD:
                    continue
                cases.check(case, run_case(case, backend))
                print(f"ok {ms.__version__} {backend} {mode} {case}", flush=True)
            trained[backend, mode] = check_training(backend, mode)
            print(f"ok {ms.__version__} {backend} {mode} training with dropout", flush=True)
        if get_backend(backend).dynamic:
            ms.set_context(mode=ms.GRAPH_MODE)
            check_dynamic_shapes(backend)
            print(f"ok {ms.__version__} {backend} graph dynamic shapes", flush=True)
    for losses in trained.values():
        np.testing.assert_allclose(losses, next(iter(trained.values())), rtol=1e-4)
    print("ok: the same losses everywhere", [round(loss, 5) for loss in losses])


if __name__ == "__main__":
    main()
