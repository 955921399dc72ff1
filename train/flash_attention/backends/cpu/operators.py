"""The kernel as MindSpore primitives: one ops.Custom forward, one backward behind its bprop."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from flash_attention.backends.cpu import library
from flash_attention.problem import AttentionProblem


class Attention(nn.Cell):
    """One problem; see Backend.build for the meaning of the tensors.

    Optional inputs reach the primitives as an empty stand-in instead of None, which not every MindSpore version can
    differentiate around; the kernel knows from its configuration what counts.
    """

    def __init__(self, problem: AttentionProblem):
        super().__init__()
        rules, rates = library.configuration(problem)
        self.rules, self.rates = Tensor(rules), Tensor(rates)
        self.absent = Tensor(np.zeros(1, np.uint8))
        self.slopes = Tensor(library.slopes(problem)) if problem.alibi == "computed" else None
        self.masked, self.biased = problem.mask_shape is not None, problem.alibi == "given"
        self.dropped, self.given = problem.active_dropout > 0, problem.keep_bits
        self.attention = _forward(problem)

    def construct(self, query, key, value, mask, alibi, keep_bits, seed):
        mask = mask if self.masked else self.absent
        bias = self.absent
        if self.biased:
            bias = alibi
        elif self.slopes is not None:
            bias = self.slopes
        keep_bits = keep_bits if self.dropped and self.given else self.absent
        seed = seed if self.dropped and not self.given else self.absent
        return self.attention(query, key, value, mask, bias, keep_bits, seed, self.rules, self.rates)


def _forward(problem: AttentionProblem) -> ops.Custom:
    bias_gradient = problem.alibi == "given" and problem.bias_grad
    gradients = [(shape, problem.dtype) for shape in (problem.shape_query(), problem.shape_key(), problem.shape_key())]
    if bias_gradient:
        backward = _custom("FlashAttentionBackwardBias", problem, *gradients, (problem.bias_shape, problem.bias_dtype))
    else:
        backward = _custom("FlashAttentionBackward", problem, *gradients)
    zeros_like = ops.ZerosLike()

    def bprop(query, key, value, mask, bias, keep_bits, seed, rules, rates, out, dout):
        gradients = backward(
            query, key, value, mask, bias, keep_bits, seed, out[0], out[1], dout[0], dout[1], rules, rates
        )
        return (
            gradients[0],
            gradients[1],
            gradients[2],
            zeros_like(mask),
            gradients[3] if bias_gradient else zeros_like(bias),
            zeros_like(keep_bits),
            zeros_like(seed),
            zeros_like(rules),
            zeros_like(rates),
        )

    outputs = (problem.shape_query(), problem.dtype), (problem.shape_lse(), "float32")
    return _custom("FlashAttentionForward", problem, *outputs, bprop=bprop)


def _custom(function: str, problem: AttentionProblem, *outputs: tuple, bprop=None) -> ops.Custom:
    """The primitive of an entry point of csrc/custom.cpp; outputs are pairs of shape and dtype."""
    # With dynamic shapes MindSpore asks the library for the outputs.
    known = {} if problem.dynamic else {
        "out_shape": tuple(list(shape) for shape, _ in outputs),
        "out_dtype": tuple(getattr(ms, dtype) for _, dtype in outputs),
    }
    custom = ops.Custom(f"{library.LIBRARY}:{function}", func_type="aot", bprop=bprop, **known)
    if problem.dynamic:
        custom.add_prim_attr("reg_op_name", function)
        custom.add_prim_attr("multi_output", True)
    # PYNATIVE takes primitives of the same function and attributes for one and the same, whatever their outputs.
    custom.add_prim_attr("flash_attention_outputs", str(outputs))
    return custom
