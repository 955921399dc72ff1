"""A small language model trains alike on every backend and beside composed attention."""

import mindspore as ms
import numpy as np
import pytest
from flash_attention import FlashAttention
from mindspore import Tensor, nn, ops

from tests.train.flash_attention.support.modes import in_mode

# The state after a step must not depend on the time at which operators run.
pytestmark = [pytest.mark.asynchronous, pytest.mark.system]

VOCABULARY, SEQ, HEADS, HEAD_DIM, STEPS = 61, 200, 2, 24, 12


class Composed(nn.Cell):
    """Causal attention of separate operators, which FlashAttention replaces."""

    def __init__(self):
        super().__init__()
        self.mask = Tensor(np.triu(np.full((SEQ, SEQ), -1e9, np.float32), 1))

    def construct(self, query, key, value):
        scores = ops.matmul(query, key.transpose(0, 1, 3, 2)) / HEAD_DIM**0.5
        return ops.matmul(ops.softmax(scores + self.mask, -1), value)


class Block(nn.Cell):
    """A transformer block around an attention."""

    def __init__(self, attention):
        super().__init__()
        width = HEADS * HEAD_DIM
        self.attention = attention
        self.first, self.second = nn.LayerNorm((width,)), nn.LayerNorm((width,))
        self.project, self.join = nn.Dense(width, 3 * width), nn.Dense(width, width)
        self.widen, self.narrow = nn.Dense(width, 4 * width, activation="relu"), nn.Dense(4 * width, width)

    def construct(self, hidden):
        batch = hidden.shape[0]
        heads = ops.reshape(self.project(self.first(hidden)), (batch, SEQ, 3, HEADS, HEAD_DIM))
        heads = ops.transpose(heads, (2, 0, 3, 1, 4))
        mixed = self.attention(heads[0], heads[1], heads[2])
        mixed = ops.reshape(ops.transpose(mixed, (0, 2, 1, 3)), hidden.shape)
        hidden = hidden + self.join(mixed)
        return hidden + self.narrow(self.widen(self.second(hidden)))


class Model(nn.Cell):
    """Next-token loss of a transformer."""

    def __init__(self, attention, blocks):
        super().__init__()
        width = HEADS * HEAD_DIM
        self.embed, self.place = nn.Embedding(VOCABULARY, width), nn.Embedding(SEQ, width)
        self.blocks = nn.SequentialCell([Block(attention()) for _ in range(blocks)])
        self.predict = nn.Dense(width, VOCABULARY)
        self.positions = Tensor(np.arange(SEQ, dtype=np.int32))

    def construct(self, tokens, following):
        logits = self.predict(self.blocks(self.embed(tokens) + self.place(self.positions)))
        return ops.cross_entropy(logits.reshape(-1, VOCABULARY), following.reshape(-1))


def losses(attention, mode, steps=STEPS, blocks=2):
    """Return the losses over some steps on text with a structure to learn."""
    with in_mode(mode):
        ms.set_seed(3)
        model = Model(attention, blocks)
        step = nn.TrainOneStepCell(model, nn.Adam(model.trainable_params(), 3e-3)).set_train()
        text = np.cumsum(np.random.default_rng(0).integers(0, 3, size=(4, SEQ + 1)), axis=1) % VOCABULARY
        tokens, following = Tensor(text[:, :-1].astype(np.int32)), Tensor(text[:, 1:].astype(np.int32))
        return np.array([float(step(tokens, following).asnumpy()) for _ in range(steps)])


def test_flash_attention_trains_like_composed_attention():
    flash = losses(lambda: FlashAttention(HEAD_DIM, causal=True, backend="cpu"), "graph")
    composed = losses(Composed, "graph")
    assert composed[-1] < 0.85 * composed[0]
    np.testing.assert_allclose(flash, composed, rtol=2e-3)


def with_dropout(backend):
    """Make the layer with dropout."""
    return lambda: FlashAttention(HEAD_DIM, 0.2, causal=True, backend=backend)


@pytest.fixture(scope="module")
def dropout_losses():
    """Return the losses of four steps with dropout in a graph."""
    return losses(with_dropout("cpu"), "graph", 4, 1)


@pytest.mark.parametrize(
    ("backend", "mode"),
    (("math", "pynative"), ("cpu", "pynative"), pytest.param("math", "graph", marks=pytest.mark.slow)),
)
def test_with_dropout_backends_and_modes_agree(backend, mode, dropout_losses):
    np.testing.assert_allclose(losses(with_dropout(backend), mode, 4, 1), dropout_losses, rtol=1e-4)


def test_runs_are_bit_equal(dropout_losses):
    np.testing.assert_array_equal(losses(with_dropout("cpu"), "graph", 4, 1), dropout_losses)
