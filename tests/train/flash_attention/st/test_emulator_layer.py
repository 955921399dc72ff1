"""Backend emulator inside MindSpore: the kernels that it makes, and those that it keeps."""

import functools
import gc

import numpy as np
import pytest
from flash_attention import flash_attention
from mindspore import Tensor, ops

from tests.train.flash_attention.support.inference import check_inference

pytest.importorskip("tikemu")
pytestmark = pytest.mark.system


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
