"""The TIK operators in a graph that MindSpore splits and GE runs.

GE's nodes take no layouts as attributes: MindSpore 2.5 and 2.6 refuse a Custom primitive that has some ("Unsupported
custom attribute type in adaptor"). So a sharded graph has one primitive, a Morph, in the place of all operators.
MindSpore splits its tensors and then puts the operators there, which see only their shard.
"""

from __future__ import annotations

from mindspore import dtype as mstype
from mindspore import nn, ops

from flash_attention.kernels.tik.layout import placement
from flash_attention.kernels.tik.problem import KernelProblem, padded
from flash_attention.sharding.shard import ROWS, TENSOR, Shard

_WHOLE = (None,)
MOST_DATA = 4  # that lists are made of; a Morph takes no other number of inputs


class Expanded(nn.Cell):
    """The kernels of one device, as a primitive of the whole call.

        output, logsumexp = cell(query, key, value, (mask, bias, keep, sinks, slopes, *what lists are made of))

    Args:
        kernels: a Cell of the same inputs, see `cell.kernels`, for the share of one device.
        shard: of the call.
        problem: what the kernels are for.
        lists: makes data of lists for the kernels; None if there is none.
        axes: of the inputs of `lists`.
    """

    def __init__(self, kernels: nn.Cell, shard: Shard, problem: KernelProblem, lists: nn.Cell | None, axes: tuple):
        call = problem.call
        super().__init__()
        query, output = (placement(problem, name).shape for name in ("query", "output"))
        rows = (call.batch, call.heads, padded(call.seq_q))
        self.missing = MOST_DATA - len(axes)
        bias = shard.bias_axes if call.bias != "per_key" else (None, *(shard.bias_axes or ()))
        inputs = [
            *(TENSOR, TENSOR, TENSOR),
            shard.mask_axes if problem.mask != "none" else _WHOLE,
            bias if call.bias_shape is not None else _WHOLE,
            _WHOLE,
            ("dp", "mp", None) if call.sinks else _WHOLE,
            _WHOLE,
            *axes,
            *((_WHOLE,) * self.missing),
        ]
        # MindSpore compiles functions that are arguments of Morph. It calls the functions that are set here.
        self.morph = ops.Morph(_Flat(kernels, lists, len(axes)), _compiled, _compiled)
        self.morph.infer_shape = shard.infer_shapes(query, [(output, TENSOR), (rows, ROWS)])
        self.morph.infer_dtype = _dtypes
        shard.attach(self.morph, inputs, [TENSOR, ROWS])

    def construct(self, query, key, value, others):
        mask, bias, keep, sinks, slopes = others[:5]
        data = others[5:] + (slopes,) * self.missing
        first, second, third, fourth = data
        return self.morph(query, key, value, mask, bias, keep, sinks, slopes, first, second, third, fourth)


def _dtypes(*_inputs):
    return mstype.float16, mstype.float32


def _compiled(*inputs):
    return inputs


class _Flat(nn.Cell):
    """The kernels with all inputs one behind the other, as a Morph hands them on."""

    def __init__(self, kernels: nn.Cell, lists: nn.Cell | None, data: int):
        super().__init__()
        self.kernels, self.lists, self.data = kernels, lists, data

    def construct(self, query, key, value, mask, bias, keep, sinks, slopes, first, second, third, fourth):
        others = (mask, bias, keep, sinks, slopes)
        if self.lists is not None:
            others = others + self.lists(*(first, second, third, fourth)[: self.data])
        return self.kernels(query, key, value, others)
