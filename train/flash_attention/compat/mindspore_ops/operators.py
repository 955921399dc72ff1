"""The function and the primitive, with the signatures of MindSpore's."""

from __future__ import annotations

from typing import Callable

import mindspore as ms
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from flash_attention.bridge.precision import fix_dtypes
from flash_attention.bridge.tensors import compile_time, compiling, read_specs, refuse, remembered, spec, tensor_spec
from flash_attention.call.checks import check_dtype, check_int, check_name, check_real
from flash_attention.call.inputs import DTYPES
from flash_attention.compat.ascend910 import Operator
from flash_attention.compat.mindspore_ops.call import LAYOUTS, PACKED, Settings, read_call, shard_request
from flash_attention.compat.mindspore_ops.cells import Score, Statistics
from flash_attention.compat.mindspore_ops.inference import constant_ends, decided, meaning, meaning_of
from flash_attention.compat.mindspore_ops.signatures import arguments_of


def flash_attention_score(
    query,
    key,
    value,
    head_num,
    real_shift=None,
    drop_mask=None,
    padding_mask=None,
    attn_mask=None,
    prefix=None,
    actual_seq_qlen=None,
    actual_seq_kvlen=None,
    keep_prob=1.0,
    scalar_value=1.0,
    pre_tokens=2147483647,
    next_tokens=2147483647,
    inner_precise=0,
    input_layout="BSH",
    sparse_mode=0,
    inference=None,
):
    """Compute `mindspore.ops.flash_attention_score`; all of its documentation holds, with these differences.

    It also takes float32 and any head size up to our limit. A query that sees nothing gives 0. padding_mask and modes 6
    to 8 are refused: MindSpore documents them as not implemented yet, without a meaning.

    Args:
        query, key, value (Tensor): in `input_layout`, all of one dtype.
        head_num (int): heads of query.
        real_shift (Tensor): (B or 1, N, S1, S2), added to the scores before they are scaled. For ALiBi under a causal
            mask, its last 1024 rows are enough, (B or 1, N, 1024, S2), from which the slopes are taken. TND and TH take
            only these rows, of the longest sequence. They have no gradient, and sequences must be as long in query as
            in key.
        drop_mask (Tensor): uint8 (B, N, S1, S2 / 8), a set bit keeps; together with keep_prob < 1. With TND and TH
            (bytes,), N * S1 * S2 / 8 of one sequence behind the other, each S2 a multiple of 8.
        padding_mask: None; MindSpore documents it as reserved, not implemented yet.
        attn_mask (Tensor): bool or uint8, 1 = hidden; (S1, S2) or (B, N or 1, S1, S2), in sparse modes 2 to 4
            (2048, 2048), whose contents are not looked at. With TND and TH in mode 0 a floating one of (128, 128), not
            0 above the diagonal, stands for causal at any length.
        prefix (Tensor, tuple, list): (B,), in sparse mode 5 the keys that every query of a batch item sees.
        actual_seq_qlen, actual_seq_kvlen (Tensor, tuple, list): with TND and TH, where the sequences end, or how long
            they are: lengths if their sum is the number of rows.
        keep_prob (float): 0 < keep_prob <= 1, in steps of 2 ** -16. Below 1 without a drop_mask the decisions are
            drawn, repeatable by mindspore.set_seed; in PYNATIVE only.
        scalar_value (float): factor on the scores.
        pre_tokens, next_tokens (int): keys that a query sees before and after its position, in sparse modes 0 (with an
            attn_mask, position of query i at key i) and 4 (at key i + S2 - S1).
        inner_precise (int): without effect, sums and softmax are in float32.
        input_layout (str): "BSH", "BNSD", "SBH" or "BSND"; "TND", or "TH" with heads and head size in one axis, for
            sequences one behind the other in sparse modes 2 to 4, or in 0 without attn_mask or with the floating one.
        sparse_mode (int): 0 to 5.
        inference (bool): the meaning of a padded call in sparse mode 0 without attn_mask whose next_tokens is 0. True:
            causal, as MindSpore's inference operators take it. False: every key is visible, as its documentation says.
            Default: None, as `patch_mindspore` was told, else True if the global jit config has `infer_boost` on. If
            neither says, such a call is refused.

    Returns:
        Tensor like query.

    Raises:
        TypeError, ValueError: an argument is not allowed.
    """
    settings = (head_num, keep_prob, scalar_value, pre_tokens, next_tokens, inner_precise, input_layout, sparse_mode)
    settings = settings + (inference,)  # no starred tuple: old graphs refuse one
    tensors = query, key, value, real_shift, drop_mask, attn_mask
    return run_score("output", settings, tensors, padding_mask, (prefix, actual_seq_qlen, actual_seq_kvlen), None)


