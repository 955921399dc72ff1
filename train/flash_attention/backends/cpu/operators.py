"""The native kernel as MindSpore primitives: `ops.Custom(func_type="aot")`, with the backward kernel as its bprop."""

from __future__ import annotations

from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from flash_attention.backends.cpu import library
from flash_attention.backends.cpu.build import LIBRARY
from flash_attention.problem import AttentionProblem

DTYPES = {"float16": mstype.float16, "bfloat16": getattr(mstype, "bfloat16", None), "float32": mstype.float32}


class NativeAttention(nn.Cell):
    """Attention on BNSD tensors, with the meanings of `Backend.build`."""

    def __init__(self, problem: AttentionProblem):
        super().__init__()
        bias_gradient = problem.alibi == "given" and problem.bias_grad
        rules, rates = library.configuration(problem, bias_gradient)
        self.rules, self.rates = Tensor(rules), Tensor(rates)
        self.slopes = Tensor(library.slopes(problem)) if problem.alibi == "computed" else None
        dtype = DTYPES[problem.dtype]
        gradients = [(problem.shape_query(), dtype), (problem.shape_key(), dtype), (problem.shape_key(), dtype)]
        if bias_gradient:
            gradients.append((problem.bias_shape, DTYPES[problem.bias_dtype]))
        backward = _custom("FlashAttentionBackward", problem, gradients)
        outputs = [(problem.shape_query(), dtype), (problem.shape_lse(), mstype.float32)]
        self.forward = _custom("FlashAttentionForward", problem, outputs, _bprop(backward, bias_gradient))

    def construct(self, query, key, value, mask, alibi, keep_bits, seed):
        if self.slopes is not None:
            alibi = self.slopes
        return self.forward(query, key, value, mask, alibi, keep_bits, seed, self.rules, self.rates)


def _bprop(backward, bias_gradient: bool):
    """The gradient of the forward primitive. An input that is None gets None: zeros_like(None) raises."""

    def bprop(query, key, value, mask, bias, keep_bits, seed, rules, rates, out, dout):
        gradients = backward(
            query, key, value, mask, bias, keep_bits, seed, out[0], out[1], dout[0], dout[1], rules, rates
        )
        d_mask, d_bias, d_keep_bits, d_seed = None, None, None, None
        if mask is not None:
            d_mask = ops.zeros_like(mask)
        if bias_gradient:
            d_bias = gradients[3]
        elif bias is not None:
            d_bias = ops.zeros_like(bias)
        if keep_bits is not None:
            d_keep_bits = ops.zeros_like(keep_bits)
        if seed is not None:
            d_seed = ops.zeros_like(seed)
        d_rules, d_rates = ops.zeros_like(rules), ops.zeros_like(rates)
        return gradients[0], gradients[1], gradients[2], d_mask, d_bias, d_keep_bits, d_seed, d_rules, d_rates

    return bprop


def _custom(function: str, problem: AttentionProblem, outputs: list, bprop=None) -> ops.Custom:
    shapes = tuple([int(size) for size in shape] for shape, _ in outputs)
    primitive = ops.Custom(
        f"{LIBRARY}:{function}", out_shape=shapes, out_dtype=tuple(dtype for _, dtype in outputs), func_type="aot",
        bprop=bprop,
    )
    # PYNATIVE confuses primitives that call the same function with the same attributes but other output structures.
    primitive.add_prim_attr("problem", repr(problem))
    return primitive
