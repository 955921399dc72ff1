"""`flash_attention_score` and `FlashAttentionScore` with the meaning that MindSpore 2.10 gives them, on our backends.

MindSpore's own run on Atlas A2 and later devices only. The contract is the documentation of
`mindspore.ops.flash_attention_score` and of the primitive. Where the two differ (the function's formula adds real_shift
after the scale), the primitive's holds: scale_value * (query @ key^T + real_shift).

`flash_attention.compat.mindspore_patch` puts both in MindSpore's place.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype
from mindspore.ops import constexpr

from flash_attention.compat.ascend910 import Operator
from flash_attention.functional import flash_attention
from flash_attention.precision import fix_dtypes
from flash_attention.problem.checks import check_int, check_name, check_real
from flash_attention.problem.inputs import UNKNOWN, Sizes, TensorSpec, fits, read_tensors
from flash_attention.sharding.request import RequestedSharding, ShardRequest
from flash_attention.tensors import spec, tensor_spec
from flash_attention.varlen import flash_attention_varlen

UNLIMITED_TOKENS = 2147483647
COMPRESSED_MASK = 2048  # side of the triangle that stands for a mask of any length in sparse modes 2 to 4
COMPRESSED_ROWS = 1024  # rows of a real_shift that follows the ALiBi rule and is given for the last rows only
DEFAULT_MASK, ALL_MASK, LEFT_UP_CAUSAL, RIGHT_DOWN_CAUSAL, BAND, PREFIX = range(6)
LAYOUTS = ("BSH", "BNSD", "SBH", "BSND")
_PACKED = ("TND", "TH")
_NOT_THERE = {6: "global", 7: "dilated", 8: "block_local"}
# Row maximum = logsumexp(2^k * scores) / 2^k: so far apart, nothing but the largest score is left of the sum, and a
# power of two rounds nothing.
_SPREAD = 2.0**60
_LANES = 8  # MindSpore's operator repeats maximum and sum this often


class Settings(NamedTuple):
    """Attributes of the primitive; plain constants, because a graph passes them on."""

    head_num: int
    keep_prob: float = 1.0
    scale_value: float = 1.0
    pre_tokens: int = UNLIMITED_TOKENS
    next_tokens: int = UNLIMITED_TOKENS
    inner_precise: int = 0
    input_layout: str = "BSH"
    sparse_mode: int = DEFAULT_MASK


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
):
    """`mindspore.ops.flash_attention_score`; all of its documentation holds, with these differences.

    float32 is taken too, any head size up to our limit, and a query that sees nothing gives 0. padding_mask, modes 6 to
    8, and in packed layouts (TND, TH) real_shift and dropout are refused.

    Args:
        query, key, value (Tensor): in `input_layout`, all of one dtype.
        head_num (int): heads of query.
        real_shift (Tensor): (B or 1, N, S1, S2), added to the scores before they are scaled; or, for ALiBi under a
            causal mask, its last 1024 rows, (B or 1, N, 1024, S2), of which the slopes are taken.
        drop_mask (Tensor): uint8 (B, N, S1, S2 / 8), a set bit keeps; together with keep_prob < 1.
        padding_mask: None.
        attn_mask (Tensor): bool or uint8, 1 = hidden; (S1, S2) or (B, N or 1, S1, S2), in sparse modes 2 to 4
            (2048, 2048), whose contents are not looked at.
        prefix (Tensor, tuple, list): (B,), in sparse mode 5 the keys that every query of a batch item sees.
        actual_seq_qlen, actual_seq_kvlen (Tensor, tuple, list): with TND and TH, where the sequences end.
        keep_prob (float): 0 < keep_prob <= 1, in steps of 2 ** -16.
        scalar_value (float): factor on the scores.
        pre_tokens, next_tokens (int): keys that a query sees before and after its position, in sparse modes 0 (with an
            attn_mask, position of query i at key i) and 4 (at key i + S2 - S1).
        inner_precise (int): without effect, sums and softmax are in float32.
        input_layout (str): "BSH", "BNSD", "SBH" or "BSND"; "TND", or "TH" with heads and head size in one axis, for
            sequences one behind the other in sparse modes 2 to 4, or in 0 without attn_mask.
        sparse_mode (int): 0 to 5.

    Returns:
        Tensor like query.

    Raises:
        TypeError, ValueError: an argument is not allowed.
    """
    settings = (head_num, keep_prob, scalar_value, pre_tokens, next_tokens, inner_precise, input_layout, sparse_mode)
    run = _score(
        settings,
        (spec(query), spec(key), spec(value), spec(real_shift), spec(drop_mask), spec(attn_mask)),
        (spec(prefix), spec(padding_mask), spec(actual_seq_qlen), spec(actual_seq_kvlen)),
        None,
    )
    return run(query, key, value, real_shift, drop_mask, attn_mask, prefix, actual_seq_qlen, actual_seq_kvlen)


@ms.jit_class
class FlashAttentionScore(Operator):
    """`mindspore.ops.operations.nn_ops.FlashAttentionScore`, see `flash_attention_score`.

    softmax_max and softmax_sum are computed by two further forward passes; a graph leaves out what it does not use.
    They have no gradient. `shard` takes a strategy of query that splits batch and heads.

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
        self.name = "FlashAttentionScore"
        self.settings = (
            head_num,
            keep_prob,
            scale_value,
            pre_tokens,
            next_tokens,
            inner_precise,
            input_layout,
            sparse_mode,
        )
        self.input_layout = input_layout
        self.request = None

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
        specs = (spec(query), spec(key), spec(value), spec(real_shift), spec(drop_mask), spec(attn_mask))
        rest = (spec(prefix), spec(padding_mask), spec(actual_seq_qlen), spec(actual_seq_kvlen))
        run = _score(self.settings, specs, rest, self.request)
        softmax_max, softmax_sum = _statistics(self.settings, specs, rest)(
            query, key, value, real_shift, attn_mask, prefix, actual_seq_qlen, actual_seq_kvlen
        )
        output = run(query, key, value, real_shift, drop_mask, attn_mask, prefix, actual_seq_qlen, actual_seq_kvlen)
        return softmax_max, softmax_sum, ops.zeros((), query.dtype), output

    def shard(self, in_strategy=None, out_strategy=None):
        """Splits batch and heads over devices; None leaves the operator whole.

        Raises:
            ValueError: the strategy of query must split nothing but batch and heads.
        """
        if in_strategy is not None:
            self.request = _shard_request(in_strategy[0], self.input_layout)
        return self