def run_score(result, settings, tensors, padding_mask, numbers, request):
    """Compute a call's "output", or its queries' "statistics"."""
    query, key, value, real_shift, drop_mask, attn_mask = tensors
    prefix = _plain("prefix", numbers[0])
    lengths_q = _ends("actual_seq_qlen", numbers[1], query, settings[6])
    lengths_k = _ends("actual_seq_kvlen", numbers[2], key, settings[6])
    specs = (spec(query), spec(key), spec(value), spec(real_shift), spec(drop_mask), spec(attn_mask))
    rest = (spec(prefix), spec(padding_mask), spec(lengths_q), spec(lengths_k))
    run = _prepared(result, settings, specs, rest, request)
    return run(query, key, value, real_shift, drop_mask, attn_mask, prefix, lengths_q, lengths_k)


@ms.jit_class
class FlashAttentionScore(Operator):
    """`mindspore.ops.operations.nn_ops.FlashAttentionScore`, see `flash_attention_score`.

    softmax_max and softmax_sum are computed by two further forward passes; a graph leaves out what it does not use.
    They have no gradient. With the inference meaning they are not computed, and are NaN of shape (). `shard` takes a
    strategy of query that splits batch and heads.

    Outputs:
        softmax_max (Tensor): float32 (B, N, S1, 8), or (T1, N, 8) with TND and TH, the largest score of each query,
            -inf if it sees nothing.
        softmax_sum (Tensor): like it, the sum of exp(score - softmax_max).
        softmax_out (Tensor): of no use, ().
        attention_out (Tensor): like query.
    """

    def __init__(
        self,
        head_num,
        keep_prob=1.0,
        scale_value=1.0,
        pre_tokens=2147483647,
        next_tokens=2147483647,
        inner_precise=0,
        input_layout="BSH",
        sparse_mode=0,
    ):
        super().__init__()
        settings = head_num, keep_prob, scale_value, pre_tokens, next_tokens, inner_precise, input_layout, sparse_mode
        self.inference = decided()
        self.settings, self.input_layout, self.request = (*settings, self.inference), input_layout, None

    def __call__(
        self,
        query,
        key,
        value,
        real_shift=None,
        drop_mask=None,
        padding_mask=None,
        attn_mask=None,
        prefix=None,
        actual_seq_qlen=None,
        actual_seq_kvlen=None,
    ):
        tensors = query, key, value, real_shift, drop_mask, attn_mask
        numbers = prefix, actual_seq_qlen, actual_seq_kvlen
        output = run_score("output", self.settings, tensors, padding_mask, numbers, self.request)
        if meaning(self.inference):
            absent = scalar_like(query, float("nan"))
            return absent, absent, absent, output
        softmax_max, softmax_sum = run_score("statistics", self.settings, tensors, padding_mask, numbers, None)
        return softmax_max, softmax_sum, scalar_like(query, 0.0), output

    def shard(self, in_strategy=None, out_strategy=None):
        """Split batch and heads over devices; None leaves the operator whole.

        Raises:
            ValueError: the strategy of query must split nothing but batch and heads.
        """
        if in_strategy is not None:
            self.request = shard_request(in_strategy[0], self.input_layout)
        return self


def _plain(name, given):
    return given if given is None or isinstance(given, Tensor) else _numbers(name, given)


def _ends(name, given, rows, layout):
    given = _plain(name, given)
    return given if given is None or isinstance(given, Tensor) else constant_ends(name, given, spec(rows), layout)


