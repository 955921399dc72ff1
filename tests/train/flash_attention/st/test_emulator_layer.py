"""Backend emulator inside MindSpore: recomputation, and what it keeps of the shapes that a process has met."""

import functools
import gc

import numpy as np
import pytest
from flash_attention import FlashAttention, attention_backend, flash_attention
from mindspore import Tensor, nn, ops

from tests.train.flash_attention.support.cells import Gradients
from tests.train.flash_attention.support.inference import check_inference
from tests.train.flash_attention.support.layer_inputs import half

pytest.importorskip("tikemu")
pytestmark = pytest.mark.system


class Twice(nn.Cell):
    """Two layers one after the other."""

    def __init__(self, recompute: bool):
        super().__init__()
        self.layers = nn.CellList([FlashAttention(16, 0.2, alibi=True, seed=seed, causal=True) for seed in (3, 4)])
        if recompute:
            for layer in self.layers:
                layer.recompute()

    def construct(self, query, key, value):
        for layer in self.layers:
            query = layer(query, key, value)
        return query


def test_recomputation_changes_no_bit(mode):
    arguments = [half(1, 2, 40, 16, seed=seed) for seed in range(4)]
    with attention_backend("emulator"):
        plain, again = (
            [gradient.asnumpy() for gradient in Gradients(Twice(recompute).set_train())(*arguments)]
            for recompute in (False, True)
        )
    assert len(plain) == 3
    for left, right in zip(plain, again):
        assert left.any()
        np.testing.assert_array_equal(left, right)


def test_inference_makes_no_backward_kernel(mode):
    check_inference("emulator")


def alive() -> int:
    """Return how many recorded kernels this process holds."""
    from flash_attention.kernels.tik.operators import BuiltKernel

    gc.collect()
    return sum(type(thing) is BuiltKernel for thing in gc.get_objects())


def test_only_the_kernels_used_last_are_kept_and_others_are_recorded_again(monkeypatch):
    from flash_attention.backends import emulator

    monkeypatch.setattr(emulator, "_recorded", functools.lru_cache(maxsize=5)(emulator._recorded.__wrapped__))
    before = alive()

    def attention(query):
        return flash_attention(query, query, query, causal=True, backend="emulator").sum()

    def run(seq):
        query = Tensor(np.random.default_rng(0).standard_normal((1, 1, seq, 16)).astype(np.float16))
        return ops.grad(attention)(query).asnumpy()

    first = run(16)
    for seq in (17, 33, 49):
        run(seq)
    assert 0 < alive() - before <= 5
    np.testing.assert_array_equal(run(16), first)
