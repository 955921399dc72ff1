"""Test gradients of attention and the weights around it, and recomputation."""

import inspect
import sys

import mindspore as ms
import numpy as np
import pytest
from flash_attention import FlashAttention, prepare
from flash_attention.backends import math
from flash_attention.bridge.versions import OLD
from mindspore import Tensor, nn, ops

from tests.train.flash_attention.support.modes import in_mode
from tests.train.flash_attention.support.training_steps import TRAININGS, TWO, by_sens, check_steps

BACKENDS = ("cpu", "math", "emulator")


@pytest.mark.spread(since=(2, 8))
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", TRAININGS)
def test_every_step_is_right(name, backend, mode):
    if name == "recompute":  # MindSpore 2.0 recomputes in graphs only
        ms.set_context(mode=ms.GRAPH_MODE)
    TRAININGS[name](backend=backend)


# In a process of its own: MindSpore 2.0 may crash in a process that has differentiated much before.
COMPILED = """
import os

import mindspore as ms
from tests.train.flash_attention.ut.test_training_steps import check_compiled

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
try:
    check_compiled("{backend}")
    print("right")
except RuntimeError as error:
    print(error, flush=True)
    os._exit(0)  # after an error in a graph, MindSpore 2.0 may hang where it ends
"""


def check_compiled(backend):
    """Check steps in which PYNATIVE differentiates a network with compiled attention."""
    check_steps(TWO, backend, by_sens, compiled=True)


# backends/test_gradients.py has a @jit function of every backend.
@pytest.mark.parametrize("backend", ("cpu", *(pytest.param(one, marks=pytest.mark.slow) for one in BACKENDS[1:])))
def test_jit_functions_in_pynative(backend, run_python):
    if not OLD:
        with in_mode("pynative"):
            check_compiled(backend)
    elif backend == "math":
        assert run_python("-c", COMPILED.format(backend=backend)).splitlines()[-1] == "right"
    else:
        printed = run_python("-c", COMPILED.format(backend=backend))
        assert "in a function that PYNATIVE differentiates" in printed


CAPTURED = """
import os

import mindspore as ms
import numpy as np
from flash_attention import FlashAttention, KVCache
from mindspore import Tensor, ops

x = Tensor(np.random.default_rng(0).standard_normal((1, 2, 20, 8)).astype(np.float32))
layers = [FlashAttention(8, causal=True, backend=backend) for backend in ("cpu", "math")]


def run(x):
    return layers[0](x, x, x) - 2 * layers[1](x, x, x)


def loss(x):
    return (run(x) ** 2).sum()


def check(mode, capture, function, expected):
    ms.set_context(mode=mode)
    captured = ms.jit(function, capture_mode=capture)
    captured = ops.grad(captured) if function is loss else captured
    errors = [np.abs(captured(x * (i + 1)).asnumpy() - one).max() for i, one in enumerate(expected)]
    print(mode, capture, "right" if max(errors) < 1e-4 else errors, flush=True)


def check_cache():
    ms.set_context(mode=1)
    try:
        ms.jit(decode, capture_mode="trace")(x)
    except RuntimeError as error:
        print(str(error).partition(":")[0], "refused", flush=True)


cache = KVCache(1, 20, 20, 8, dtype=ms.float32)


def decode(x):
    return cache(x, x, x)


outputs = [run(x * i).asnumpy() for i in (1, 2, 3)]
gradients = [ops.grad(loss)(x * i).asnumpy() for i in (1, 2, 3)]
{checks}
os._exit(0)
"""


def test_functions_that_are_captured_otherwise(run_python, tmp_path):
    """`jit` by bytecode would compile what prepares a call. By trace it took results in GRAPH mode for constants."""
    if "capture_mode" not in inspect.signature(ms.jit).parameters:
        pytest.skip("this MindSpore captures in one way")
    checks = []
    if sys.version_info < (3, 12):  # by bytecode MindSpore takes no newer Python
        checks += [(1, "bytecode", "run", "outputs"), (1, "bytecode", "loss", "gradients")]
        checks.append((0, "bytecode", "run", "outputs"))
    if not ms.__version__.startswith("2.7."):  # mindspore_faults/traced_tuples.py
        checks.append((0, "trace", "run", "outputs"))
    script = tmp_path / "captured.py"  # MindSpore looks for the source of every caller
    lines = [f"check({mode}, '{capture}', {function}, {expected})" for mode, capture, function, expected in checks]
    script.write_text(CAPTURED.format(checks="\n".join([*lines, "check_cache()"])))
    expected = [f"{mode} {capture} right" for mode, capture, *_ in checks] + ["KVCache.update refused"]
    assert run_python(str(script)).splitlines() == expected


class Repeated(nn.Cell):
    """Attention of a tensor to itself, and a projection: the recomputed operation must not be the output of a cell."""

    def __init__(self):
        super().__init__()
        self.attention, self.join = FlashAttention(32, backend="math"), nn.Dense(32, 32)

    def construct(self, hidden):
        return self.join(self.attention(hidden, hidden, hidden))


class Sum(nn.Cell):
    """A loss: the sum of the squares of the network's output."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def construct(self, hidden):
        return (self.network(hidden) ** 2).sum()


@pytest.mark.skipif(
    ms.__version__.startswith("2.0"),
    reason="MindSpore 2.0: mindspore_faults/recompute_of_python_custom.py; test_training_steps.py recomputes",
)
def test_recomputation_runs_the_attention_again(mode, monkeypatch):
    """If it did not, its inputs would stay in memory and recompute() would save nothing."""
    runs = []
    hidden = Tensor(np.random.default_rng(0).standard_normal((2, 4, 40, 32)).astype(np.float32))

    def double(array):
        runs.append(array.shape)
        return array * 2

    class Counting(nn.Cell):
        def __init__(self):
            super().__init__()

            def bprop(query, out, dout):
                return (dout * 2,)

            self.double = ops.Custom(double, lambda shape: shape, lambda dtype: dtype, func_type="pyfunc", bprop=bprop)

        def construct(self, query, key, value, inputs):
            return self.double(query), None

    monkeypatch.setattr(math.BACKEND, "build", lambda call, shard: Counting(), raising=False)
    prepare._dense.cache_clear()
    try:
        for recompute in (False, True):
            network = nn.SequentialCell([nn.Dense(32, 32), Repeated()])
            if recompute:
                network.recompute()
            step = nn.TrainOneStepCell(Sum(network), nn.SGD(network.trainable_params(), 1e-3)).set_train()
            step(hidden).asnumpy()
            runs.clear()
            step(hidden).asnumpy()
            assert len(runs) == 1 + recompute
    finally:
        prepare._dense.cache_clear()
