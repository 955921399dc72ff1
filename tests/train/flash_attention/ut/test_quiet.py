"""Test that the package prints nothing and MindSpore warns no more than without it. Import and a first call are
tested.
"""

import re

import pytest

pytestmark = pytest.mark.system

START = """
import mindspore as ms, numpy as np
from mindspore import Tensor, nn, ops
from tests.train.flash_attention.support.cells import Call, Gradients

def ones(*shape):
    return Tensor(np.ones(shape, np.float32))

def in_both_modes(calls):
    for mode in (ms.GRAPH_MODE, ms.PYNATIVE_MODE):
        ms.set_context(mode=mode)
        calls()
    ms.set_context(mode=ms.GRAPH_MODE)

def of_any_size(net, *shape):
    net.set_inputs(*[Tensor(shape=shape, dtype=ms.float32)] * (3 if len(shape) == 4 else 1))
    for seq in (40, 50):
        net(*[ones(*(size or seq for size in shape))] * (3 if len(shape) == 4 else 1))[0].asnumpy()
"""
# What MindSpore says about its own features under the package: operators of others with gradients, unknown sizes.
CONTROL = (
    START
    + """
def one_more(x):
    return x + 1

class Custom(nn.Cell):
    def __init__(self):
        super().__init__()
        bprop = lambda x, out, dout: (dout * 2,)
        self.double = ops.Custom(lambda x: x * 2, lambda x: x, lambda x: x, "pyfunc", bprop=bprop)
    def construct(self, x):
        return self.double(x).sum()

def calls():
    Custom()(ones(2, 3)).asnumpy()
    ops.grad(Custom())(ones(2, 3)).asnumpy()

in_both_modes(calls)
of_any_size(Call(one_more), None, 3)
"""
)
PROGRAM = (
    START
    + """
from flash_attention import (
    FlashAttention, KVCache, flash_attention, flash_attention_varlen, scaled_dot_product_attention
)
from flash_attention.backends.registry import get_backend
from flash_attention.context_parallel import GatherAttention

def calls():
    tensors = [ones(2, 4, 40, 16)] * 3
    for net in (
        FlashAttention(16), FlashAttention(16, dropout_rate=0.1).set_train(),
        Call(flash_attention, causal=True), Call(scaled_dot_product_attention, is_causal=True),
    ):
        for gradient in Gradients(net)(*tensors, net(*tensors)):
            gradient.asnumpy()
    ends = Tensor([0, 30, 80], ms.int32)
    Call(flash_attention_varlen, causal=True)(*[ones(80, 4, 16)] * 3, ends, ends).asnumpy()
    for paged in (False, True):
        cache = KVCache(2, 32, 4, 16, dtype=ms.float32, paged=paged)
        for tokens in (5, 1):
            cache(*[ones(2, tokens, 4, 16)] * 3).asnumpy()

in_both_modes(calls)
of_any_size(FlashAttention(16, backend="cpu" if get_backend("cpu").dynamic else "math"), None, 4, None, 16)
"""
)


def places(lines: list[str]) -> set[str]:
    """Return the places in MindSpore's sources that warnings among the lines come from."""
    found = (re.search(r"\[mindspore/\S+:\d+\]", line) for line in lines)
    return {match[0] for match in found if match}


def test_nothing_prints_at_import_or_at_a_first_call(run_python, tmp_path):
    said = []
    for name, text in (("control.py", CONTROL), ("program.py", PROGRAM)):  # MindSpore reads the sources of functions
        (tmp_path / name).write_text(text)
        said.append(run_python(str(tmp_path / name), errors=True).splitlines())
    control, program = said
    assert [line for line in program if not places([line]) & places(control)] == []
