"""Masks: numbers other than 0 hide, the compact triangle is causal, and hidden keys may hold anything."""

import mindspore as ms
import numpy as np
import pytest
from flash_attention import FlashAttention, flash_attention
from flash_attention.backends import fused
from flash_attention.compat.mindspore_ops import flash_attention_score
from mindspore import Parameter, Tensor, nn, ops

from tests.train.flash_attention.support.cells import Call as Network
from tests.train.flash_attention.support.cells import with_gradients
from tests.train.flash_attention.support.layer_inputs import inputs, near, truth
from tests.train.flash_attention.support.modes import GRAPHS_ARE_SLOW

BACKENDS = "emulator", "cpu", "math"
#: By dtype, what stands for "hidden".
VALUES = {"uint8": (1, 2, 255, 128), "float16": (1, -1, 6e-8, np.nan), "float32": (1, 2, -0.5, np.inf)}
HIDDEN = np.array([[0, 1, 0, 1], [1, 0, 1, 1], [0, 0, 0, 0], [0, 1, 1, 0]], bool)
SHAPES = {"rows": HIDDEN, "keys": HIDDEN[None, None, :1], "heads": np.stack([HIDDEN, HIDDEN.T])[None]}
SEGMENTS = np.array([[0, 0, 0, 1]], np.int32)


class Call(nn.Cell):
    """Compute attention on equal keys: averages of the values that are seen."""

    def __init__(self, mask, options):
        super().__init__()
        self.query, self.mask, self.options = Tensor(np.ones((1, 2, 4, 16), np.float16)), mask, options

    def construct(self, value):
        return flash_attention(self.query, self.query, value, self.mask, **self.options)


def assert_averages(call, hidden):
    """Compare output and gradient of value with the averages."""
    value = Tensor(np.arange(1, 9, dtype=np.float16).reshape(1, 2, 4, 1).repeat(16, 3))
    seen = np.broadcast_to(~hidden, (1, 2, 4, 4))
    weights = seen / seen.sum(-1, keepdims=True)
    output, gradient = call(value).asnumpy(), ms.ops.grad(call)(value).asnumpy()
    np.testing.assert_allclose(output, weights @ value.asnumpy(), rtol=2e-3)
    np.testing.assert_allclose(gradient[..., 0], weights.sum(-2), rtol=2e-3)


def mask_of(hidden, dtype):
    """Return a mask with all the values of the dtype."""
    mask = np.where(hidden, np.resize(np.array(VALUES[dtype], dtype), hidden.shape), 0).astype(dtype)
    assert ((mask != 0) == hidden).all()
    return Tensor(mask)


@pytest.mark.spread
@GRAPHS_ARE_SLOW
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", VALUES)
@pytest.mark.parametrize("shape", SHAPES)
def test_whatever_is_not_0_hides(shape, dtype, backend, mode):
    assert_averages(Call(mask_of(SHAPES[shape], dtype), {"backend": backend}), SHAPES[shape])


@pytest.mark.parametrize("backend", BACKENDS)
def test_beside_segments(backend):
    segments = {"segment_ids": Tensor(SEGMENTS)}
    apart = SEGMENTS[0][:, None] != SEGMENTS[0]
    hidden = HIDDEN & ~np.eye(4, dtype=bool)
    assert_averages(Call(mask_of(hidden, "uint8"), {"backend": backend, **segments}), hidden | apart)


def test_in_the_band_of_a_sparse_mode():
    query = Tensor(np.ones((1, 2, 4, 16), np.float16))
    hidden = HIDDEN & ~np.eye(4, dtype=bool)
    given = {"attn_mask": mask_of(hidden, "uint8"), "pre_tokens": 1, "next_tokens": 1}
    assert_averages(
        lambda value: flash_attention_score(query, query, value, 2, input_layout="BNSD", scalar_value=1.0, **given),
        hidden | (np.abs(np.arange(4)[:, None] - np.arange(4)) > 1),
    )


def test_in_the_mask_of_the_fused_operator(monkeypatch):
    """The operator of Atlas A2 documents only zeros and ones in a mask."""
    seen = []

    def operator(query, key, value, head_num, real_shift, drop_mask, padding_mask, attn_mask, **options):
        seen.append(attn_mask.asnumpy())
        return value

    monkeypatch.setattr(fused, "flash_attention_score", operator)
    monkeypatch.setattr(fused.FusedBackend, "unavailable", lambda self: None)
    Call(mask_of(HIDDEN, "uint8"), {"backend": "fused"})(Tensor(np.ones((1, 2, 4, 16), np.float16)))
    np.testing.assert_array_equal(seen[0], HIDDEN[None, None])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", VALUES)
