"""Compute a call: attention, and the maximum and sum of each query's softmax."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from flash_attention.bridge.hiding import Hides
from flash_attention.bridge.parameters import EntryCell
from flash_attention.bridge.tensors import compiling, refuse
from flash_attention.compat.mindspore_ops.call import PACKED, FusedCall
from flash_attention.compat.mindspore_ops.inference import Ends
from flash_attention.functional import flash_attention
from flash_attention.sharding.shard import RequestedSharding, ShardRequest
from flash_attention.varlen import flash_attention_varlen

# Row maximum = logsumexp(2^k * scores) / 2^k: the scaled scores are so far apart that only the largest counts in the
# sum. A power of two rounds nothing.
_SPREAD = 2.0**60
# MindSpore's names of the arguments of this package's functions.
_NAMES = (
    *(("attention_mask", "attn_mask"), ("bias", "real_shift"), ("alibi_slopes", "real_shift")),
    *(("keep_bits", "drop_mask"), ("cu_seqlens_q", "actual_seq_qlen"), ("cu_seqlens_k", "actual_seq_kvlen")),
    *(("dropout_rate", "keep_prob"), ("scale", "scalar_value"), ("window_size", "pre_tokens, next_tokens")),
)
_LANES = 8  # MindSpore's operator repeats maximum and sum this often


class Prepared(nn.Cell):
    """Prepare mask and bias of a call. Packed sequences get slopes of ALiBi instead of a bias."""

    def __init__(self, call: FusedCall, shift_shape: tuple | None):
        super().__init__()
        self.scale = float(call.settings.scale_value)
        self.takes_mask = call.takes_mask
        self.hidden = None if call.hidden is None else Tensor(call.hidden)
        self.shift, self.hides = None, Hides()
        if shift_shape is not None:
            kinds = {"alibi": lambda: Alibi(call), "slopes": lambda: Slopes(shift_shape), "full": Float32}
            self.shift = kinds[call.shift]()

    def construct(self, real_shift, attn_mask):
        mask, bias = None, None
        if self.takes_mask:
            mask = attn_mask
        if self.hidden is not None:
            mask = self.hidden if mask is None else ops.logical_or(self.hides(mask), self.hidden)
        if self.shift is not None:
            bias = self.shift(real_shift) * self.scale
        return mask, bias


class Attend(nn.Cell):
    """The function that computes a call, with the rules of the call."""

    def __init__(self, call: FusedCall, return_lse: bool, drops: bool, request: ShardRequest | None = None):
        super().__init__()
        self.packed, self.prefix = call.settings.input_layout in PACKED, call.prefix
        self.ends = Ends(call.triangle)
        self.rate = 1.0 - float(call.settings.keep_prob) if drops else 0.0
        self.input_layout = call.settings.input_layout
        self.shards = None if request is None else RequestedSharding(request)
        self.rules = {
            "dropout_rate": self.rate,
            "causal": call.causal,
            "causal_alignment": call.causal_alignment,
            "window_size": call.window_size,
            "head_dim": call.sizes.head_dim,
            "return_lse": return_lse,
            "argument_names": _NAMES,
        }

    def construct(self, query, key, value, mask, bias, drop_mask, prefix, lengths_q, lengths_k, scale, attn_mask):
        if self.rate > 0 and drop_mask is None and compiling():
            refuse(
                "drop_mask: got none with keep_prob < 1 in a compiled graph, which would draw decisions once for all "
                "steps; allowed there is a Tensor, and none in PYNATIVE"
            )
        if self.packed:
            lengths_q, lengths_k = self.ends(query, key, lengths_q, lengths_k, attn_mask)
            packed = query, key, value, lengths_q, lengths_k
            return flash_attention_varlen(*packed, keep_bits=drop_mask, alibi_slopes=bias, scale=scale, **self.rules)
        shown, shards = None, None
        if self.prefix:
            shown = prefix
            if isinstance(prefix, Tensor):
                shown = ops.cast(prefix, mstype.int32)
        if self.shards is not None:
            shards = self.shards()
        dense = {"keep_bits": drop_mask, "prefix": shown, "input_layout": self.input_layout, "shards": shards}
        return flash_attention(query, key, value, mask, bias, scale=scale, **dense, **self.rules)


class Score(EntryCell):
    """The attention of a call."""

    def __init__(self, call: FusedCall, shift_shape: tuple | None, request: ShardRequest | None):
        super().__init__()
        self.prepared = Prepared(call, shift_shape)
        self.attend = Attend(call, False, True, request)
        self.scale = float(call.settings.scale_value)

    def construct(self, query, key, value, real_shift, drop_mask, attn_mask, prefix, lengths_q, lengths_k):
        mask, bias = self.prepared(real_shift, attn_mask)
        return self.attend(
            query, key, value, mask, bias, drop_mask, prefix, lengths_q, lengths_k, self.scale, attn_mask
        )


class Statistics(EntryCell):
    """Compute the maximum and sum of each query's softmax. They are (B, N, S1, 8) or (T1, N, 8), without a gradient."""

    def __init__(self, call: FusedCall, shift_shape: tuple | None, request: None):
        super().__init__()
        self.prepared = Prepared(call, shift_shape)
        self.attend = Attend(call, True, False)
        self.alibi = Alibi(call) if call.shift == "alibi" else None
        self.packed = call.settings.input_layout in PACKED
        # On a CPU, MindSpore's float32 exp errs a hundred times as much as float32 rounds.
        self.precise = mstype.float64 if ms.get_context("device_target") == "CPU" else mstype.float32
        self.scale = float(call.settings.scale_value)

    def construct(self, query, key, value, real_shift, drop_mask, attn_mask, prefix, lengths_q, lengths_k):
        query, key, value = ops.stop_gradient(query), ops.stop_gradient(key), ops.stop_gradient(value)
        mask, bias = self.prepared(real_shift, attn_mask)
        wide, spread = None, self.scale * _SPREAD
        if bias is not None:
            bias = ops.stop_gradient(bias)
            wide = bias * _SPREAD
        packed = prefix, lengths_q, lengths_k
        logsumexp = self.attend(query, key, value, mask, bias, None, *packed, self.scale, attn_mask)[1]
        maximum = self.attend(query, key, value, mask, wide, None, *packed, spread, attn_mask)[1] / _SPREAD
        fully_masked = logsumexp < -3e38
        ratio = ops.exp(ops.cast(logsumexp - maximum, self.precise))
        total = ops.masked_fill(ops.cast(ratio, mstype.float32), fully_masked, 0.0)
        if self.alibi is not None:
            maximum = maximum + ops.stop_gradient(self.alibi.left_out(real_shift)) * self.scale
        maximum = ops.masked_fill(maximum, fully_masked, -float("inf"))
        return self.lanes(maximum), self.lanes(total)

    def lanes(self, statistic):
        if self.packed:
            return ops.tile(ops.expand_dims(ops.transpose(statistic, (1, 0)), -1), (1, 1, _LANES))
        return ops.tile(ops.expand_dims(statistic, -1), (1, 1, 1, _LANES))