@constexpr(reuse_result=False)
def _score(settings, specs, rest, request):
    return _built(_Score, settings, specs, rest, request)


@constexpr(reuse_result=False)
def _statistics(settings, specs, rest):
    return _built(_Statistics, settings, specs, rest, None)


def _built(kind, settings, specs, rest, request):
    names = ("query", "key", "value", "real_shift", "drop_mask", "attn_mask")
    specs = tuple(
        None if described is None and name in names[3:] else tensor_spec(name, described)
        for name, described in zip(names, specs)
    )
    prefix, padding_mask, *lengths = rest
    if padding_mask is not None:
        raise ValueError("padding_mask: got one, allowed is None; it is not supported")
    settings = Settings(*settings)
    packed = settings.input_layout in _PACKED
    for name, described in zip(("actual_seq_qlen", "actual_seq_kvlen"), lengths):
        if (described is not None) != packed:
            raise ValueError(
                f"{name}: got {'none' if packed else 'one'} with input_layout {settings.input_layout!r}, allowed is "
                f"one with {' and '.join(_PACKED)} only"
            )
    if isinstance(prefix, tuple) and len(prefix) == 2 and isinstance(prefix[0], tuple):
        prefix = tensor_spec("prefix", prefix)
    elif prefix is not None:
        prefix = tuple(prefix)
    return _cell(kind, settings, specs, prefix, request)


@functools.lru_cache(maxsize=256)
def _cell(kind, settings, specs, prefix, request) -> nn.Cell:
    return fix_dtypes(kind(read_call(settings, specs, prefix), request))


class Call(NamedTuple):
    """What a call comes to in the terms of `flash_attention.flash_attention`."""

    settings: Settings
    sizes: Sizes
    causal: bool = False
    causal_alignment: str = "top_left"
    window_size: tuple = (-1, -1)
    takes_mask: bool = False
    hidden: Any = None  # NumPy bool array that broadcasts to the scores, hidden besides
    prefix: bool = False
    shift: str = "none"  # "full", or "alibi": slopes out of the last rows

    @property
    def offset(self) -> int:
        """Key position of query row 0."""
        return self.sizes.seq_k - self.sizes.seq_q if self.causal_alignment == "bottom_right" else 0


