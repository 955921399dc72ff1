"""rotary_embedding against the rotation of complex numbers in float64."""

import mindspore as ms
import numpy as np
import pytest
from flash_attention import rotary, rotary_embedding
from mindspore import Tensor, nn, ops

from tests.train.flash_attention.support.arrays import random
from tests.train.flash_attention.support.cells import Call
from tests.train.flash_attention.support.flash_attn_truth import turned as rotated
from tests.train.flash_attention.support.versions import dtype_named

BATCH, SEQ, HEADS, DIM, POSITIONS = 3, 7, 2, 20, 40
OFFSETS = np.array([0, 33, 5], np.int32)


@pytest.fixture(params=("native", "composed"), autouse=True)
def form(request, monkeypatch):
    """Run the test with the native kernel, and with MindSpore's operations as devices do."""
    if request.param == "native":
        assert rotary.serves_native()
    monkeypatch.setattr(rotary, "serves_native", lambda: request.param == "native")
    return request.param


def tables(rotary_dim: int) -> tuple:
    """Return cos and sin in float32."""
    angles = np.arange(POSITIONS)[:, None] * 100.0 ** -(np.arange(0, rotary_dim, 2) / rotary_dim)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def expected(x, cos, sin, interleaved: bool, offsets, conjugate=False) -> np.ndarray:
    """Return the rotation of x, (batch, seq, heads, head_dim), from the offsets on, in float64."""
    positions = np.broadcast_to(offsets, len(x))[:, None] + np.arange(x.shape[1])
    return rotated(x, cos, -sin if conjugate else sin, positions, interleaved)


def turned(x):
    """Turn between BSND and BNSD."""
    return x.swapaxes(1, 2)


class Rotary(nn.Cell):
    """A call, times `upstream`; `offsets` are data, or None if `constant` says them."""

    def __init__(self, interleaved: bool, constant: int):
        super().__init__()
        self.interleaved, self.constant = interleaved, constant

    def construct(self, x, cos, sin, upstream, offsets):
        offsets = self.constant if offsets is None else offsets
        return rotary_embedding(x, cos, sin, interleaved=self.interleaved, offsets=offsets) * upstream


@pytest.mark.spread
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


class TwoTurns(nn.Cell):
    """The sum of a product of two calls: (batch, seq, heads, head_dim) in, a number out that is not linear in x."""

    def construct(self, x, cos, sin, offsets):
        once = rotary_embedding(x, cos, sin, offsets=offsets, interleaved=True)
        return (rotary_embedding(once * once, cos, sin, offsets=2) * once).sum()


class OfGradient(nn.Cell):
    """The sum of squares of the gradient of a net by its first input."""

    def __init__(self, net):
        super().__init__()
        self.net, self.gradient = net, ops.GradOperation()

    def construct(self, x, cos, sin, offsets):
        gradient = self.gradient(self.net)(x, cos, sin, offsets)
        return (gradient * gradient).sum()


def two_turns(x, cos, sin, offsets) -> float:
    """Compute TwoTurns in float64."""
    once = expected(x, cos, sin, True, offsets)
    return (expected(once * once, cos, sin, False, 2) * once).sum()


def slope(function, x, direction, step) -> float:
    """Return the derivative of a function of x along a direction."""
    return (function(x + step * direction) - function(x - step * direction)) / (2 * step)


@pytest.mark.spread
def test_two_calls_in_a_net_again_with_other_data(mode):
    net, gradient = TwoTurns(), ops.GradOperation()
    for turn, offsets in enumerate((np.array([0, 3, 9], np.int32), np.array([30, 1, 0], np.int32))):
        x, direction = (random(BATCH, SEQ, HEADS, DIM, seed=2 * turn + i).astype(np.float64) for i in range(2))
        cos, sin = (table + np.float32(turn) for table in tables(12))
        inputs = tuple(map(Tensor, (x.astype(np.float32), cos, sin, offsets)))
        np.testing.assert_allclose(net(*inputs).asnumpy(), two_turns(x, cos, sin, offsets), rtol=1e-4)
        along = (gradient(net)(*inputs).asnumpy() * direction).sum()
        exact = slope(lambda x, rest=(cos, sin, offsets): two_turns(x, *rest), x, direction, 1e-4)
        np.testing.assert_allclose(along, exact, rtol=1e-3)