@compile_time
def _numbers(name, given):
    """Return the numbers as Python's integers: a graph of MindSpore 2.0 takes none of NumPy."""
    if not isinstance(given, (tuple, list)):
        raise TypeError(f"{name}: got {type(given).__name__} {given!r}, allowed are a Tensor, a tuple and a list")
    for number in given:
        check_int(name, number, 0)
    return tuple(map(int, given))


def scalar_like(tensor, number):
    """Return a number of shape () in a tensor's dtype."""
    return _scalar(spec(tensor), number)


@compile_time
def _scalar(query, number):
    return Tensor(number, getattr(mstype, tensor_spec("query", query).dtype))


@compile_time
def _prepared(result, settings, specs, rest, request):
    """Return the Cell of a call, for its "output" or its queries' "statistics"."""
    tensors = map(tensor_spec, ("query", "key", "value"), specs[:3])
    specs = (*tensors, *read_specs(("real_shift", "drop_mask", "attn_mask"), specs[3:]))
    if specs[3] is not None:
        check_dtype("real_shift", specs[3].dtype, DTYPES)
    prefix, padding_mask, *lengths = rest
    if padding_mask is not None:
        raise ValueError(
            "padding_mask: got one, allowed is None; MindSpore documents it as reserved and not implemented yet"
        )
    settings = Settings(*settings)
    settings = settings._replace(inference=meaning_of(settings.inference))
    check_name("input_layout", settings.input_layout, (*LAYOUTS, *PACKED))
    packed = settings.input_layout in PACKED
    for name, described in zip(("actual_seq_qlen", "actual_seq_kvlen"), lengths):
        if (described is not None) != packed:
            raise ValueError(
                f"{name}: got {'none' if packed else 'one'} with input_layout {settings.input_layout!r}, allowed is "
                f"one with {' and '.join(PACKED)} only"
            )
    if isinstance(prefix, tuple) and len(prefix) == 2 and isinstance(prefix[0], tuple):
        prefix = tensor_spec("prefix", prefix)
    cell = _cell(Score if result == "output" else Statistics, settings, specs, prefix, request)
    if packed:
        _check_lengths(lengths[1], specs[3], specs[4])
    return cell


def _check_lengths(ends, shift, drop) -> None:
    """Compare constant lengths of keys with the real_shift and drop_mask for them."""
    if isinstance(ends, tuple) and len(ends) == 2 and isinstance(ends[0], tuple):
        return
    lengths = [end - before for before, end in zip((0, *ends[:-1]), ends)]
    if drop is not None and any(length % 8 for length in lengths):
        raise ValueError(f"drop_mask: got one for S2 = {tuple(lengths)}, allowed are multiples of 8")
    if shift is not None and len(shift.shape) == 4 and shift.shape[3] != max(lengths):
        raise ValueError(
            f"real_shift: got shape {shift.shape}, allowed is a last axis of the longest S2, here {max(lengths)}"
        )


@remembered
def _cell(kind, settings, specs, prefix, request) -> nn.Cell:
    shift = None if specs[3] is None else specs[3].shape
    return fix_dtypes(kind(read_call(settings, specs, prefix), shift, request))


_FUSION = (
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
    return _run_fusion(arguments_of("speed_fusion_attention", _FUSION, given, named))


@ms.jit_class
class SpeedFusionAttention(Operator):
    """The primitive of `speed_fusion_attention`; `seed` and `offset` have no effect."""

    def __call__(self, *given, **named):
        return _run_fusion(arguments_of("SpeedFusionAttention", _FUSION, given, named))


def _run_fusion(found):
    if compiling():
        refuse("speed_fusion_attention: got a compiled graph, allowed is PYNATIVE, as MindSpore documents")
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


def primitive_of(name: str, function: Callable) -> type:
    """Return MindSpore's primitive of a function: it is made without arguments, and called as the function."""

    def __call__(self, *given, **named):
        return function(*given, **named)

    doc = f"The primitive of `{function.__name__}`."
    return ms.jit_class(
        type(name, (Operator,), {"__call__": __call__, "__doc__": doc, "__module__": function.__module__})
    )
