"""rotary_embedding against the rotation of complex numbers in float64."""

import mindspore as ms
import numpy as np
import pytest
from flash_attention import rotary_embedding
from mindspore import Tensor, nn, ops

BATCH, SEQ, HEADS, DIM, POSITIONS = 3, 7, 2, 20, 40
OFFSETS = np.array([0, 33, 5], np.int32)


def random(*shape, seed=0) -> np.ndarray:
    """Normal random float32 elements."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def tables(rotary_dim: int) -> tuple:
    """cos and sin, float32."""
    angles = np.arange(POSITIONS)[:, None] * 100.0 ** -(np.arange(0, rotary_dim, 2) / rotary_dim)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def expected(x, cos, sin, interleaved: bool, offsets, conjugate=False) -> np.ndarray:
    """(batch, seq, heads, head_dim) in float64: the pairs as complex numbers times those of the tables."""
    x, rotary_dim = x.astype(np.float64), 2 * cos.shape[1]
    first, second = np.arange(rotary_dim // 2), np.arange(rotary_dim // 2) + rotary_dim // 2
    if interleaved:
        first, second = np.arange(0, rotary_dim, 2), np.arange(1, rotary_dim, 2)
    factors = cos.astype(np.float64) + 1j * sin.astype(np.float64)
    positions = np.broadcast_to(offsets, len(x))[:, None] + np.arange(x.shape[1])
    turned = (x[..., first] + 1j * x[..., second]) * (factors.conj() if conjugate else factors)[positions][:, :, None]
    result = x.copy()
    result[..., first], result[..., second] = turned.real, turned.imag
    return result


def turned(x):
    """Between BSND and BNSD."""
    return x.swapaxes(1, 2)


class Rotary(nn.Cell):
    """A call; `offsets` are data, or None where `constant` says them."""

    def __init__(self, interleaved: bool, constant: int):
        super().__init__()
        self.interleaved, self.constant = interleaved, constant

    def construct(self, x, cos, sin, upstream, offsets):
        offsets = self.constant if offsets is None else offsets
        return rotary_embedding(x, cos, sin, interleaved=self.interleaved, offsets=offsets) * upstream


@pytest.mark.parametrize("rotary_dim, interleaved, offsets", ((DIM, False, 4), (12, True, OFFSETS), (DIM, True, 0)))
def test_forward_and_gradient(mode, rotary_dim, interleaved, offsets):
    x, upstream, (cos, sin) = random(BATCH, SEQ, HEADS, DIM), random(BATCH, SEQ, HEADS, DIM, seed=1), tables(rotary_dim)
    data = Tensor(offsets) if isinstance(offsets, np.ndarray) else None
    net, inputs = Rotary(interleaved, 0 if data is not None else offsets), map(Tensor, (x, cos, sin, upstream))
    inputs = (*inputs, data)
    exact = expected(x, cos, sin, interleaved, offsets) * upstream
    np.testing.assert_allclose(net(*inputs).asnumpy(), exact, atol=2e-6)
    gradient = ops.GradOperation(get_all=True)(net)(*inputs)
    of_x = expected(upstream, cos, sin, interleaved, offsets, conjugate=True)
    np.testing.assert_allclose(gradient[0].asnumpy(), of_x, atol=2e-6)
    # Turning is linear in the tables: their gradients times the tables give the sum of what is turned.
    of_tables = (gradient[1].asnumpy() * cos).sum() + (gradient[2].asnumpy() * sin).sum()
    np.testing.assert_allclose(of_tables, exact[..., :rotary_dim].sum(), rtol=1e-4)


def test_jit_and_layout():
    x, (cos, sin) = random(BATCH, SEQ, HEADS, DIM), tables(DIM)

    @ms.jit
    def compiled(x, cos, sin, offsets):
        return rotary_embedding(x, cos, sin, offsets=offsets, input_layout="BNSD")

    output = compiled(Tensor(turned(x)), Tensor(cos), Tensor(sin), Tensor(OFFSETS))
    np.testing.assert_allclose(turned(output.asnumpy()), expected(x, cos, sin, False, OFFSETS), atol=2e-6)


@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
def test_low_precision_rounds_once(mode, dtype):
    if not hasattr(ms, dtype):
        pytest.skip("this MindSpore has no bfloat16")
    (cos, sin), kind = tables(DIM), getattr(ms, dtype)
    x = Tensor(random(BATCH, SEQ, HEADS, DIM)).astype(kind)
    held = x.astype(ms.float32).asnumpy()
    output = rotary_embedding(x, Tensor(cos), Tensor(sin), interleaved=True)
    assert output.dtype == kind
    exact = expected(held, cos, sin, True, 0)
    unit = 2.0**-11 if dtype == "float16" else 2.0**-8
    error = np.abs(output.astype(ms.float32).asnumpy() - exact)
    assert np.all(error <= unit * np.abs(exact) + 1e-6)


def test_positions_past_the_tables_are_nan(mode):
    x, (cos, sin) = random(BATCH, SEQ, HEADS, DIM), tables(12)
    offsets = np.array([-1, 0, POSITIONS - SEQ + 2], np.int32)
    output = rotary_embedding(Tensor(x), Tensor(cos), Tensor(sin), offsets=Tensor(offsets)).asnumpy()
    assert np.isnan(output[0, 0, :, :12]).all() and np.isnan(output[2, -2:, :, :12]).all()
    assert np.isnan(output).sum() == 3 * HEADS * 12


WRONG = {
    "x": ({"x": random(BATCH, SEQ, DIM)}, ValueError, "x: got shape (3, 7, 20), allowed is rank 4"),
    "odd": ({"cos": random(40, 11)}, ValueError, "cos: got shape (40, 11), allowed is (positions, rotary_dim / 2)"),
    "sin": ({"sin": random(40, 9)}, ValueError, "sin: got shape (40, 9), allowed is that of cos, (40, 10)"),
    "int": ({"offsets": 34}, ValueError, "cos: got 40 positions, allowed are at least 41: 7 tokens from 34 on"),
    "below": ({"offsets": -1}, ValueError, "offsets: got -1, allowed is an integer >= 0"),
    "batch": ({"offsets": np.zeros(2, np.int32)}, ValueError, "offsets: got shape (2,), allowed is (batch,) = (3,)"),
    "long": ({"offsets": np.zeros(3, np.int64)}, TypeError, "offsets: got dtype int64, allowed are int32"),
    "layout": ({"input_layout": "BSH"}, ValueError, "input_layout: got 'BSH', allowed are BSND, BNSD"),
    "pairs": ({"interleaved": 1}, TypeError, "interleaved: got int 1, allowed is True or False"),
    "dtype": ({"cos": np.zeros((40, 10), np.int32)}, TypeError, "cos: got dtype int32"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_errors(wrong):
    changed, error, message = WRONG[wrong]
    cos, sin = tables(DIM)
    arguments = {"x": random(BATCH, SEQ, HEADS, DIM), "cos": cos, "sin": sin, **changed}
    tensors = {name: Tensor(value) if isinstance(value, np.ndarray) else value for name, value in arguments.items()}
    with pytest.raises(error) as caught:
        rotary_embedding(**tensors)
    assert message in str(caught.value)
