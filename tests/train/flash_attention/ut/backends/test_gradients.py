"""Second derivatives and forward mode: right on backend math, refused elsewhere."""

import mindspore as ms
import numpy as np
import pytest
from flash_attention import FlashAttention, flash_attention
from flash_attention.bridge.versions import OLD
from mindspore import Tensor, ops

from tests.train.flash_attention.support.layer_inputs import draw, half

QUERY, KEY, VALUE, D_OUTPUT = (draw(1, 2, 6, 8, seed=seed) for seed in range(4))


def norm_of_the_gradient(backend):
    """Return a function whose gradient is a second derivative of attention."""

    def loss(query, key, value):
        return (flash_attention(query, key, value, causal=True, backend=backend) * D_OUTPUT).sum()

    gradient = ops.grad(loss, 0)

    def norm(query, key, value):
        return (gradient(query, key, value) ** 2).sum()

    return norm


@pytest.mark.skipif(OLD, reason="mindspore_faults/second_derivative_behind_comparison.py")
def test_math_has_them_in_a_graph():
    norm = ms.jit(norm_of_the_gradient("math"))
    second = ms.jit(ops.grad(norm_of_the_gradient("math"), 0))(QUERY, KEY, VALUE).asnumpy()
    for index in ((0, 0, 1, 0), (0, 1, 3, 5), (0, 1, 5, 7)):
        step = np.zeros(QUERY.shape, np.float32)
        step[index] = 1e-2
        up, down = (float(norm(Tensor(QUERY.asnumpy() + sign * step), KEY, VALUE)) for sign in (1, -1))
        assert second[index] == pytest.approx((up - down) / 2e-2, rel=1e-2, abs=1e-3)
    assert np.abs(second).max() > 0.1


@pytest.mark.parametrize("position", (0, 1, 2))
def test_cpu_refuses_them_in_a_graph(position):
    second = ms.jit(ops.grad(norm_of_the_gradient("cpu"), position))
    with pytest.raises(NotImplementedError, match="backend 'cpu' has neither second derivatives"):
        second(QUERY, KEY, VALUE)


def test_forward_mode_is_that_of_math(mode):
    def native(query):
        return flash_attention(query, KEY, VALUE, causal=True, backend="cpu")

    def composed(query):
        return flash_attention(query, KEY, VALUE, causal=True, backend="math")

    with pytest.raises(
        NotImplementedError, match="'cpu' has neither .* nor forward mode .*; allowed is backend 'math'"
    ):
        ms.jvp(native, QUERY, D_OUTPUT)
    if OLD:
        return  # second_derivative_behind_comparison.py of mindspore_faults
    found = ms.jvp(composed, QUERY, D_OUTPUT)[1].asnumpy()
    up, down = (composed(QUERY + D_OUTPUT * step).asnumpy() for step in (1e-2, -1e-2))
    np.testing.assert_allclose(found, (up - down) / 2e-2, atol=2e-3)
    assert np.abs(found).max() > 0.1


# A process for each: MindSpore 2.10 may crash at a later call.
IN_PYNATIVE = """
import os

from mindspore import ops
from tests.train.flash_attention.ut.backends.test_gradients import KEY, QUERY, VALUE, norm_of_the_gradient

try:
    print(ops.grad(norm_of_the_gradient("{backend}"), {position})(QUERY, KEY, VALUE))
except NotImplementedError as error:
    print(error, flush=True)
    os._exit(0)
"""


@pytest.mark.parametrize(
    ("backend", "position"),
    [
        ("cpu", 0),
        pytest.param("cpu", 2, marks=pytest.mark.slow),
        *(pytest.param("math", position, marks=pytest.mark.slow) for position in range(3)),
    ],
)
def test_they_are_refused_in_pynative_where_mindspore_gives_zeros(backend, position, run_python):
    if OLD:  # by itself
        with pytest.raises(AssertionError, match="Error"):
            run_python("-c", IN_PYNATIVE.format(backend=backend, position=position))
        return
    try:
        printed = run_python("-c", IN_PYNATIVE.format(backend=backend, position=position))
    except AssertionError as crash:  # now and then MindSpore 2.10 ends the process in place of the exception
        assert "terminate called" in str(crash)
        pytest.skip("MindSpore crashed while it handed on the exception")
    assert printed.strip().startswith(f"attention: backend '{backend}' has neither second derivatives")


@pytest.mark.parametrize("backend", ("math", "emulator"))
def test_a_jit_function_of_two_layers(backend):
    """Backend cpu: test_training_steps.py."""
    if OLD and backend != "math":
        pytest.skip("MindSpore 2.0: refused by name")
    first, second = (FlashAttention(16, causal=True, backend=backend) for _ in range(2))

    def total(query, key, value, sinks, weights):
        result = first(query, key, value, sinks=sinks)
        further = second(query + result, key * 2, value * 3, sinks=sinks)
        return ((result.astype(ms.float32) + further.astype(ms.float32)) * weights).sum()

    tensors = (*(half(2, 2, 20, 16, seed=seed) for seed in range(3)), draw(2, seed=3), draw(2, 2, 20, 16, seed=9))
    expected, found = (ops.grad(function, (0, 1, 2, 3))(*tensors) for function in (total, ms.jit(total)))
    assert np.abs(expected[0].asnumpy()).max() > 0.1
    for gradient, right in zip(found, expected):
        np.testing.assert_allclose(gradient.asnumpy(), right.asnumpy(), atol=2e-3 * np.abs(right.asnumpy()).max())
