"""Check what MindSpore does around a network, here on a card: card_data.py MODE CASE... Prints name, verdict, detail
of each.

A block with attention is trained with `Model.train`, on data from the host and on data that are sunk to the card. It is
also saved and loaded, evaluated, compiled as a `jit` function and exported.
"""

import sys
import tempfile
from pathlib import Path

import mindspore as ms
import numpy as np
from flash_attention import FlashAttention
from mindspore import Tensor, nn, ops
from mindspore.train import Callback, Model

from tests.train.flash_attention.st.support.card_program import on_the_card, report

BATCH, SEQ, HEADS, DIM, ITEMS = 2, 32, 2, 16, 4
BACKEND = "tik"
WIDTH = HEADS * DIM


class Block(nn.Cell):
    """Attention between projections, on (batch, seq, width)."""

    def __init__(self):
        super().__init__()
        self.inputs = nn.CellList([self.dense() for _ in range(3)])
        self.output = self.dense()
        self.attention = FlashAttention(DIM, causal=True, input_layout="BSH", backend=BACKEND)

    def dense(self):
        return nn.Dense(WIDTH, WIDTH, has_bias=False).to_float(ms.float16)

    def construct(self, tokens):
        query, key, value = self.inputs[0](tokens), self.inputs[1](tokens), self.inputs[2](tokens)
        return tokens + ops.cast(self.output(self.attention(query, key, value)), ms.float32)


def block():
    """Return the network with the same weights each time."""
    network, random = Block(), np.random.default_rng(0)
    for weight in network.trainable_params():
        weight.set_data(Tensor((random.standard_normal(weight.shape) / np.sqrt(WIDTH)).astype(np.float32)))
    return network


def data():
    """Return batches of tokens and of the results that the network should give."""
    random = np.random.default_rng(1)
    tokens, wanted = random.standard_normal((2, ITEMS * BATCH, SEQ, WIDTH)).astype(np.float32)
    columns = {"tokens": tokens, "wanted": wanted}
    return ms.dataset.NumpySlicesDataset(columns, shuffle=False).batch(BATCH)


class Losses(Callback):
    """Keep the losses of all steps, or of the last step of each sink."""

    def __init__(self):
        super().__init__()
        self.found = []

    def step_end(self, run_context):
        self.found.append(float(run_context.original_args().net_outputs.asnumpy()))


def trained(sink, epochs=2, **options):
    """Return the network after some epochs, and the losses."""
    network, losses = block(), Losses()
    optimizer = nn.Adam(network.trainable_params(), 1e-2)
    model = Model(network, nn.MSELoss(), optimizer, metrics={"mse": nn.MSE()})
    model.train(epochs, data(), callbacks=[losses], dataset_sink_mode=sink, **options)
    return network, model, losses.found


def by_hand(epochs=2):
    """Return the losses of the same steps without `Model`."""
    network = block()
    optimizer = nn.Adam(network.trainable_params(), 1e-2)
    step = nn.TrainOneStepCell(nn.WithLossCell(network, nn.MSELoss()), optimizer).set_train()
    return [float(step(*batch).asnumpy()) for _ in range(epochs) for batch in data().create_tuple_iterator()]


def train():
    """Check that `Model.train` makes the steps that `TrainOneStepCell` makes."""
    *_, losses = trained(False)
    assert len(losses) == 2 * ITEMS and losses[-1] < losses[0], losses
    np.testing.assert_allclose(losses, by_hand(), rtol=1e-3)


def check_sunk(losses, right, every):
    """Compare the losses of each sink's last step. A CPU shows all steps."""
    shown = right if len(losses) == len(right) else right[every - 1 :: every][: len(losses)]
    assert len(losses) > 1
    np.testing.assert_allclose(losses, shown, rtol=1e-3)


def sink():
    """Give the card a whole epoch at a time."""
    check_sunk(trained(True)[-1], by_hand(), ITEMS)


def sink_by_two():
    """Give the card two steps at a time."""
    check_sunk(trained(True, epochs=4, sink_size=2)[-1], by_hand(4), 2)


def checkpoint():
    """Check that weights that were saved give the same output in another network."""
    network, _, _ = trained(False, 1)
    tokens = Tensor(np.random.default_rng(2).standard_normal((BATCH, SEQ, WIDTH)).astype(np.float32))
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "block.ckpt")
        ms.save_checkpoint(network, path)
        other = block()
        before = other(tokens).asnumpy()
        ms.load_checkpoint(path, other)
    np.testing.assert_array_equal(other(tokens).asnumpy(), network(tokens).asnumpy())
    assert np.abs(before - network(tokens).asnumpy()).max() > 1e-3


def evaluate(sink=False):
    """Check that `Model.eval` gives the error of all batches."""
    network, model, _ = trained(False, 1)
    found = model.eval(data(), dataset_sink_mode=sink)["mse"]
    pairs = [(network(tokens).asnumpy(), wanted.asnumpy()) for tokens, wanted in data().create_tuple_iterator()]
    squares = sum(float(((one - other) ** 2).sum()) for one, other in pairs)
    assert found > 0
    np.testing.assert_allclose(found, squares / (ITEMS * BATCH), rtol=1e-4)


def jit():
    """Compare a `jit` function with the function itself in the mode that is set."""
    network = block()
    tokens = Tensor(np.random.default_rng(2).standard_normal((BATCH, SEQ, WIDTH)).astype(np.float32))

    @ms.jit
    def compiled(tokens):
        return network(tokens) * 2

    for _ in range(2):
        np.testing.assert_allclose(compiled(tokens).asnumpy(), 2 * network(tokens).asnumpy(), atol=1e-5)
        tokens = tokens + 1


def export():
    """Export to MINDIR, and load again."""
    network = block()
    tokens = Tensor(np.random.default_rng(2).standard_normal((BATCH, SEQ, WIDTH)).astype(np.float32))
    right = network(tokens).asnumpy()
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "block")
        ms.export(network, tokens, file_name=path, file_format="MINDIR")
        graph = ms.load(f"{path}.mindir")
    np.testing.assert_array_equal(nn.GraphCell(graph)(tokens).asnumpy(), right)


CASES = {
    "train": train,
    "checkpoint": checkpoint,
    "eval": evaluate,
    "jit": jit,
    "export": export,
    "sink": sink,
    "sink by two": sink_by_two,
    "eval of sunk data": lambda: evaluate(True),
}

# In PYNATIVE MindSpore 2.0 runs no MINDIR, and asks a sunk dataset for tensors of no elements.
OF_GRAPHS = "export", "sink", "sink by two", "eval of sunk data"

if __name__ == "__main__":
    on_the_card(sys.argv[1])
    all_of_them = [name for name in CASES if sys.argv[1] == "graph" or name not in OF_GRAPHS]
    report(sys.argv[2:] or all_of_them, lambda name: CASES[name]())
