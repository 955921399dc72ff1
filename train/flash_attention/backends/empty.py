"""Attention without a single score: an empty batch, no heads, no queries or no keys."""

from __future__ import annotations

from mindspore import dtype as mstype
from mindspore import nn, ops

from flash_attention.bridge.constants import filled
from flash_attention.problem import AttentionProblem


class EmptyAttention(nn.Cell):
    """Gives what every backend would: zeros, and the logsumexp of rows that see nothing.

    Takes the inputs of the cell of `Backend.build`, or of its forms for packed and paged problems. No gradient flows
    through it but the one of the sinks.

    Args:
        problem: of the scores.
        output: shape of the output.
        rows: shape of the logsumexp; None where there is none.
    """

    def __init__(self, problem: AttentionProblem, output: tuple, rows: tuple | None = None):
        super().__init__()
        self.output, self.rows, self.dtype = output, rows, getattr(mstype, problem.dtype)
        self.sinks = problem.place("sinks")

    def construct(self, *tensors):
        output = ops.cast(filled(self.output, 0), self.dtype)
        if self.rows is None:
            return output
        logsumexp = filled(self.rows, -float("inf"))
        if self.sinks is not None:
            logsumexp = filled(self.rows, 0) + ops.reshape(tensors[-1][self.sinks], (-1, 1))
        return output, logsumexp
