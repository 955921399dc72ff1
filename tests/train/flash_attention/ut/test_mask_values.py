"""Check that a mask's numbers other than 0 hide keys, on every backend and entry."""

import mindspore as ms
import numpy as np
import pytest
from flash_attention import FlashAttention, flash_attention
from flash_attention.backends import fused
from flash_attention.compat.mindspore_ops import flash_attention_score
from mindspore import Tensor, nn

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


def near(call, hidden):
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


@pytest.mark.parametrize("mode", ["pynative", pytest.param("graph", marks=pytest.mark.slow)], indirect=True)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", VALUES)
@pytest.mark.parametrize("shape", SHAPES)
def test_whatever_is_not_0_hides(shape, dtype, backend, mode):
    near(Call(mask_of(SHAPES[shape], dtype), {"backend": backend}), SHAPES[shape])


@pytest.mark.parametrize("backend", BACKENDS)
def test_beside_segments(backend):
    segments = {"segment_ids": Tensor(SEGMENTS)}
    apart = SEGMENTS[0][:, None] != SEGMENTS[0]
    hidden = HIDDEN & ~np.eye(4, dtype=bool)
    near(Call(mask_of(hidden, "uint8"), {"backend": backend, **segments}), hidden | apart)


def test_in_the_band_of_a_sparse_mode():
    query = Tensor(np.ones((1, 2, 4, 16), np.float16))
    hidden = HIDDEN & ~np.eye(4, dtype=bool)
    given = {"attn_mask": mask_of(hidden, "uint8"), "pre_tokens": 1, "next_tokens": 1}
    near(
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
    near(lambda value: layer(tensor, tensor, value, mask_of(triangle, dtype)), triangle[0, :4, :4])
    with pytest.raises(ValueError, match="stands for the compact causal mask"):
        layer(tensor, tensor, tensor, mask_of(~triangle, dtype))
