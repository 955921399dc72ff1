# /// script
# requires-python = "==3.12.*"
# dependencies = ["keras==3.15.1", "tensorflow-cpu==2.21.0", "numpy==2.3.5"]
# ///
"""Answer for dot_product_attention and MultiHeadAttention of Keras on TensorFlow on a CPU."""

import functools
import os

os.environ.update(KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3")
import keras
import numpy as np
import questions
import tensorflow


def attend(query, key, value, mask=None, bias=None, causal=False):
    """Run attention in the layout of Keras, (batch, seq, heads, head_dim)."""
    given = [keras.ops.swapaxes(one, 1, 2) for one in (query, key, value)]
    return keras.ops.swapaxes(keras.ops.dot_product_attention(*given, bias, mask=mask, is_causal=causal), 1, 2)


def layer(query, key, value, mask=None, causal=False, dropout=0.0):
    """Run keras.layers.MultiHeadAttention whose weights are identities."""
    batch, heads, seq_q, head_dim = query.shape
    if key.shape[1] != heads:  # it has one number of heads
        raise NotImplementedError
    cell = keras.layers.MultiHeadAttention(
        heads, head_dim, dropout=dropout, use_bias=False, seed=1, dtype=keras.backend.standardize_dtype(query.dtype)
    )
    tokens = [
        keras.ops.reshape(keras.ops.swapaxes(one, 1, 2), (batch, -1, heads * head_dim)) for one in (query, value, key)
    ]
    cell.build(*(one.shape for one in tokens))
    cell.set_weights([np.eye(heads * head_dim).reshape(weight.shape) for weight in cell.weights])
    output = cell(*tokens, attention_mask=mask, use_causal_mask=causal, training=dropout > 0)
    return keras.ops.swapaxes(keras.ops.reshape(output, (batch, seq_q, heads, head_dim)), 1, 2)


def gradients(function, query, key, value, mask):
    """Return the gradients of query, key and value."""
    tensors = [tensorflow.constant(one) for one in (query, key, value)]
    with tensorflow.GradientTape() as tape:
        tape.watch(tensors)
        total = keras.ops.sum(function(*tensors, mask=mask))
    return tape.gradient(total, tensors)


questions.show(
    f"keras {keras.__version__}, tensorflow {tensorflow.__version__}",
    keras=questions.Column(attend, functools.partial(gradients, attend), layout="BSND"),
    keras_layer=questions.Column(layer, functools.partial(gradients, layer), layout="BSH"),
)