def read_call(settings: Settings, specs: tuple, prefix) -> Call:
    """Checks a call and translates it.

    Raises:
        TypeError, ValueError: an argument is not allowed.
    """
    query, key, value, shift, drop, mask = specs
    _check(settings)
    layout, hidden_size = settings.input_layout, query.shape[-1]
    head_dim = None
    if layout in ("BSH", "SBH", "TH"):
        if hidden_size % settings.head_num:
            raise ValueError(
                f"query: got last axis {hidden_size}, allowed is a multiple of head_num {settings.head_num}"
            )
        head_dim = hidden_size // settings.head_num
    if layout in _PACKED:
        return _read_packed(settings, specs, prefix, head_dim)
    sizes = read_tensors(query, key, value, layout, head_dim)
    _check_heads(settings, sizes, query)
    _check_drop_mask(drop, settings, sizes)
    return _read_shift(shift, _read_rules(Call(settings, sizes), mask, prefix))


def _read_packed(settings: Settings, specs: tuple, prefix, head_dim: int | None) -> Call:
    """A call on sequences one behind the other: one batch item of unknown length."""
    query, key, value, shift, drop, mask = specs
    layout, mode = settings.input_layout, settings.sparse_mode
    for name, given in (("real_shift", shift), ("drop_mask", drop), ("prefix", prefix)):
        if given is not None:
            raise ValueError(f"{name}: got one with input_layout {layout!r}, allowed is None")
    if settings.keep_prob != 1.0:
        raise ValueError(f"keep_prob: got {settings.keep_prob} with input_layout {layout!r}, allowed is 1")
    if mode in (ALL_MASK, PREFIX) or (mode == DEFAULT_MASK and mask is not None):
        raise ValueError(
            f"sparse_mode: got {mode} with input_layout {layout!r}, allowed are 2 to 4, and 0 without attn_mask"
        )
    query_row, key_row, value_row = (one._replace(shape=(1, *one.shape)) for one in (query, key, value))
    sizes = read_tensors(query_row, key_row, value_row, "BSND" if layout == "TND" else "BSH", head_dim)
    _check_heads(settings, sizes, query)
    return _read_rules(Call(settings, sizes._replace(seq_q=UNKNOWN, seq_k=UNKNOWN)), mask, None)


def _check_heads(settings: Settings, sizes: Sizes, query: TensorSpec) -> None:
    if sizes.heads != settings.head_num:
        raise ValueError(f"query: got {sizes.heads} heads in shape {query.shape}, allowed is {settings.head_num}")


def _check(settings: Settings) -> None:
    check_int("head_num", settings.head_num, 1)
    check_int("inner_precise", settings.inner_precise, 0)
    check_name("input_layout", settings.input_layout, (*LAYOUTS, *_PACKED))
    keep_prob = check_real("keep_prob", settings.keep_prob)
    if not 0.0 < keep_prob <= 1.0:
        raise ValueError(f"keep_prob: got {keep_prob}, allowed is 0 < keep_prob <= 1")
    check_int("sparse_mode", settings.sparse_mode, 0)
    if settings.sparse_mode > PREFIX:
        meaning = _NOT_THERE.get(settings.sparse_mode, "unknown")
        raise ValueError(f"sparse_mode: got {settings.sparse_mode} ({meaning}), allowed are 0 to 5")
    for name in ("pre_tokens", "next_tokens"):
        check_int(name, getattr(settings, name), -UNLIMITED_TOKENS - 1)


def _check_drop_mask(drop: TensorSpec | None, settings: Settings, sizes: Sizes) -> None:
    if (drop is None) != (settings.keep_prob == 1.0):
        raise ValueError(
            f"drop_mask: got {'none' if drop is None else 'one'} with keep_prob {settings.keep_prob}, allowed is one "
            "with keep_prob < 1 and none with keep_prob 1"
        )
    if drop is not None and sizes.seq_k % 8 and sizes.seq_k != UNKNOWN:
        raise ValueError(f"drop_mask: given for S2 = {sizes.seq_k}, allowed is a multiple of 8")


