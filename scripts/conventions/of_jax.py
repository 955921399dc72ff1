# /// script
# requires-python = "==3.12.*"
# dependencies = ["jax==0.12.0", "numpy==2.3.5"]
# ///
"""Answer for jax.nn.dot_product_attention."""

import jax
import numpy as np
import questions


def attend(query, key, value, mask=None, bias=None, causal=False, window=None, lengths=None, lse=False):
    """Run attention in the layout of jax, (batch, seq, heads, head_dim)."""
    output = jax.nn.dot_product_attention(
        *(np.swapaxes(one, 1, 2) for one in (query, key, value)),
        bias=bias,
        mask=mask,
        is_causal=causal,
        local_window_size=window,
        key_value_seq_lengths=lengths,
        return_residual=lse,
    )
    return (np.swapaxes(output[0], 1, 2), output[1]) if lse else np.swapaxes(output, 1, 2)


def gradients(query, key, value, mask):
    """Return the gradients of query, key and value."""

    def total(query, key, value):
        return jax.nn.dot_product_attention(query, key, value, mask=mask).sum()

    of_each = jax.grad(total, (0, 1, 2))(*(np.swapaxes(one, 1, 2) for one in (query, key, value)))
    return [np.swapaxes(one, 1, 2) for one in of_each]


questions.show(f"jax {jax.__version__}", jax=questions.Column(attend, gradients, layout="BSND", window=2))
