"""`speed_fusion_attention`: `flash_attention_score` with seven results and more places for the position shift."""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor, ops
from mindspore import dtype as mstype

from flash_attention.bridge.tensors import compile_time, compiling
from flash_attention.call.checks import check_int, check_real
from flash_attention.compat.ascend910 import Operator
from flash_attention.compat.mindspore_ops.operators import run_score, scalar_like
from flash_attention.compat.mindspore_ops.signatures import arguments_of

_WANTED = (
    *("query", "key", "value", "head_num", "input_layout", "pse", "padding_mask", "attn_mask", "scale_value"),
    *("keep_prob", "pre_tokens", "next_tokens", "inner_precise", "prefix", "actual_seq_qlen", "actual_seq_kvlen"),
    *("sparse_mode", "pse_type"),
)


def speed_fusion_attention(*given, **named):
    """Compute `mindspore.ops.speed_fusion_attention`, with its arguments, order and defaults; in PYNATIVE only.

    The arguments are as in `flash_attention_score`: `pse` is `real_shift`, and `scale` is `scalar_value`. Without
    atten_mask, sparse_mode 0 shows every key, as MindSpore's documentation says. Maxima and sums cost two more forward
    passes.

    Args:
        pse_type (int): 1: pse is added before the scale; 0: behind it.

    Returns:
        The output; maxima and sums of queries, float32 (B, N, S, 8) or (T, N, 8), without a gradient; and an empty
        Tensor, seed, offset and numels, which are 0: our dropout has a seed of its own.

    Raises:
        TypeError, ValueError: an argument is not allowed.
    """
    return _run(arguments_of("speed_fusion_attention", _WANTED, given, named))


@ms.jit_class
class SpeedFusionAttention(Operator):
    """The primitive of `speed_fusion_attention`; `seed` and `offset` have no effect."""

    def __init__(self):
        super().__init__("SpeedFusionAttention")

    def __call__(self, *given, **named):
        return _run(arguments_of("SpeedFusionAttention", _WANTED, given, named))


def _run(found):
    if compiling():
        _refuse_graph()
    query, key, value, heads, layout, shift, padding_mask, mask, scale, keep_prob = found[:10]
    before, after, precise, prefix, lengths_q, lengths_k, mode, kind = found[10:]
    check_int("pse_type", kind, 0, 1)
    if shift is not None and kind == 0:
        if check_real("scale", scale) == 0:
            raise ValueError("scale: got 0 with pse_type 0, allowed is another number")
        shift = ops.cast(shift, mstype.float32) / scale
    settings = heads, keep_prob, scale, before, after, precise, layout, mode, False
    tensors, lengths = (query, key, value, shift, None, mask), (prefix, lengths_q, lengths_k)
    output = run_score("output", settings, tensors, padding_mask, lengths, None)
    maximum, total = run_score("statistics", settings, tensors, padding_mask, lengths, None)
    zero = Tensor(0, mstype.int64)
    return output, maximum, total, scalar_like(query, 0.0), zero, zero, zero


@compile_time
def _refuse_graph():
    raise ValueError("speed_fusion_attention: got a compiled graph, allowed is PYNATIVE, as MindSpore documents")
