"""Test that tensor arguments as constants, Parameters and inputs give the same result.

A constant is computed with while a graph is compiled, by other code than at run time (MindSpore 2.0: NotEqual wrongly).
"""

import importlib
import itertools

import numpy as np
import pytest
from flash_attention import attention_backend, flash_attention, flash_attention_varlen, scaled_dot_product_attention
from flash_attention.functional import paged_attention
from mindspore import Parameter, Tensor

from tests.train.flash_attention.support.modes import in_mode

BATCH, HEADS, SEQ, DIM = 2, 2, 20, 16
RANDOM = np.random.default_rng(0)
MASK = RANDOM.random((BATCH, 1, SEQ, SEQ)) < 0.3
IDS = np.sort(RANDOM.integers(0, 3, (BATCH, SEQ)), 1).astype(np.int32)
ENDS = np.array([7, 20, 40], np.int32)


def normal(*shape):
    """Return normal random elements, in float32."""
    return RANDOM.standard_normal(shape).astype(np.float32)


QKV = {name: normal(BATCH, HEADS, SEQ, DIM) for name in ("query", "key", "value")}
PACKED = {name: normal(BATCH * SEQ, HEADS, DIM) for name in ("query", "key", "value")}
KEEP_BITS = RANDOM.integers(0, 256, (BATCH, HEADS, SEQ, 3)).astype(np.uint8)
TABLES = np.array([[0, 3, 1], [5, 2, 4]], np.int32)
# Function, its tensors, its other arguments.
CALLS = {
    "float16 mask of rank 2": (flash_attention, {**QKV, "attention_mask": MASK[0, 0].astype(np.float16)}, ""),
    "float32 mask of rank 3": (flash_attention, {**QKV, "attention_mask": MASK[:, 0].astype(np.float32)}, ""),
    "float32 mask of rank 4": (flash_attention, {**QKV, "attention_mask": MASK.astype(np.float32)}, ""),
    "uint8 mask": (flash_attention, {**QKV, "attention_mask": MASK.astype(np.uint8)}, ""),
    "boolean mask": (flash_attention, {**QKV, "attention_mask": MASK}, ""),
    "bias": (flash_attention, {**QKV, "bias": normal(BATCH, HEADS, SEQ, SEQ)}, ""),
    "bias of -inf": (flash_attention, {**QKV, "bias": np.where(MASK[:, :, :1], -np.inf, 0).astype(np.float32)}, ""),
    "segments": (flash_attention, {**QKV, "segment_ids": IDS}, ""),
    "segments of both": (
        flash_attention,
        {**QKV, "segment_ids": IDS, "kv_segment_ids": IDS[:, ::-1].copy(), "attention_mask": MASK.astype(np.float32)},
        "",
    ),
    "prefix": (flash_attention, {**QKV, "prefix": np.array([3, 9], np.int32)}, "causal=True"),
    "sinks": (flash_attention, {**QKV, "sinks": normal(HEADS)}, ""),
    "keep bits": (flash_attention, {**QKV, "keep_bits": KEEP_BITS}, "dropout_rate=0.5"),
    "seed": (flash_attention, {**QKV, "seed": np.array([5, 7], np.int64)}, "dropout_rate=0.5"),
    "torch's boolean mask": (scaled_dot_product_attention, {**QKV, "attn_mask": MASK}, ""),
    "torch's floating mask": (scaled_dot_product_attention, {**QKV, "attn_mask": normal(SEQ, SEQ)}, ""),
    "packed": (flash_attention_varlen, {**PACKED, "cu_seqlens_q": ENDS, "cu_seqlens_k": ENDS}, "causal=True"),
    "packed, lengths in tuples": (
        flash_attention_varlen,
        {**PACKED, "sinks": normal(HEADS), "prefix": np.array([2, 5, 9], np.int32)},
        "causal=True, cu_seqlens_q=(7, 20, 40), cu_seqlens_k=(7, 20, 40)",
    ),
    "paged": (
        paged_attention,
        {
            "query": normal(2, HEADS, DIM),
            "key_cache": normal(6, 16, HEADS, DIM),
            "value_cache": normal(6, 16, HEADS, DIM),
            "block_tables": TABLES,
            "context_lens": np.array([37, 18], np.int32),
        },
        "",
    ),
}
SOURCE = """
from mindspore import nn

class Call(nn.Cell):
    def __init__(self, held):
        super().__init__()
        for name, tensor in held.items():
            setattr(self, "held_" + name, tensor)

    def construct({parameters}):
        return function({arguments})
"""
_NUMBERS = itertools.count()


def result(folder, function, arrays, rules, kinds):
    """Return the result of a graph. `kinds` names each tensor "constant", "parameter", or "input"."""
    inputs = [name for name in arrays if kinds.get(name, "input") == "input"]
    held = {name: Tensor(array) for name, array in arrays.items() if name not in inputs}
    for name, tensor in held.items():
        if kinds[name] == "parameter":
            held[name] = Parameter(tensor, name=name, requires_grad=False)
    arguments = [f"{name}={name if name in inputs else f'self.held_{name}'}" for name in arrays]
    # MindSpore compiles functions from their source files.
    path = folder / f"call_{next(_NUMBERS)}.py"
    path.write_text(SOURCE.format(parameters=", ".join(["self", *inputs]), arguments=", ".join([*arguments, rules])))
    module = importlib.import_module(path.stem)
    module.function = function
    return module.Call(held)(*(Tensor(arrays[name]) for name in inputs)).asnumpy()


@pytest.mark.spread(since=(2, 8))
@pytest.mark.parametrize("backend", ("cpu", "math"))
@pytest.mark.parametrize("name", CALLS)
def test_the_result_is_that_of_inputs(name, backend, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    function, arrays, rules = CALLS[name]
    with attention_backend(backend):
        with in_mode("pynative"):
            wanted = result(tmp_path, function, arrays, rules, {})
        tested = [one for one in arrays if one not in ("query", "key", "value", "key_cache", "value_cache")]
        for kinds in (
            *({one: "constant"} for one in tested),
            dict.fromkeys(tested, "parameter"),
            dict.fromkeys(arrays, "constant"),
        ):
            with in_mode("graph"):
                found = result(tmp_path, function, arrays, rules, kinds)
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6, err_msg=str(kinds))
