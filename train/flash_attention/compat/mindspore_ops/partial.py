"""`ring_attention_update`: join attention over two parts of the keys, by the maxima and sums of their softmax."""

from __future__ import annotations

import mindspore as ms
from mindspore import dtype as mstype
from mindspore import nn, ops

from flash_attention.bridge.parameters import EntryCell
from flash_attention.bridge.precision import fix_dtypes
from flash_attention.bridge.tensors import compile_time, remembered, spec, tensor_spec
from flash_attention.call.checks import check_dtype, check_name
from flash_attention.call.inputs import DTYPES, fits
from flash_attention.compat.mindspore_ops.operators import primitive_of

_NAMES = tuple(f"{part}_{name}" for part in ("prev", "cur") for name in ("attn_out", "softmax_max", "softmax_sum"))


def ring_attention_update(
    prev_attn_out,
    prev_softmax_max,
    prev_softmax_sum,
    cur_attn_out,
    cur_softmax_max,
    cur_softmax_sum,
    actual_seq_qlen=None,
    layout="SBH",
):
    """Compute `mindspore.ops.ring_attention_update`.

    Args:
        prev_attn_out, cur_attn_out (Tensor): (S, B, H), or (T, N, D) in layout "TND"; float16, bfloat16 or float32.
        prev_softmax_max, cur_softmax_max (Tensor): float32 (B, N, S, 8) or (T, N, 8), the largest score of each query.
        prev_softmax_sum, cur_softmax_sum (Tensor): like it, the sum of exp(score - maximum).
        actual_seq_qlen (Tensor): without effect.
        layout (str): "SBH" or "TND".

    Returns:
        The output, maxima and sums over both parts. A query that sees nothing in either gives 0, -inf and 0.

    Raises:
        TypeError, ValueError: an argument is not allowed.
    """
    first = spec(prev_attn_out), spec(prev_softmax_max), spec(prev_softmax_sum)
    run = _prepared(layout, (*first, spec(cur_attn_out), spec(cur_softmax_max), spec(cur_softmax_sum)))
    before = prev_attn_out, prev_softmax_max, prev_softmax_sum
    return run(*before, cur_attn_out, cur_softmax_max, cur_softmax_sum)


RingAttentionUpdate = primitive_of("RingAttentionUpdate", ring_attention_update)


@compile_time
def _prepared(layout, specs):
    return _cell(layout, tuple(map(tensor_spec, _NAMES, specs)))


@remembered
def _cell(layout: str, specs: tuple) -> nn.Cell:
    check_name("layout", layout, ("SBH", "TND"))
    output, maximum = specs[:2]
    for place, (name, one) in enumerate(zip(_NAMES, specs)):
        check_dtype(name, one.dtype, ((output.dtype,) if place else DTYPES) if place % 3 == 0 else ("float32",))
        like = output if place % 3 == 0 else maximum
        if len(one.shape) != len(like.shape) or not all(map(fits, one.shape, like.shape)):
            raise ValueError(f"{name}: got shape {one.shape}, allowed is {like.shape}")
    packed = layout == "TND"
    if len(output.shape) == 3 and len(maximum.shape) == (3 if packed else 4):
        tokens = maximum.shape[:2] if packed else (maximum.shape[2], maximum.shape[0])
        heads = output.shape[2] > 0 and output.shape[2] % maximum.shape[1] == 0
        if all(map(fits, output.shape[:2], tokens)) and (packed or heads):
            return fix_dtypes(_Join(packed))
    raise ValueError(
        f"prev_softmax_max: got shape {maximum.shape} beside an output {output.shape} in layout {layout!r}, allowed "
        "are (B, N, S, 8) beside (S, B, N * D), and (T, N, 8) beside (T, N, D)"
    )


class _Join(EntryCell):
    """Weight two outputs by their sums, each by its distance from the common maximum."""

    def __init__(self, packed: bool):
        super().__init__()
        self.packed = packed
        # On a CPU, MindSpore's float32 exp errs a hundred times as much as float32 rounds.
        self.precise = mstype.float64 if ms.get_context("device_target") == "CPU" else mstype.float32

    def construct(self, output, maximum, total, other_output, other_maximum, other_total):
        highest = ops.maximum(maximum, other_maximum)
        first, second = self.of(total, maximum, highest), self.of(other_total, other_maximum, highest)
        total = first + second
        nothing = ops.equal(total, 0)
        divisor = ops.masked_fill(total, nothing, 1.0)
        joined = self.weighted(output, first / divisor) + self.weighted(other_output, second / divisor)
        return ops.cast(ops.reshape(joined, output.shape), output.dtype), highest, total

    def of(self, total, maximum, highest):
        """Return a sum with the common maximum."""
        distance = ops.masked_fill(maximum - highest, ops.equal(total, 0), 0.0)
        return total * ops.cast(ops.exp(ops.cast(distance, self.precise)), mstype.float32)

    def weighted(self, output, weight):
        wide, weight = ops.cast(output, mstype.float32), weight[..., :1]
        if not self.packed:
            weight = ops.transpose(weight, (2, 0, 1, 3))
            wide = ops.reshape(wide, weight.shape[:3] + (-1,))
        return ops.masked_fill(wide, ops.equal(weight, 0), 0.0) * weight