def test_in_the_compact_mask(dtype, backend):
    triangle = np.triu(np.ones((1, 128, 128), bool), 1)
    tensor = Tensor(np.ones((1, 2, 4, 16), np.float16))
    layer = FlashAttention(16, backend=backend)
    assert_averages(lambda value: layer(tensor, tensor, value, mask_of(triangle, dtype)), triangle[0, :4, :4])
    with pytest.raises(ValueError, match="stands for the compact causal mask"):
        layer(tensor, tensor, tensor, mask_of(~triangle, dtype))


ROW, COLUMN = np.indices((40, 40))
DOCUMENT = (np.arange(40) >= 30).astype(np.int32)
#: By rule: the options of a call, and what a row sees.
RULES = {
    "causal": ({"causal": True}, COLUMN <= ROW),
    "window": ({"window_size": (5, 2)}, (COLUMN >= ROW - 5) & (COLUMN <= ROW + 2)),
    "padding": ({"attention_mask": Tensor(DOCUMENT[None, None, None] > 0)}, COLUMN < 30),
    "segments": ({"segment_ids": Tensor(DOCUMENT[None])}, DOCUMENT[ROW] == DOCUMENT[COLUMN]),
}


@pytest.mark.spread
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("backend", ["cpu", "math"])
def test_what_a_row_does_not_see_may_be_anything(backend, rule, bad):
    """One token is spoiled. Rows that do not see it, and keys that no row sees beside it, keep their bits."""
    random, seen = np.random.default_rng(0), RULES[rule][1]
    arrays = [random.standard_normal((1, heads, 40, 8)).astype(np.float32) for heads in (2, 1, 1, 2)]

    def results(*arrays):
        net = Network(flash_attention, **RULES[rule][0], backend=backend)
        found = with_gradients(net, *map(Tensor, arrays))
        return [one.asnumpy() for one in found]

    clean = results(*arrays)
    for place in range(3):
        spoiled = [array.copy() for array in arrays]
        spoiled[place][:, :, 33] = bad
        rows = seen[:, 33] if place else ROW[:, 0] == 33
        touched = rows, rows, *[seen[rows].any(0)] * 2
        for one, other, which in zip(results(*spoiled), clean, touched):
            np.testing.assert_array_equal(one[:, :, ~which], other[:, :, ~which])
        if place == 2:
            assert not np.isfinite(results(*spoiled)[0][:, :, rows]).any()


TRIANGLE = np.triu(np.ones((1, 128, 128), np.float16), 1)


def test_a_compact_mask_with_other_contents_is_refused_outside_graphs():
    query, key, value = inputs()
    layer = FlashAttention(32, backend="math")
    for contents in (1 - TRIANGLE, TRIANGLE.transpose(0, 2, 1), np.zeros_like(TRIANGLE)):
        with pytest.raises(ValueError, match="attention_mask: shape .* stands for the compact causal mask"):
            layer(query, key, value, Tensor(contents))


def set_one(mask):
    """Hide one key by assignment to an element."""
    mask[0, 5, 3] = 1


def set_one_of_the_array(mask):
    """Hide one key through the array that shares the tensor's memory."""
    mask.asnumpy()[0, 5, 3] = 1


def put_other_data(mask):
    """Give the tensor other data."""
    mask.assign_value(Tensor(TRIANGLE * 0))


@pytest.mark.parametrize("change", (set_one, set_one_of_the_array, put_other_data))
def test_a_compact_mask_that_changes_in_place_is_noticed(change):
    query, key, value = inputs()
    layer = FlashAttention(32, backend="math")
    mask = Tensor(TRIANGLE.copy())
    for _ in range(2):
        layer(query, key, value, mask)
    change(mask)
    for _ in range(2):
        with pytest.raises(ValueError, match="attention_mask: shape .* stands for the compact causal mask"):
            layer(query, key, value, mask)
    mask.assign_value(Tensor(TRIANGLE))
    near(layer(query, key, value, mask), truth(query, key, value, causal=True).output)


def test_a_compact_mask_that_an_operation_under_way_changes_is_noticed_at_the_next_call():
    query, key, value = inputs()
    layer = FlashAttention(32, backend="math")
    mask = Parameter(Tensor(TRIANGLE), requires_grad=False)
    layer(query, key, value, mask)
    ops.assign(mask, Tensor(TRIANGLE * 0))
    with pytest.raises(ValueError, match="attention_mask: shape .* stands for the compact causal mask"):
        for _ in range(2):
            layer(query, key, value, mask).asnumpy()