def _read_rules(call: Call, mask: TensorSpec | None, prefix) -> Call:
    """What sparse_mode, attn_mask, prefix and the tokens hide."""
    mode = call.settings.sparse_mode
    if mode in (LEFT_UP_CAUSAL, RIGHT_DOWN_CAUSAL, BAND):
        _check_mask(mask, [(COMPRESSED_MASK, COMPRESSED_MASK)], mode)
        if mode != LEFT_UP_CAUSAL:
            call = call._replace(causal_alignment="bottom_right")
        return _read_tokens(call) if mode == BAND else call._replace(causal=True)
    batch, heads, seq_q, seq_k = call.sizes.scores
    allowed = [(batch, heads, seq_q, seq_k), (batch, 1, seq_q, seq_k)]
    if mode == PREFIX:
        _check_mask(mask, allowed, mode)
        _check_prefix(prefix, call.sizes)
        return call._replace(causal=True, causal_alignment="bottom_right", takes_mask=True, prefix=True)
    if mask is None and mode == DEFAULT_MASK:
        return call
    _check_mask(mask, [*allowed, (1, 1, seq_q, seq_k), (seq_q, seq_k)], mode)
    call = call._replace(takes_mask=True)
    return _read_tokens(call) if mode == DEFAULT_MASK else call


def _check_mask(mask: TensorSpec | None, allowed: list, mode: int) -> None:
    shapes = " or ".join(map(str, dict.fromkeys(allowed)))
    if mask is None:
        raise ValueError(f"attn_mask: got none with sparse_mode {mode}, allowed is a Tensor of shape {shapes}")
    if mask.dtype not in ("bool", "uint8"):
        raise TypeError(f"attn_mask: got dtype {mask.dtype}, allowed are bool and uint8")
    if not any(len(mask.shape) == len(shape) and all(map(fits, mask.shape, shape)) for shape in allowed):
        raise ValueError(f"attn_mask: got shape {mask.shape} with sparse_mode {mode}, allowed is {shapes}")


def _read_tokens(call: Call) -> Call:
    """The band from pre_tokens before the position of a query to next_tokens after it."""
    before, after = call.settings.pre_tokens, call.settings.next_tokens
    _, _, seq_q, seq_k = call.sizes.scores
    if before >= 0 and after >= 0:
        # A side as long as the sequences hides nothing.
        reach = UNLIMITED_TOKENS if UNKNOWN in (seq_q, seq_k) else seq_q + seq_k
        return call._replace(window_size=tuple(-1 if side >= reach else side for side in (before, after)))
    if UNKNOWN in (seq_q, seq_k):
        raise ValueError(f"pre_tokens, next_tokens: got {before}, {after}; negative ones need known lengths")
    position = np.arange(seq_q)[:, None] + call.offset
    keys = np.arange(seq_k)[None, :]
    visible = (keys >= position - before) & (keys <= position + after)
    forbidden = (
        max(before, after) < 0
        or (before < 0 and (after < -before or -before >= seq_k))
        or (after < 0 and (-after > before or -after >= seq_q))
    )
    if forbidden or not visible.any():
        raise ValueError(
            f"pre_tokens, next_tokens: got {before}, {after} with S1 = {seq_q}, S2 = {seq_k}; allowed is a band that "
            "is not empty: one of them >= 0, the other not below its negative, and inside the sequence"
        )
    return call._replace(hidden=~visible[None, None])


def _check_prefix(prefix, sizes: Sizes) -> None:
    if prefix is None:
        raise ValueError("prefix: got none with sparse_mode 5, allowed is one length for each batch item")
    if isinstance(prefix, TensorSpec):
        return
    batch, _, seq_q, seq_k = sizes.scores
    if not fits(batch, len(prefix)):
        raise ValueError(f"prefix: got {len(prefix)} lengths, allowed is one for each of {batch} batch items")
    known = UNKNOWN not in (seq_q, seq_k)
    for length in prefix:
        check_int("prefix", length, max(0, seq_k - seq_q) if known else 0, seq_k if known else None)


