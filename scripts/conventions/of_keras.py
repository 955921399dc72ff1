# /// script
# requires-python = "==3.12.*"
# dependencies = ["keras==3.15.1", "tensorflow-cpu==2.21.0", "numpy==2.3.5"]
# ///
"""Answer for dot_product_attention of Keras on TensorFlow on a CPU."""

import os

os.environ.update(KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3")
import keras
import numpy as np
import questions
import tensorflow


def attend(query, key, value, mask=None, bias=None, causal=False):
    """Run attention in the layout of Keras, (batch, seq, heads, head_dim)."""
    given = [np.swapaxes(one, 1, 2) for one in (query, key, value)]
    return np.swapaxes(np.asarray(keras.ops.dot_product_attention(*given, bias, mask=mask, is_causal=causal)), 1, 2)


def gradients(query, key, value, mask):
    """Return the gradients of query, key and value."""
    tensors = [tensorflow.constant(np.swapaxes(one, 1, 2)) for one in (query, key, value)]
    with tensorflow.GradientTape() as tape:
        tape.watch(tensors)
        total = keras.ops.sum(keras.ops.dot_product_attention(*tensors, mask=mask))
    return [np.swapaxes(one.numpy(), 1, 2) for one in tape.gradient(total, tensors)]


questions.show(
    f"keras {keras.__version__}, tensorflow {tensorflow.__version__}",
    keras=questions.Column(attend, gradients, layout="BSND"),
)
