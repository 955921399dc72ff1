"""The constants of a kernel, which are its last inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Callable

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from flash_attention.kernels.tik.problem import ALIBI_LARGEST, KernelProblem
from flash_attention.kernels.tik.signatures import Operator, Signature

# make_primitive(operator, its signature, problem, shapes) -> primitive. The shapes belong to outputs, by name, that
# MindSpore sees in another shape than the kernel.
MakePrimitive = Callable[[Operator, Signature, KernelProblem, Mapping[str, tuple]], ops.Custom]

# The kernels store the lowest float32 number for -inf, which the chip does not have. No other logsumexp is below this.
NOTHING_SEEN = -1e38


class Constants(nn.Cell):
    """Hold the constants of a kernel. If the slopes of ALiBi are data, the constants that need them are made from the
    slopes.

    The kernels read slopes from tables in global memory. Nothing else in a kernel depends on the values of slopes.

    Args:
        given_slopes: whether the slopes are data.
        slope_rows: of the decoding kernel: numbers of the slopes of its rows.
    """

    def __init__(
        self, problem: KernelProblem, signature: Signature, given_slopes: bool, slope_rows: np.ndarray | None = None
    ):
        super().__init__()
        constants = {one.name: Tensor(one.constant) for one in signature.inputs if one.constant is not None}
        self.values = tuple(constants.values())
        self.kinds = tuple(name if given_slopes and name in ("slopes", "row_slopes") else "" for name in constants)
        self.table = SlopeTable(problem)
        self.slope_rows = None if slope_rows is None else Tensor(slope_rows)

    def construct(self, slopes):
        result = ()
        for kind, value in zip(self.kinds, self.values):
            if kind == "slopes":
                value = self.table(slopes)
            elif kind == "row_slopes":
                value = ops.gather(self.table.allowed(slopes), self.slope_rows, 0)
            result = result + (value,)
        return result


class SlopeTable(nn.Cell):
    """Make the float32 table (slopes, SLOPE_WORDS) of slopes (slopes,). It is score_terms.slope_table in MindSpore
    operations.

    A slope that is steeper than the kernels can tell apart, for so many tokens, becomes NaN.
    """

    def __init__(self, problem: KernelProblem):
        super().__init__()
        self.post_scale = float(problem.post_scale)
        self.steepest = ALIBI_LARGEST / max(problem.call.seq_q, problem.call.seq_k)
        self.nan = Tensor(np.full(len(problem.slopes), np.nan, np.float32))

    def allowed(self, slopes):
        return ops.select(ops.abs(slopes) <= self.steepest, slopes, self.nan)

    def construct(self, slopes):
        slopes = self.allowed(slopes)
        reduced = slopes / self.post_scale
        wide, narrow, correction = self.halves(128 * reduced), self.halves(reduced), self.halves(-2 * slopes)
        return ops.stack((reduced,) + wide + narrow + correction + (self.half(-2 * reduced),), 1)

    def halves(self, number):
        """Split a number into two float16 numbers that add up to it."""
        first = self.half(number)
        return first, self.half(number - first)

    def half(self, number):
        number = ops.minimum(ops.maximum(number, -65504.0), 65504.0)
        return ops.cast(ops.cast(number, mstype.float16), mstype.float32)
