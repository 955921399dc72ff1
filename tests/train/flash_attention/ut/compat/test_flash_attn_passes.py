"""The passes of flash_attn apart, as ring attention calls them: block by block, with the logsumexp over all keys."""

import mindspore as ms
import numpy as np
import pytest
from flash_attention.bridge.versions import OLD
from flash_attention.compat.flash_attn import flash_attn_func, flash_attn_varlen_func
from flash_attention.compat.flash_attn.flash_attn_interface import (
    _flash_attn_backward,
    _flash_attn_forward,
    _flash_attn_varlen_backward,
    _flash_attn_varlen_forward,
)
from mindspore import Tensor, ops

from tests.train.flash_attention.support.layer_inputs import draw

PARTS = slice(0, 7), slice(7, 12)
SLOPES = Tensor([0.5, 0.1, 0.3, 0.2], ms.float32)


def joined(parts):
    """Merge outputs over parts of the keys, (..., seq, heads, dim), and their logsumexps."""
    outputs, logsumexps = ([one[place].asnumpy() for one in parts] for place in (0, 1))
    logsumexp = np.logaddexp(*logsumexps)
    shares = [np.exp(one - logsumexp).swapaxes(-1, -2)[..., None] for one in logsumexps]
    return Tensor(sum(map(np.multiply, outputs, shares))), Tensor(logsumexp)


def test_keys_in_two_blocks():
    q, k, v, dout = draw(2, 5, 4, 16), draw(2, 12, 2, 16, seed=1), draw(2, 12, 2, 16, seed=2), draw(2, 5, 4, 16, seed=3)
    rules = (0.0, 0.3, False, -1, -1, 20.0, None)
    blocks = [(k[:, part], v[:, part]) for part in PARTS]
    out, logsumexp = joined([_flash_attn_forward(q, *block, *rules, False) for block in blocks])

    def loss(q, k, v):
        return (flash_attn_func(q, k, v, softmax_scale=0.3, softcap=20.0) * dout).sum()

    found = [ops.zeros_like(one) for one in (q, k, v)]
    of_queries = 0
    for part, block in zip(PARTS, blocks):
        buffers = [found[0], *(one[:, part] for one in found[1:])]
        if OLD:  # a slice is a copy there
            buffers = list(map(ops.zeros_like, (q, *block)))
        delta = _flash_attn_backward(dout, q, *block, out, logsumexp, *buffers, *rules, False)
        if OLD:
            found[1][:, part], found[2][:, part] = buffers[1:]
        of_queries = of_queries + buffers[0].asnumpy()
    np.testing.assert_allclose(delta.asnumpy(), (dout * out).sum(-1).swapaxes(1, 2).asnumpy(), atol=1e-5)
    expected = ops.grad(loss, (0, 1, 2))(q, k, v)
    for gradient, wanted in zip((Tensor(of_queries), *found[1:]), expected):
        np.testing.assert_allclose(gradient.asnumpy(), wanted.asnumpy(), atol=1e-5)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_the_two_passes_of_a_call(dropout):
    """Some queries see nothing. The backward pass drops the same scores as the forward pass."""
    q, k, v, dout = draw(2, 8, 4, 16), draw(2, 6, 2, 16, seed=1), draw(2, 6, 2, 16, seed=2), draw(2, 8, 4, 16, seed=3)
    rules = (dropout, None, True, 3, -1, 0.0, SLOPES)
    out, logsumexp, nothing, state = _flash_attn_forward(q, k, v, *rules, False)
    assert nothing is None and np.isneginf(logsumexp.asnumpy()[:, :, :2]).all()
    buffers = list(map(ops.zeros_like, (q, k, v)))
    _flash_attn_backward(dout, q, k, v, out, logsumexp, *buffers, *rules, True, rng_state=state)
    # The output is linear in v: its derivative along v is itself.
    assert (buffers[2] * v).sum().asnumpy() == pytest.approx((dout * out).sum().asnumpy(), rel=1e-4)
    step = 1e-2 * draw(2, 8, 4, 16, seed=5)
    if dropout == 0.0:
        up, down = (flash_attn_func(q + sign * step, k, v, *rules[:3], (3, -1), 0.0, SLOPES) for sign in (1, -1))
        change = ((up - down) * dout).sum().asnumpy() / 2
        assert (buffers[0] * step).sum().asnumpy() == pytest.approx(change, rel=1e-2)
    assert not buffers[0].asnumpy()[:, :2].any() and np.isfinite(buffers[1].asnumpy()).all()


def test_packed_sequences():
    q, k, v, dout = draw(9, 4, 16), draw(9, 2, 16, seed=1), draw(9, 2, 16, seed=2), draw(9, 4, 16, seed=3)
    ends = Tensor([0, 4, 9], ms.int32)
    packed, rules = (ends, ends, 5, 5), (0.0, None, True, -1, -1, 0.0, None)
    out, logsumexp, _, _ = _flash_attn_varlen_forward(q, k, v, *packed, *rules)
    buffers = list(map(ops.zeros_like, (q, k, v)))
    delta = _flash_attn_varlen_backward(dout, q, k, v, out, logsumexp, *buffers, *packed, *rules, False)

    def loss(q, k, v):
        return (flash_attn_varlen_func(q, k, v, *packed, causal=True) * dout).sum()

    assert delta.shape == (4, 9)
    for gradient, wanted in zip(buffers, ops.grad(loss, (0, 1, 2))(q, k, v)):
        np.testing.assert_allclose(gradient.asnumpy(), wanted.asnumpy(), atol=1e-5)
    with pytest.raises(ValueError, match="seqused_k: got a Tensor, allowed is None"):
        _flash_attn_varlen_forward(q, k, v, *packed, *rules, seqused_k=ends)


def test_a_graph_is_refused():
    q = draw(1, 4, 2, 16)
    buffers = list(map(ops.zeros_like, (q, q, q)))

    @ms.jit
    def run(q, out, logsumexp):
        return _flash_attn_backward(q, q, q, q, out, logsumexp, *buffers, 0.0, None, True, -1, -1, 0.0, None, False)

    with pytest.raises(RuntimeError, match="_flash_attn_backward: it writes dq, dk and dv in place"):
        run(q, q, ops.zeros((1, 2, 4), ms.float32))