def _read_shift(shift: TensorSpec | None, call: Call) -> Call:
    if shift is None:
        return call
    batch, heads, seq_q, seq_k = call.sizes.scores

    def has_rows(rows):
        fitting = len(shift.shape) == 4 and all(map(fits, shift.shape[1:], (heads, rows, seq_k)))
        return fitting and (shift.shape[0] == 1 or fits(shift.shape[0], batch))

    if has_rows(seq_q):
        return call._replace(shift="full")
    causal = call.settings.sparse_mode in (LEFT_UP_CAUSAL, RIGHT_DOWN_CAUSAL)
    if seq_q > COMPRESSED_ROWS and has_rows(COMPRESSED_ROWS) and causal:
        return call._replace(shift="alibi")
    raise ValueError(
        f"real_shift: got shape {shift.shape}, allowed is (batch or 1, heads, S1, S2) = ({batch} or 1, {heads}, "
        f"{seq_q}, {seq_k}), and {COMPRESSED_ROWS} rows with sparse_mode 2 or 3 and S1 > {COMPRESSED_ROWS}"
    )


class _Prepared(nn.Cell):
    """Mask and bias of a call."""

    def __init__(self, call: Call):
        super().__init__()
        self.scale = float(call.settings.scale_value)
        self.takes_mask = call.takes_mask
        self.hidden = None if call.hidden is None else Tensor(call.hidden)
        self.shift = None
        if call.shift != "none":
            self.shift = _Alibi(call) if call.shift == "alibi" else _Float32()

    def construct(self, real_shift, attn_mask):
        mask, bias = None, None
        if self.takes_mask:
            mask = attn_mask
        if self.hidden is not None:
            mask = self.hidden if mask is None else ops.logical_or(ops.cast(mask, mstype.bool_), self.hidden)
        if self.shift is not None:
            bias = self.shift(real_shift) * self.scale
        return mask, bias


class _Float32(nn.Cell):
    def construct(self, real_shift):
        return ops.cast(real_shift, mstype.float32)


class _Alibi(nn.Cell):
    """A bias for each key, (B or 1, N, 1, S2), out of rows that follow the ALiBi rule.

    shift[i, j] = slope * (j - position of query i). The softmax does not see what a whole row has in common, so that
    the row of the last query serves all of them. Its slope is fitted over all its keys: what float16 keeps of far
    distances would be too coarse for the near keys of other queries.
    """

    def __init__(self, call: Call):
        super().__init__()
        seq_q, seq_k = call.sizes.seq_q, call.sizes.seq_k
        last = seq_q - 1 + call.offset
        distance = np.arange(seq_k) - last
        seen = distance <= 0
        self.weights = Tensor((seen / distance[seen].sum()).astype(np.float32).reshape(1, 1, 1, -1))
        self.distance = Tensor(distance.astype(np.float32).reshape(1, 1, 1, -1))
        rows = last - (np.arange(seq_q) + call.offset)
        self.rows = Tensor(rows.astype(np.float32).reshape(1, 1, -1))

    def slope(self, real_shift):
        """(B or 1, N, 1, 1)."""
        row = ops.cast(real_shift[:, :, -1:], mstype.float32)
        return ops.ReduceSum(keep_dims=True)(row * self.weights, -1)

    def construct(self, real_shift):
        return self.slope(real_shift) * self.distance

    def left_out(self, real_shift):
        """What the scores of each query lack, (B or 1, N, S1)."""
        return ops.squeeze(self.slope(real_shift), -1) * self.rows


class _Attend(nn.Cell):
    """The function that computes a call, with the rules of the call."""

    def __init__(self, call: Call, return_lse: bool, request: ShardRequest | None = None):
        super().__init__()
        self.packed, self.prefix = call.settings.input_layout in _PACKED, call.prefix
        self.rate = 1.0 - float(call.settings.keep_prob)
        self.causal, self.causal_alignment, self.window_size = call.causal, call.causal_alignment, call.window_size
        self.input_layout, self.head_dim = call.settings.input_layout, call.sizes.head_dim
        self.return_lse = return_lse
        self.shards = None if request is None else RequestedSharding(request)

    def construct(self, query, key, value, mask, bias, drop_mask, prefix, lengths_q, lengths_k, scale):
        if self.packed:
            return flash_attention_varlen(
                query,
                key,
                value,
                lengths_q,
                lengths_k,
                scale=scale,
                causal=self.causal,
                causal_alignment=self.causal_alignment,
                window_size=self.window_size,
                head_dim=self.head_dim,
                return_lse=self.return_lse,
            )
        rate, shown, shards = 0.0, None, None
        if drop_mask is not None:
            rate = self.rate
        if self.prefix:
            shown = prefix
            if isinstance(prefix, Tensor):
                shown = ops.cast(prefix, mstype.int32)
        if self.shards is not None:
            shards = self.shards()
        return flash_attention(
            query,
            key,
            value,
            mask,
            bias,
            dropout_rate=rate,
            keep_bits=drop_mask,
            prefix=shown,
            scale=scale,
            causal=self.causal,
            causal_alignment=self.causal_alignment,
            window_size=self.window_size,
            input_layout=self.input_layout,
            head_dim=self.head_dim,
            return_lse=self.return_lse,
            argument_names=("attn_mask", "real_shift"),
            shards=shards,
        )


