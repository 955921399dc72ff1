# /// script
# requires-python = "==3.11.*"
# dependencies = ["openvino==2026.4.1", "numpy==2.3.5"]
# ///
"""Answer for ScaledDotProductAttention of OpenVINO on a CPU."""

import numpy as np
import openvino
import questions
from openvino import opset13

CORE = openvino.Core()
# On a processor with bfloat16 the default is bfloat16, where finfo.min of float32 is -inf.
PRECISION = {"INFERENCE_PRECISION_HINT": "f32"}


def attend(query, key, value, mask=None, bias=None, causal=False):
    """Compile a model of one operator, and run it."""
    given = [one for one in (query, key, value, bias if mask is None else mask) if one is not None]
    parameters = [opset13.parameter(one.shape, one.dtype) for one in given]
    node = opset13.scaled_dot_product_attention(*parameters, causal=causal)
    return CORE.compile_model(openvino.Model([node], parameters), "CPU", PRECISION)(given)[0].astype(np.float32)


version = openvino.__version__.partition("-")[0]
questions.show(f"openvino {version}", openvino=questions.Column(attend, layout="BNSD"))