@pytest.mark.spread
def test_second_derivative(mode, form):
    if mode == "pynative" and (form == "composed" or ms.__version__.startswith(("2.0", "2.7"))):
        pytest.skip("MindSpore 2.10 gives wrong numbers of its own operations in PYNATIVE, 2.0 and 2.7 none")
    x, direction = random(BATCH, SEQ, HEADS, DIM), random(BATCH, SEQ, HEADS, DIM, seed=1)
    cos, sin = tables(12)

    def squares(x):
        return float(OfGradient(TwoTurns())(*map(Tensor, (x, cos, sin, OFFSETS))).asnumpy())

    second = ops.GradOperation()(OfGradient(TwoTurns()))(*map(Tensor, (x, cos, sin, OFFSETS))).asnumpy()
    np.testing.assert_allclose((second * direction).sum(), slope(squares, x, direction, np.float32(1e-2)), rtol=1e-2)


@pytest.mark.spread
@pytest.mark.parametrize("layout, interleaved", (("BSND", True), ("BNSD", False)))
def test_gradient_of_a_jit_function_in_pynative(layout, interleaved):
    x, upstream, (cos, sin) = random(BATCH, SEQ, HEADS, DIM), random(BATCH, SEQ, HEADS, DIM, seed=1), tables(12)
    heads_first = turned if layout == "BNSD" else np.asarray

    @ms.jit
    def compiled(x, cos, sin, offsets, upstream):
        return rotary_embedding(x, cos, sin, offsets=offsets, interleaved=interleaved, input_layout=layout) * upstream

    for offsets in (OFFSETS, OFFSETS[::-1].copy()):
        inputs = map(Tensor, (heads_first(x).copy(), cos, sin, offsets, heads_first(upstream).copy()))
        gradient = ops.GradOperation()(compiled)(*inputs).asnumpy()
        of_x = expected(upstream, cos, sin, interleaved, offsets, conjugate=True)
        np.testing.assert_allclose(heads_first(gradient), of_x, atol=2e-6)


@pytest.mark.spread
@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
def test_low_precision_gradients(mode, dtype):
    """One table has another dtype than x, and the gradients have subnormal numbers."""
    kind, (cos, sin) = dtype_named(dtype), map(Tensor, tables(DIM))
    x, upstream = (
        Tensor(random(BATCH, SEQ, HEADS, DIM, seed=i) * scale).astype(kind) for i, scale in ((0, 1), (1, 3e-6))
    )
    inputs = x, cos.astype(kind), sin, Tensor(OFFSETS)
    gradients = ops.GradOperation(get_all=True, sens_param=True)(turn_in_halves)(*inputs, upstream)
    assert [str(one.dtype) for one in gradients[:3]] == ["BFloat16" if dtype == "bfloat16" else "Float16"] * 2 + [
        "Float32"
    ]
    held = [one.astype(ms.float32).asnumpy() for one in (*inputs[:3], upstream)]
    of_x = expected(held[3], *held[1:3], False, OFFSETS, conjugate=True)
    least = 2.0**-25 if dtype == "float16" else 0  # half of the smallest float16
    error = np.abs(gradients[0].astype(ms.float32).asnumpy() - of_x)
    assert np.all(error <= (2.0**-11 if dtype == "float16" else 2.0**-8) * np.abs(of_x) + least * 1.001 + 1e-11)
    of_tables = (gradients[2].asnumpy() * held[2]).sum() + (gradients[1].astype(ms.float32).asnumpy() * held[1]).sum()
    whole = (expected(held[0], *held[1:3], False, OFFSETS) * held[3]).sum()
    np.testing.assert_allclose(of_tables, whole, atol=2e-2 * np.abs(held[3]).max())


def turn_in_halves(x, cos, sin, offsets):
    """Turn x in halves by one call."""
    return rotary_embedding(x, cos, sin, offsets=offsets)


@pytest.mark.spread
@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
def test_low_precision_rounds_once(mode, dtype):
    (cos, sin), kind = tables(DIM), dtype_named(dtype)
    x = Tensor(random(BATCH, SEQ, HEADS, DIM)).astype(kind)
    held = x.astype(ms.float32).asnumpy()
    output = rotary_embedding(x, Tensor(cos), Tensor(sin), interleaved=True)
    assert output.dtype == kind
    exact = expected(held, cos, sin, True, 0)
    unit = 2.0**-11 if dtype == "float16" else 2.0**-8
    error = np.abs(output.astype(ms.float32).asnumpy() - exact)
    assert np.all(error <= unit * np.abs(exact) + 1e-6)


