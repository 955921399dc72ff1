"""Draw seeds that `mindspore.set_seed` repeats, and that a recomputed forward pass gets again."""

from __future__ import annotations

import collections
import os
import sys

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, ops
from mindspore.common.seed import _get_graph_seed

from flash_attention.bridge.custom import ONE_THREAD

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
    generator state of the last run, for its own random operations too. Such a model must use GRAPH mode, or
    `use_reentrant=False, early_stop=False`.
    """
    if not hasattr(ms, "get_rng_state"):  # MindSpore 2.0, which has no recomputation in PYNATIVE either
        # A plain tensor counts as a constant there, and a Custom operation fails at the third value of one.
        return ops.stop_gradient(Parameter(Tensor(draw(), ms.int64), name="drawn_seed", requires_grad=False))
    with ONE_THREAD:  # two threads would find one state, and draw one seed
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
