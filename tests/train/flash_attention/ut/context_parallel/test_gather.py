"""Test GatherAttention of a process among several, all of which hold the same tokens."""

from types import SimpleNamespace

import mindspore as ms
import numpy as np
from flash_attention.backends import cpu
from flash_attention.context_parallel import GatherAttention, gather
from mindspore import Tensor, nn, ops

from tests.train.flash_attention.support.arrays import draw
from tests.train.flash_attention.support.modes import in_mode


class _Gathered(nn.Cell):
    """Gather from two processes with the same tensor."""

    def construct(self, tensor):
        return ops.concat((tensor, tensor))


class _Reduced(nn.Cell):
    """Sum over two processes with the same tensor."""

    def construct(self, tensor):
        return tensor + tensor


def gradients(mode, given):
    """Return the gradients of query, key, value and sinks."""
    gather._made.cache_clear()
    layer, weight = GatherAttention(16, causal=True), Tensor(draw(1, 4, 16, 16, seed=9))

    def loss(query, key, value, sinks):
        return (layer(query, key, value, sinks=sinks) * weight).sum()

    def gradient(*tensors):
        return ops.grad(loss, (0, 1, 2, 3))(*tensors)

    with in_mode(mode):
        run = ms.jit(gradient) if mode == "graph" else gradient
        return [one.asnumpy() for one in run(*given)]


def test_a_graph_needs_no_backward_pass_of_its_own(monkeypatch):
    """The parts are unlike calls: each is differentiated by its own backward pass."""
    monkeypatch.setattr(GatherAttention, "connection", lambda _: SimpleNamespace(rank=0, world=2))
    monkeypatch.setattr(gather.ops, "AllGather", _Gathered)
    monkeypatch.setattr(gather.ops, "AllReduce", _Reduced)
    given = [Tensor(draw(*shape)) for shape in ((1, 4, 16, 16), (1, 2, 16, 16), (1, 2, 16, 16), (4,))]
    wanted = gradients("pynative", given)
    monkeypatch.setattr(cpu.CpuBackend, "build_backward", lambda *_: None)
    for one, other in zip(gradients("graph", given), wanted):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    gather._made.cache_clear()