@pytest.mark.spread
def test_mixed_precision_and_dynamic_batches(mode, form):
    """Rotary embedding keeps its dtypes in a network of mixed precision. Only the batch may have an unknown size."""
    tensors = [Tensor(array) for array in (random(BATCH, SEQ, HEADS, DIM), *tables(DIM))]
    exact = expected(tensors[0].asnumpy(), *tables(DIM), False, 0)
    output = Call(rotary_embedding).to_float(ms.float16)(*tensors)
    np.testing.assert_allclose(output.astype(ms.float32).asnumpy(), exact, atol=4e-3)
    for unknown in ((None, SEQ, HEADS, DIM), (BATCH, None, HEADS, DIM)):
        net = Call(rotary_embedding)
        net.set_inputs(Tensor(shape=unknown, dtype=ms.float32), *tensors[1:])
        if unknown[1] is None and mode == "graph":
            with pytest.raises(ValueError, match="allowed there is the batch of x"):
                net(*tensors)
        else:
            np.testing.assert_allclose(net(*tensors).asnumpy(), exact, atol=2e-6)


@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
def test_every_finite_number_survives(dtype, form):
    """A rotation by 0 leaves each number of 16 bits as it is, subnormal numbers included."""
    if form == "composed":
        pytest.skip("threads of MindSpore may take subnormal numbers for zero")
    kind, bits = dtype_named(dtype), np.arange(1 << 16, dtype=np.uint32)
    numbers = bits.astype(np.uint16).view(np.float16).astype(np.float32)
    if dtype == "bfloat16":
        numbers = (bits << 16).view(np.float32)
    numbers = np.where(np.isfinite(numbers), numbers, 0).reshape(1, 256, 2, 128)
    ones, zeros = (Tensor(np.full((256, 64), number, np.float32)) for number in (1, 0))
    output = rotary_embedding(Tensor(numbers).astype(kind), ones, zeros)
    np.testing.assert_array_equal(output.astype(ms.float32).asnumpy(), numbers)


def test_views(form):
    """PYNATIVE hands over views of tensors, which need not be contiguous."""
    whole, (cos, sin) = random(BATCH, 2, SEQ, HEADS, DIM), tables(DIM)
    offsets = np.stack((OFFSETS[::-1], OFFSETS), 1)
    view = Tensor(whole)[:, 1].swapaxes(1, 2)
    output = rotary_embedding(view, Tensor(cos), Tensor(sin), offsets=Tensor(offsets)[:, 1], input_layout="BNSD")
    np.testing.assert_allclose(turned(output.asnumpy()), expected(whole[:, 1], cos, sin, False, OFFSETS), atol=2e-6)


def test_positions_past_the_tables_are_nan(mode):
    x, (cos, sin) = random(BATCH, SEQ, HEADS, DIM), tables(12)
    offsets = np.array([-1, 0, POSITIONS - SEQ + 2], np.int32)
    output = rotary_embedding(Tensor(x), Tensor(cos), Tensor(sin), offsets=Tensor(offsets)).asnumpy()
    assert np.isnan(output[0, 0, :, :12]).all() and np.isnan(output[2, -2:, :, :12]).all()
    assert np.isnan(output).sum() == 3 * HEADS * 12


# test_argument_names.py has more.
WRONG = {
    "odd": ({"cos": random(40, 11)}, ValueError, "cos: got shape (40, 11), allowed is (positions, rotary_dim / 2)"),
    "sin": ({"sin": random(40, 9)}, ValueError, "sin: got shape (40, 9), allowed is the shape of cos, (40, 10)"),
    "int": ({"offsets": 34}, ValueError, "cos: got 40 positions, allowed are at least 41: 7 tokens from 34 on"),
    "batch": ({"offsets": np.zeros(2, np.int32)}, ValueError, "offsets: got shape (2,), allowed is (batch,) = (3,)"),
    "half": ({"offsets": np.zeros(3, np.float16)}, TypeError, "offsets: got dtype float16, allowed are int32, int64"),
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
