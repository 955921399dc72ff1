"""Draw the seeds of dropout. Every training call gets a fresh seed, repeatable by `mindspore.set_seed`.

A seed is int64 (2,), see `flash_attention.backends.base.Backend.build`.
"""

from __future__ import annotations

import collections
import os
import sys
import zlib

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.seed import _get_graph_seed

# The seeds drawn so far in PYNATIVE, by the state of MindSpore's generator at the draw. Recomputation restores it.
_drawn: collections.OrderedDict = collections.OrderedDict()
_REMEMBERED = 65536


def draw() -> tuple[int, int]:
    """Return the next seed of this process, from a counter that `mindspore.set_seed` restarts. The seed is random if it
    was not called.

    The counter is the one behind MindSpore's own random operations (`ops.uniform` and its kind).
    """
    seed = _get_graph_seed(0, "FlashAttention")
    return seed if any(seed) else tuple(np.frombuffer(os.urandom(8), np.uint32).tolist())


def draw_tensor(draw=draw, stream: int | None = None) -> Tensor:
    """Return a seed by `draw` for PYNATIVE: int64 (2,). A recomputed forward pass gets the seeds that the first pass
    drew.

    `stream` tells callers apart that may find the same generator state after a reset of the generator.

    One cell with `recompute()` may run several times before its backward pass. MindSpore 2.10 then restores the
    generator state of the last run, for its own random operations too. Such a model must use GRAPH mode or
    `use_reentrant=False`.
    """
    if not hasattr(ms, "get_rng_state"):  # MindSpore 2.0, which has no recomputation in PYNATIVE either
        # A plain tensor counts as a constant there, and a Custom operation fails at the third value of one.
        return ops.stop_gradient(Parameter(Tensor(draw(), ms.int64), name="drawn_seed", requires_grad=False))
    state = ms.get_rng_state().asnumpy().copy()
    found = stream, ms.get_seed(), state.tobytes()
    state[-8:].view(np.int64)[0] += 1  # the offset, so that the next draw finds another state
    ms.set_rng_state(Tensor(state))
    if found not in _drawn:
        _drawn[found] = draw()
        if len(_drawn) > _REMEMBERED:
            _drawn.popitem(last=False)
    return Tensor(_drawn[found], ms.int64)


def tracing() -> bool:
    """Return True if a function is being traced for `mindspore.jit(capture_mode="trace")`. MindSpore runs it like
    PYNATIVE.
    """
    modules = map(sys.modules.get, ("mindspore.graph.jit_context", "mindspore.common.jit_context"))  # by version
    return any(module.jit_context() is not None for module in modules if module and hasattr(module, "jit_context"))


class DropoutSeed(nn.Cell):
    """Give the seed of one training call: a number fixed when the cell was made, and the count of calls.

    The count is a Parameter, which a checkpoint keeps. GRAPH and PYNATIVE give the same seeds. `copy.deepcopy` gives a
    copy a number of its own, which follows from the original's number; `pickle` keeps number and count.

    Args:
        seed: the fixed number; drawn by `draw` when None.
        count: number of calls before.
    """

    def __init__(self, seed: int | None = None, count: int = 0):
        super().__init__()
        first = _hash(draw()) if seed is None else seed
        self.state = Parameter(Tensor([first, count], ms.int64), name="dropout_seed", requires_grad=False)
        self.copies = 0
        self.step = Tensor([0, 1], ms.int64)
        # Not recomputed: the backward pass must see the seed of the forward pass. Not split between devices either, by
        # the attribute that `shard` sets, because MindSpore 2.0 warns of `shard` if nothing is parallel.
        self.read = ops.Add().add_prim_attr("recompute", False).add_prim_attr("in_strategy", ((1,), (1,)))
        self.write = ops.Assign().add_prim_attr("in_strategy", ((1,), (1,)))

    def __call__(self):
        # PYNATIVE calls a cell and so comes here. A compiled graph contains `construct` instead. So must a traced
        # graph, or it would repeat the seed of the call that was traced.
        if tracing():
            return self.construct()
        return _count_up(self.state)

    def construct(self):
        seed = self.read(self.state, self.step)
        self.write(self.state, seed)
        return seed

    def __deepcopy__(self, memo):
        self.copies += 1
        first, _ = self.state.asnumpy().tolist()
        duplicate = DropoutSeed(_hash((first, self.copies)))
        duplicate.state.name = self.state.name
        return duplicate

    def __reduce__(self):
        return DropoutSeed, tuple(self.state.asnumpy().tolist())


def _hash(numbers: tuple) -> int:
    return zlib.crc32(repr(numbers).encode())


def _count_up(state: Parameter) -> Tensor:
    def next_seed():
        first, count = state.asnumpy().tolist()
        state.set_data(Tensor([first, count + 1], ms.int64))
        return first, count + 1

    return draw_tensor(next_seed, id(state))
