"""Test uses of layers: `Model.train` and what stands around a network, a call after a fork."""

import pytest

from tests.train.flash_attention.st.support import card_data

# The state after a step must not depend on the time at which operators run.
pytestmark = [pytest.mark.asynchronous, pytest.mark.system]


@pytest.mark.spread
@pytest.mark.parametrize("name", card_data.CASES)
def test_what_stands_around_a_network(name, mode, monkeypatch):
    """The checks are those of the virtual card."""
    monkeypatch.setattr(card_data, "BACKEND", "cpu")
    card_data.CASES[name]()


FORK = """
import os
import numpy as np

def forked(compute, expected):
    child = os.fork()
    if child == 0:
        output = compute()
        os._exit(0 if np.array_equal(output, output if expected is None else expected) else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

query = np.random.default_rng(0).standard_normal((1, 2, 300, 16)).astype(np.float32)
"""

KERNEL = """
from flash_attention.backends.cpu import library
from flash_attention.call import Call, AttentionRules

call = Call(1, 2, 300, 300, 16, dtype="float32", rules=AttentionRules(causal=True))
compute = lambda: library.forward(call, query, query, query)[0]
forked(compute, None)
forked(compute, compute())
"""

LAYER = """
import mindspore as ms
from flash_attention import FlashAttention

ms.set_context(mode=ms.PYNATIVE_MODE)  # a compiled graph may wait forever in a child for MindSpore's own threads
ms.runtime.launch_blocking()  # likewise any operator without this
layer, query = FlashAttention(16, causal=True), ms.Tensor(query)
compute = lambda: layer(query, query, query).asnumpy()
forked(compute, compute())
forked(compute, compute())
"""


@pytest.mark.parametrize(
    "program, threads", [(KERNEL, "1"), (KERNEL, "2"), (LAYER, "2")], ids=("kernel-1", "kernel-2", "layer-2")
)
def test_kernel_and_layer_run_in_a_forked_process(run_python, program, threads):
    """OpenMP's threads do not survive a fork. Data loaders and multiprocessing fork after such threads have run."""
    assert run_python("-c", FORK + program, OMP_NUM_THREADS=threads, timeout=120).split()[-2:] == ["0", "0"]
