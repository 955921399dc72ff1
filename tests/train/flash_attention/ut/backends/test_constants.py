"""Test that tensor arguments as constants, Parameters and inputs give the same result.

A constant is computed with while a graph is compiled, by other code than at run time (MindSpore 2.0: NotEqual wrongly).
"""

import importlib
import itertools

import flash_attention
import mindspore as ms
import numpy as np
import pytest
from flash_attention import attention_backend
from mindspore import Parameter, Tensor

from tests.train.flash_attention.support.joint_calls import (
    BATCH,
    HEADS,
    SEQ_K,
    SEQ_Q,
    Made,
    dense,
    normal,
    packed,
    paged,
)
from tests.train.flash_attention.support.modes import in_mode

RANDOM = np.random.default_rng(0)
MASK = RANDOM.random((BATCH, 1, SEQ_Q, SEQ_K)) < 0.3
IDS, KEY_IDS = (Tensor(np.sort(RANDOM.integers(0, 3, (BATCH, seq)), 1).astype(np.int32)) for seq in (SEQ_Q, SEQ_K))
KEEP_BITS = Tensor(RANDOM.integers(0, 256, (BATCH, HEADS, SEQ_Q, 2)).astype(np.uint8))
SEGMENTS = {"segment_ids": IDS, "kv_segment_ids": KEY_IDS}
TUPLES = {"cu_seqlens_q": (3, 10, 20), "cu_seqlens_k": (5, 12, 24)}


def torchs(mask: Tensor) -> Made:
    """Return a call of torch's function, with keys for every head."""
    made = dense(kv_heads=HEADS, attn_mask=mask)
    return made._replace(function="scaled_dot_product_attention")


CALLS = {
    "float16 mask of rank 2": dense(attention_mask=Tensor(MASK[0, 0].astype(np.float16))),
    "float32 mask of rank 3": dense(attention_mask=Tensor(MASK[:, 0].astype(np.float32))),
    "float32 mask of rank 4": dense(attention_mask=Tensor(MASK.astype(np.float32))),
    "uint8 mask": dense(attention_mask=Tensor(MASK.astype(np.uint8))),
    "boolean mask": dense(attention_mask=Tensor(MASK)),
    "bias": dense(bias=normal(BATCH, HEADS, SEQ_Q, SEQ_K)),
    "bias of -inf": dense(bias=Tensor(np.where(MASK[:, :, :1], -np.inf, 0).astype(np.float32))),
    "segments": dense(seq_k=SEQ_Q, segment_ids=IDS),
    "segments of both": dense(**SEGMENTS, attention_mask=Tensor(MASK.astype(np.float32))),
    "prefix": dense(prefix=Tensor([3, 9], ms.int32), causal=True),
    "sinks": dense(sinks=normal(HEADS)),
    "keep bits": dense(keep_bits=KEEP_BITS, dropout_rate=0.5),
    "seed": dense(seed=Tensor([5, 7], ms.int64), dropout_rate=0.5),
    "torch's boolean mask": torchs(Tensor(MASK)),
    "torch's floating mask": torchs(normal(SEQ_Q, SEQ_K)),
    "packed": packed(causal=True),
    "packed, lengths in tuples": packed(**TUPLES, sinks=normal(HEADS), prefix=Tensor([2, 5, 9], ms.int32), causal=True),
    "paged": paged(),
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


def result(folder, made, kinds):
    """Return the result of a graph. `kinds` names each tensor "constant", "parameter", or "input"."""
    inputs = [name for name in made.tensors if kinds.get(name, "input") == "input"]
    held = {name: tensor for name, tensor in made.tensors.items() if name not in inputs}
    for name, tensor in held.items():
        if kinds[name] == "parameter":
            held[name] = Parameter(tensor, name=name, requires_grad=False)
    arguments = [f"{name}={name if name in inputs else f'self.held_{name}'}" for name in made.tensors]
    arguments += [f"{name}={value!r}" for name, value in made.options.items()]
    # MindSpore compiles functions from their source files.
    path = folder / f"call_{next(_NUMBERS)}.py"
    path.write_text(SOURCE.format(parameters=", ".join(["self", *inputs]), arguments=", ".join(arguments)))
    module = importlib.import_module(path.stem)
    module.function = getattr(flash_attention, made.function)
    return module.Call(held)(*(made.tensors[name] for name in inputs)).asnumpy()


@pytest.mark.spread(since=(2, 8))
@pytest.mark.parametrize("backend", ("cpu", "math"))
@pytest.mark.parametrize("name", CALLS)
def test_the_result_is_that_of_inputs(name, backend, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    made = CALLS[name]
    with attention_backend(backend):
        with in_mode("pynative"):
            wanted = result(tmp_path, made, {})
        tested = [one for one in made.tensors if one not in ("query", "key", "value", "key_cache", "value_cache")]
        for kinds in (
            *({one: "constant"} for one in tested),
            dict.fromkeys(tested, "parameter"),
            dict.fromkeys(made.tensors, "constant"),
        ):
            with in_mode("graph"):
                found = result(tmp_path, made, kinds)
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6, err_msg=str(kinds))
