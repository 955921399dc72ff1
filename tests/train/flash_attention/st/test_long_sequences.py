"""Sequences past what composed attention could hold: rows against the truth, and memory that grows with seq only."""

import numpy as np
import pytest
from flash_attention import flash_attention, reference
from mindspore import Tensor, ops

from tests.train.flash_attention.support.arrays import random
from tests.train.flash_attention.support.calls import make_call

pytestmark = pytest.mark.system

SEQ, HEAD_DIM = 16384, 64


def rows_of_truth(query, key, value, first, count, problem_rules, d_output):
    """Return the truth of rows first..first + count from the keys near them alone. The call is windowed and
    causal.
    """
    start = max(0, first - 1024)
    stop = first + count
    call = make_call(1, 1, stop - start, stop - start, HEAD_DIM, dtype="float32", causal=True, **problem_rules)
    part = slice(start, stop)
    exact = reference.truth(call, query[:, :, part], key[:, :, part], value[:, :, part], d_output=d_output[:, :, part])
    return exact.output[:, :, first - start :], exact.d_query[:, :, first - start :]


@pytest.mark.parametrize("rules", ({"window_left": 500}, {"prev_blocks": 4}), ids=("tokens", "blocks"))
def test_windows_far_into_a_long_sequence(rules):
    query, key, value, d_output = (random(1, 1, SEQ, HEAD_DIM, seed=seed) for seed in range(4))
    options = {"causal": True, "backend": "cpu"}
    options.update({"window_size": (500, -1)} if "window_left" in rules else {"prev_block_num": 4})

    def loss(query, key, value):
        output = flash_attention(query, key, value, **options)
        return (output * Tensor(d_output)).sum(), output

    tensors = [Tensor(array) for array in (query, key, value)]
    (_, output), (d_query, _, _) = ops.value_and_grad(loss, grad_position=(0, 1, 2), has_aux=True)(*tensors)
    for first in (0, 5000, SEQ - 128):
        first -= first % 128  # block windows are whole tiles
        expected, expected_gradient = rows_of_truth(query, key, value, first, 128, rules, d_output)
        rows = slice(first, first + 128)
        np.testing.assert_allclose(output.asnumpy()[:, :, rows], expected, atol=2e-5)
        np.testing.assert_allclose(d_query.asnumpy()[:, :, rows], expected_gradient, atol=2e-4)


MEMORY = """
import resource, sys
import numpy as np, mindspore as ms
from mindspore import Tensor
from flash_attention import FlashAttention
from tests.train.flash_attention.support.cells import Gradients

seq = int(sys.argv[1])
ms.set_context(mode=ms.GRAPH_MODE)
layer = FlashAttention(64, 0.1, 8, causal=True, backend="cpu").set_train()
run = Gradients(layer)

def random(length):
    return [Tensor(np.random.default_rng(i).standard_normal((1, 1, length, 64)).astype(np.float16)) for i in range(4)]

for tensor in run(*random(256)):
    tensor.asnumpy()
inputs = random(seq)
for tensor in inputs:
    tensor.asnumpy()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for tensor in run(*inputs):
    tensor.asnumpy()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def test_memory_grows_with_the_length_not_its_square(run_python, tmp_path):
    """A GRAPH runs forward and backward with dropout. The figures are MB on top of the inputs, outputs included."""
    program = tmp_path / "memory.py"  # GRAPH mode compiles source files only
    program.write_text(MEMORY)
    short, long = (float(run_python(str(program), str(seq), OMP_NUM_THREADS="1")) for seq in (8192, 32768))
    outputs = 3 * 32768 * 64 * 2 / 2**20  # d_query, d_key, d_value
    assert long < 4 * max(short, 8) + 32
    assert long < 3 * outputs + 64, f"{long} MB for {outputs} MB of outputs"
