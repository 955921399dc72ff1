# /// script
# requires-python = "==3.12.*"
# dependencies = ["onnx==1.23.0", "onnxruntime==1.31.1", "numpy==2.3.5"]
# ///
"""Answer for ONNX's Attention (opset 24) and two com.microsoft operators, on a CPU."""

import numpy as np
import onnx
import onnxruntime
import questions
from onnx import helper
from onnx.reference import ReferenceEvaluator

RUNTIME = f"onnxruntime {onnxruntime.__version__}"
TYPES = {np.dtype(np.float32): 1, np.dtype(np.float16): 10, np.dtype(bool): 9, np.dtype(np.int64): 7}
TYPES[np.dtype(np.int32)] = 6
onnxruntime.set_default_logger_severity(4)


def run(reference, operator, domain, inputs, count=1, **attributes):
    """Return the outputs of a graph of one node. None among the inputs stands for an input that is left out."""
    names = [f"i{index}" if one is not None else "" for index, one in enumerate(inputs)]
    given = {name: one for name, one in zip(names, inputs) if name}
    infos = [helper.make_tensor_value_info(name, TYPES[one.dtype], one.shape) for name, one in given.items()]
    outputs = [helper.make_tensor_value_info(f"o{index}", TYPES[inputs[0].dtype], None) for index in range(count)]
    node = helper.make_node(operator, names, [one.name for one in outputs], domain=domain, **attributes)
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "g", infos, outputs), opset_imports=opsets, ir_version=10)
    if reference:
        return ReferenceEvaluator(model).run(None, given)[0]
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, given)[
        0
    ]


def of_standard(reference):
    """Return the function of ONNX's Attention."""

    def attend(query, key, value, mask=None, bias=None, causal=False, cap=0.0, lengths=None):
        mask = bias if mask is None else mask
        lengths = None if lengths is None else lengths.astype(np.int64)
        inputs = [query, key, value, mask, None, None, lengths]
        while inputs[-1] is None:
            inputs.pop()
        return run(reference, "Attention", "", inputs, is_causal=int(causal), softcap=cap)

    return attend


def rotary(reference):
    """Return the function of ONNX's RotaryEmbedding."""

    def turned(rows, cos, sin):
        return np.swapaxes(run(reference, "RotaryEmbedding", "", [np.swapaxes(rows, 1, 2), cos[None], sin[None]]), 1, 2)

    return turned


def flat(tensor):
    """Return (batch, seq, heads * head_dim)."""
    return np.ascontiguousarray(np.swapaxes(tensor, 1, 2)).reshape(tensor.shape[0], tensor.shape[2], -1)


def unflat(output, like):
    """Return (batch, heads, seq, head_dim)."""
    return np.swapaxes(output.reshape(like.shape[0], like.shape[2], like.shape[1], -1), 1, 2)


def multi_head(query, key, value, mask=None, bias=None, causal=False):
    """Run com.microsoft.MultiHeadAttention; its mask is `key_padding_mask` with a row for each query."""
    if mask is not None and mask.ndim == 4:
        mask = np.broadcast_to(mask[:, 0], (query.shape[0], *mask.shape[2:])).copy()
    inputs = [*map(flat, (query, key, value)), None, None if mask is None else mask.astype(np.int32), bias]
    while inputs[-1] is None:
        inputs.pop()
    output = run(
        False, "MultiHeadAttention", "com.microsoft", inputs, num_heads=query.shape[1], unidirectional=int(causal)
    )
    return unflat(output, query)


def grouped_query(query, key, value, window=-1, cap=0.0, sinks=None, lengths=None, bias=None, causal=True):
    """Run com.microsoft.GroupQueryAttention, which is always causal, on a prompt without a past."""
    counts = np.full(query.shape[0], key.shape[2] - 1) if lengths is None else lengths
    inputs = [*map(flat, (query, key, value)), None, None, counts.astype(np.int32), np.array(key.shape[2], np.int32)]
    inputs += [None, None, None, bias, None if sinks is None else sinks.astype(query.dtype)]
    while inputs[-1] is None:
        inputs.pop()
    heads = {"num_heads": query.shape[1], "kv_num_heads": key.shape[1]}
    output = run(
        False, "GroupQueryAttention", "com.microsoft", inputs, 3, local_window_size=window, softcap=cap, **heads
    )
    return unflat(output, query)


def rotary_of_microsoft(rows, cos, sin):
    """Run com.microsoft.RotaryEmbedding."""
    places = np.arange(rows.shape[1], dtype=np.int64)[None]
    return np.swapaxes(
        run(False, "RotaryEmbedding", "com.microsoft", [np.swapaxes(rows, 1, 2).copy(), places, cos, sin]), 1, 2
    )


questions.show(
    f"onnx {onnx.__version__}", onnx_reference=questions.Column(of_standard(True), rotary=rotary(True), layout="BNSD")
)
questions.show(
    RUNTIME,
    onnxruntime=questions.Column(of_standard(False), rotary=rotary(False), layout="BNSD"),
    multi_head_attention=questions.Column(multi_head, rotary=rotary_of_microsoft, layout="BSH"),
    group_query_attention=questions.Column(
        grouped_query, rotary=rotary_of_microsoft, layout="BSH", window=2, always_causal=True
    ),
)
