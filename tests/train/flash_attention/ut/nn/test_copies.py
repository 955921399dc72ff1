"""Copies of the layer, by `copy.deepcopy` and `pickle`: independent, repeatable, with dropout of their own."""

import copy
import pickle

import mindspore as ms
import numpy as np
import pytest
from flash_attention import FlashAttention
from mindspore import Tensor, nn

from tests.train.flash_attention.support.modes import MODES_AND_BACKENDS

X = Tensor(np.random.default_rng(0).standard_normal((1, 2, 40, 16)).astype(np.float32))


def run(layer):
    """Return the output of a layer."""
    return layer(X, X, X).asnumpy()


def copies(layer):
    """Return the layer, a copy, a second copy, and a copy of the first copy."""
    first = copy.deepcopy(layer)
    return layer, first, copy.deepcopy(layer), copy.deepcopy(first)


def all_differ(arrays):
    """Return True if no two of the arrays are alike."""
    return all(np.abs(one - two).max() > 0.1 for index, one in enumerate(arrays) for two in arrays[:index])


@pytest.mark.spread
@pytest.mark.parametrize(("mode", "backend"), MODES_AND_BACKENDS, indirect=["mode"])
@pytest.mark.parametrize("called", (False, True), ids=("new", "called"))
def test_a_copy_computes_the_same(called, backend, mode):
    layer = FlashAttention(16, causal=True, window_size=(9, 0), scale=0.3, backend=backend)
    expected = run(FlashAttention(16, causal=True, window_size=(9, 0), scale=0.3, backend=backend))
    if called:
        run(layer)
    for duplicate in copies(layer):
        np.testing.assert_array_equal(run(duplicate), expected)


@pytest.mark.spread
@pytest.mark.parametrize(
    ("mode", "called", "seed"),
    [
        *(("pynative", called, seed) for called in (False, True) for seed in (None, 7)),
        ("graph", True, None),
        ("graph", False, 7),
    ],
    indirect=["mode"],
)
def test_copies_drop_by_streams_of_their_own_which_are_repeatable(called, seed, mode):
    def outputs():
        ms.set_seed(3)
        layer = FlashAttention(16, 0.5, seed=seed, backend="cpu").set_train()
        if called:
            run(layer)
        return [run(duplicate) for duplicate in copies(layer) for _ in range(2)]

    first = outputs()
    assert all_differ(first)
    for one, other in zip(first, outputs()):
        np.testing.assert_array_equal(one, other)


def test_copying_leaves_the_dropout_of_the_original_alone(mode):
    plain = FlashAttention(16, 0.5, seed=7, backend="cpu").set_train()
    copied = FlashAttention(16, 0.5, seed=7, backend="cpu").set_train()
    for _ in range(3):
        copy.deepcopy(copied)
        np.testing.assert_array_equal(run(copied), run(plain))


class Block(nn.Cell):
    """A projection and an attention with dropout, as a model repeats them."""

    def __init__(self):
        super().__init__()
        self.project = nn.Dense(16, 16)
        self.attention = FlashAttention(16, 0.5, backend="cpu")

    def construct(self, hidden):
        return hidden + self.attention(self.project(hidden), hidden, hidden)


def test_a_stack_of_copied_blocks_as_transformer_libraries_make_it(mode):
    block = Block()
    stack = nn.CellList([copy.deepcopy(block) for _ in range(4)])
    names = [parameter.name for parameter in stack.get_parameters()]
    assert len(set(names)) == len(names) == 4 * 3
    stack.set_train()
    outputs = [layer(X).asnumpy() for layer in stack]
    assert all_differ(outputs)
    outputs = [layer.set_train(False)(X).asnumpy() for layer in stack]
    for output in outputs[1:]:
        np.testing.assert_array_equal(output, outputs[0])


def test_a_copied_block_is_trained_apart_after_the_original_ran(mode):
    block = Block()
    block.set_train(False)
    before = block(X).asnumpy()
    other = copy.deepcopy(block)
    other.project.weight.set_data(ms.ops.zeros_like(other.project.weight))
    np.testing.assert_array_equal(block(X).asnumpy(), before)
    assert np.abs(other(X).asnumpy() - before).max() > 0.01


def test_pickle_keeps_the_rules_and_where_dropout_stands():
    layer = FlashAttention(16, 0.5, causal=True, seed=7, backend="math").set_train()
    run(layer)
    restored = pickle.loads(pickle.dumps(layer)).set_train()
    assert (restored.causal, restored.dropout_rate) == (True, 0.5)
    np.testing.assert_array_equal(run(restored), run(layer))
