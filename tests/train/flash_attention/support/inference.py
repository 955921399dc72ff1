"""Check what a forward pass makes of the backward pass: nothing."""

from unittest import mock

import mindspore as ms
import numpy as np
from flash_attention import flash_attention
from flash_attention.kernels.tik import operators, signatures
from mindspore import ops

from tests.train.flash_attention.support.layer_inputs import half

GRADIENT = {"grad_rows", "grad", "grad_finish"}


def check_inference(backend):
    """Check that a call makes its backward kernels when a gradient is asked for."""
    seq_q = 35 + ms.get_context("mode")  # a size that no plan has met
    query, key, value = half(1, 2, seq_q, 16), half(1, 2, 41, 16, seed=1), half(1, 2, 41, 16, seed=2)

    def attend(query, key, value):
        first = flash_attention(query, key, value, causal=True, backend=backend)
        return first + flash_attention(first, key, value, backend=backend)

    stages = []
    original, chain = signatures.arguments, operators.stages

    def arguments(stage, problem):
        stages.append(stage)
        return original(stage, problem)

    def refuse(problem):
        raise ValueError("no tiling strategy fits")

    with mock.patch.object(signatures, "arguments", arguments):
        with mock.patch.object(operators, "stages", refuse):
            output = attend(query, key, value).asnumpy()
            assert output.any() and "forward" in stages and not GRADIENT & set(stages)
            try:
                ops.grad(attend, 0)(query, key, value).asnumpy()
            except ValueError as error:
                assert "no tiling strategy fits" in str(error)
            else:
                raise AssertionError("the gradient was not refused")
        assert operators.stages is chain
        found = ops.grad(attend, (0, 1, 2))(query, key, value)
    assert GRADIENT & set(stages)
    for gradient in found:
        assert np.abs(gradient.asnumpy()).max() > 0.01