class Float32(nn.Cell):
    """The bias that stands for a full real_shift."""

    def construct(self, real_shift):
        return ops.cast(real_shift, mstype.float32)


class Alibi(nn.Cell):
    """Make a bias for each key from rows that follow the ALiBi rule. It is (B or 1, N, 1, S2).

    shift[i, j] = slope * (j - position of query i). The softmax does not see a constant that is added to a whole row,
    so the row of the last query serves all queries. Its slope is fitted over all its keys. The float16 values of far
    distances alone would be too coarse for the near keys of other queries.
    """

    def __init__(self, call: FusedCall):
        super().__init__()
        seq_q, seq_k = call.sizes.seq_q, call.sizes.seq_k
        last = seq_q - 1 + call.offset
        distance = np.arange(seq_k) - last
        self.slope = _LastRow(distance)
        self.distance = Tensor(distance.astype(np.float32).reshape(1, 1, 1, -1))
        rows = last - (np.arange(seq_q) + call.offset)
        self.rows = Tensor(rows.astype(np.float32).reshape(1, 1, -1))

    def construct(self, real_shift):
        return self.slope(real_shift) * self.distance

    def left_out(self, real_shift):
        """Return the bias each query's scores lack, (B or 1, N, S1)."""
        return ops.squeeze(self.slope(real_shift), -1) * self.rows


class Slopes(nn.Cell):
    """Make alibi_slopes of packed sequences, (sequences, N) or (N,), without a gradient. They come from the last rows
    of the longest sequence.
    """

    def __init__(self, shape: tuple):
        super().__init__()
        sequences, heads, _, seq_k = shape
        self.slope = _LastRow(np.arange(seq_k) - (seq_k - 1))
        self.shape = (heads,) if sequences == 1 else (sequences, heads)

    def construct(self, real_shift):
        return ops.stop_gradient(ops.reshape(self.slope(real_shift), self.shape))


class _LastRow(nn.Cell):
    """Fit the slopes of a real_shift's last row, whose keys stand at `distance`. They are (B or 1, N, 1, 1)."""

    def __init__(self, distance: np.ndarray):
        super().__init__()
        seen = distance <= 0
        self.weights = Tensor((seen / distance[seen].sum()).astype(np.float32).reshape(1, 1, 1, -1))

    def construct(self, real_shift):
        row = ops.cast(real_shift[:, :, -1:], mstype.float32)
        return ops.ReduceSum(keep_dims=True)(row * self.weights, -1)
