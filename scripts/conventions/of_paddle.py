# /// script
# requires-python = "==3.12.*"
# dependencies = ["paddlepaddle==3.3.1", "numpy==2.3.5"]
# ///
"""Answer for paddle's scaled_dot_product_attention on a CPU."""

import numpy as np
import paddle
import questions


def tensor(array):
    """Return a tensor of paddle, (batch, seq, heads, head_dim)."""
    return paddle.to_tensor(np.ascontiguousarray(np.swapaxes(array, 1, 2)))


def run(tensors, mask=None, bias=None, causal=False, dropout=0.0):
    """Run attention on tensors of paddle."""
    paddle.seed(0)
    mask = bias if mask is None else mask
    return paddle.nn.functional.scaled_dot_product_attention(
        *tensors, attn_mask=None if mask is None else paddle.to_tensor(mask), dropout_p=dropout, is_causal=causal
    )


def attend(query, key, value, mask=None, bias=None, causal=False, dropout=0.0):
    """Run attention on arrays."""
    return np.swapaxes(run(map(tensor, (query, key, value)), mask, bias, causal, dropout).numpy(), 1, 2)


def gradients(query, key, value, mask):
    """Return the gradients of query, key and value."""
    tensors = [tensor(one) for one in (query, key, value)]
    for one in tensors:
        one.stop_gradient = False
    run(tensors, mask).sum().backward()
    return [np.swapaxes(one.grad.numpy(), 1, 2) for one in tensors]


questions.show(f"paddle {paddle.__version__}", paddle=questions.Column(attend, gradients, layout="BSND"))