class _Score(nn.Cell):
    """The attention of a call."""

    def __init__(self, call: Call, request: ShardRequest | None):
        super().__init__()
        self.prepared = _Prepared(call)
        self.attend = _Attend(call, False, request)
        self.scale = float(call.settings.scale_value)

    def construct(self, query, key, value, real_shift, drop_mask, attn_mask, prefix, lengths_q, lengths_k):
        mask, bias = self.prepared(real_shift, attn_mask)
        return self.attend(query, key, value, mask, bias, drop_mask, prefix, lengths_q, lengths_k, self.scale)


class _Statistics(nn.Cell):
    """Maximum and sum of each query's softmax, (B, N, S1, 8) or (T1, N, 8), without a gradient."""

    def __init__(self, call: Call, request: None):
        super().__init__()
        self.prepared = _Prepared(call)
        self.attend = _Attend(call, True)
        self.alibi = _Alibi(call) if call.shift == "alibi" else None
        self.packed = call.settings.input_layout in _PACKED
        # On a CPU, MindSpore's float32 exp errs a hundred times as much as float32 rounds.
        self.precise = mstype.float64 if ms.get_context("device_target") == "CPU" else mstype.float32
        self.scale = float(call.settings.scale_value)

    def construct(self, query, key, value, real_shift, attn_mask, prefix, lengths_q, lengths_k):
        query, key, value = ops.stop_gradient(query), ops.stop_gradient(key), ops.stop_gradient(value)
        mask, bias = self.prepared(real_shift, attn_mask)
        wide, spread = None, self.scale * _SPREAD
        if bias is not None:
            bias = ops.stop_gradient(bias)
            wide = bias * _SPREAD
        logsumexp = self.attend(query, key, value, mask, bias, None, prefix, lengths_q, lengths_k, self.scale)[1]
        maximum = self.attend(query, key, value, mask, wide, None, prefix, lengths_q, lengths_k, spread)[1] / _SPREAD
        blind = logsumexp < -3e38
        ratio = ops.exp(ops.cast(logsumexp - maximum, self.precise))
        total = ops.masked_fill(ops.cast(ratio, mstype.float32), blind, 0.0)
        if self.alibi is not None:
            maximum = maximum + ops.stop_gradient(self.alibi.left_out(real_shift)) * self.scale
        maximum = ops.masked_fill(maximum, blind, -float("inf"))
        return self.lanes(maximum), self.lanes(total)

    def lanes(self, statistic):
        if self.packed:
            return ops.tile(ops.expand_dims(ops.transpose(statistic, (1, 0)), -1), (1, 1, _LANES))
        return ops.tile(ops.expand_dims(statistic, -1), (1, 1, 1, _LANES))


def _shard_request(strategy, layout: str) -> ShardRequest:
    """How the strategy of query splits batch and heads."""
    axes = {"BSH": (0, 2), "SBH": (1, 2), "BNSD": (0, 1), "BSND": (0, 2)}
    check_name("input_layout", layout, axes)
    batch, heads = axes[layout]
    others = [size for axis, size in enumerate(strategy) if axis not in (batch, heads)]
    if len(strategy) != len(layout) or any(size != 1 for size in others):
        raise ValueError(
            f"in_strategy: got {strategy} for query in layout {layout}, allowed is one that splits batch and heads "
            "only; see flash_attention.context_parallel for the sequence"
        )
    return ShardRequest(strategy[batch], strategy[heads])
