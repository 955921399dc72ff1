"""Backend `math`: attention written out in MindSpore operations. Runs anywhere, takes O(seq_q * seq_k) memory.

It states in readable form what every backend computes. The gradients are MindSpore's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from flash_attention.backends.base import BAND_RULES, Backend
from flash_attention.backends.composed.paged_end import with_end
from flash_attention.backends.composed.paged_gather import PagedGather
from flash_attention.backends.composed.positional import ComputedAlibi, OutOfBand, OutOfTiles, counted
from flash_attention.backends.composed.varlen_loop import VarlenLoop, VarlenLoopOfTensors
from flash_attention.backends.composed.varlen_rows import VarlenRows
from flash_attention.bridge.gradients import FirstDerivativeOnlyInPynative, refuse_old_jit, stopped, without_influence
from flash_attention.bridge.hiding import Differs, DropHidden, HideScores
from flash_attention.bridge.versions import BFLOAT16
from flash_attention.call import Call
from flash_attention.call.optional import NAMES

if TYPE_CHECKING:
    from flash_attention.sharding.shard import Shard

_DTYPES = {"float16": mstype.float16, "bfloat16": BFLOAT16, "float32": mstype.float32}
_INFINITY = float("inf")


class MathBackend(Backend):
    """Composed MindSpore operations with float32 arithmetic."""

    name = "math"
    takes = NAMES
    rules = (*BAND_RULES, "first_query", "alibi", "dropout_rate", "scale", "softcap")
    kinds = ("dense", "varlen", "paged")
    dynamic = ("dense",)

    def refuse(self, call: Call) -> str | None:
        if _DTYPES[call.dtype] is None:
            return f"this MindSpore has no {call.dtype}"
        return None

    def build(self, call: Call, shard: Shard | None = None) -> nn.Cell:
        if call.kind == "dense":
            return _Attention(call)
        if call.kind == "paged":
            return with_end(lambda whole: PagedGather(self, whole, "float32"), call)
        if call.varlen.constant:
            return VarlenLoop(self, call, "float32")
        return VarlenLoopOfTensors(self, call, VarlenRows(self, call))


class _Attention(nn.Cell):
    """Attention on BNSD tensors. The query heads of a group are stacked, so that key and value are never repeated."""

    def __init__(self, call: Call):
        super().__init__()
        self.scale, self.softcap = call.scale, call.rules.softcap
        self.dtype = _DTYPES[call.dtype]
        # On a CPU, MindSpore's float32 exp errs by up to 7e-6 (2.10): a hundred times the rounding of float32.
        self.precise = mstype.float64 if call.device == "CPU" else mstype.float32
        self.heads, self.kv_heads = call.heads, call.kv_heads
        self.head_dim, self.value_dim = call.head_dim, call.value_dim
        self.mask, self.bias, self.sinks = map(call.place, ("mask", "bias", "sinks"))
        self.prefix, self.slopes = map(call.place, ("prefix", "alibi_slopes"))
        self.segment_ids, self.kv_segment_ids = map(call.place, ("segment_ids", "kv_segment_ids"))
        self.block_mask = call.place("block_mask")
        self.out_of_tiles = None if self.block_mask is None else OutOfTiles(call)
        self.dropout_scale = call.dropout_scale
        self.decisions = call.place("keep_bits" if call.keep_bits else "seed")
        self.dropout = (_GivenKeep if call.keep_bits else _DrawnKeep)(call)
        everything = not call.dynamic and call.band.unlimited()
        self.out_of_band = None if everything else OutOfBand(call)
        self.alibi = ComputedAlibi(call) if call.bias == "alibi" else None
        self.differs, self.hide, self.drop = Differs(), HideScores(call.dynamic), DropHidden(call.dynamic)
        hides = self.mask is not None or self.block_mask is not None or call.segments or self.out_of_band is not None
        self.finite = _FiniteOnly() if hides else None
        self.product_nt = ops.BatchMatMul(transpose_b=True)
        self.product = ops.BatchMatMul()
        self.top = ops.ReduceMax(keep_dims=True)
        self.total = ops.ReduceSum(keep_dims=True)
        self.first_derivative_only = FirstDerivativeOnlyInPynative("math")

    def construct(self, query, key, value, inputs):
        query, key, value = self.first_derivative_only(query, key, value)
        batch, seq_k = query.shape[0], key.shape[2]
        stacked = ops.reshape(ops.cast(query, mstype.float32) * self.scale, (batch, self.kv_heads, -1, self.head_dim))
        key32, value32 = ops.cast(key, mstype.float32), ops.cast(value, mstype.float32)
        bad_value = 0.0  # in every branch, see flash_attention.bridge
        if self.finite is None:
            scores = self.capped(self.product_nt(stacked, key32))
        else:
            # Hidden pairs must not become NaN by 0 * NaN. So markers bring NaN only to the pairs of a bad row.
            stacked, bad_query = self.finite(stacked)
            key32, bad_key = self.finite(key32)
            value32, bad_value = self.finite(value32)
            scores = self.capped(self.product_nt(stacked, key32)) + bad_query + ops.swapaxes(bad_key, -1, -2)
        scores = ops.reshape(scores, (batch, self.heads, -1, seq_k))
        if self.alibi is not None:
            scores = scores + self.alibi(query, key, None if self.slopes is None else inputs[self.slopes])
        if self.bias is not None:
            scores = scores + ops.cast(inputs[self.bias], mstype.float32)
        hidden = self.hidden(query, key, inputs)
        if hidden is not None:
            hidden = without_influence(hidden)  # two operations take it, and no gradients of booleans are summed
            scores = self.hide(scores, hidden)

        # A row that sees nothing has top -inf and total 0. It must give 0 and -inf, and no NaN in any gradient.
        top = without_influence(self.top(scores, -1))
        sinks = top  # in every branch, see flash_attention.bridge
        if self.sinks is not None:
            sinks = ops.reshape(inputs[self.sinks], (1, -1, 1, 1))
            top = ops.maximum(top, without_influence(sinks))
        top = ops.masked_fill(top, top == -_INFINITY, 0.0)
        weights = ops.cast(ops.exp(ops.cast(scores - top, self.precise)), mstype.float32)
        total = self.total(weights, -1)
        if self.sinks is not None:
            total = total + ops.cast(ops.exp(ops.cast(sinks - top, self.precise)), mstype.float32)
        fully_masked = total == 0.0
        total = ops.masked_fill(total, fully_masked, 1.0)
        logsumexp = ops.cast(ops.log(ops.cast(total, self.precise)), mstype.float32) + top
        logsumexp = ops.masked_fill(logsumexp, fully_masked, -_INFINITY)
        probability = weights / total
        if self.finite is not None:
            marked = ops.reshape(probability, (batch, self.kv_heads, -1, seq_k)) + ops.swapaxes(bad_value, -1, -2)
            marked = ops.reshape(marked, (batch, self.heads, -1, seq_k))
            probability = self.drop(marked, hidden)
        if self.decisions is not None:
            refuse_old_jit("dropout on backend 'math'")
            kept = ops.cast(self.dropout(query, key, inputs[self.decisions]), mstype.float32)
            probability = probability * kept * self.dropout_scale
        probability = ops.reshape(probability, (batch, self.kv_heads, -1, seq_k))
        output = ops.reshape(self.product(probability, value32), query.shape[:3] + (self.value_dim,))
        return ops.cast(output, self.dtype), ops.reshape(logsumexp, query.shape[:3])

    def capped(self, scores):
        if self.softcap == 0.0:
            return scores
        # On a CPU, MindSpore's float32 tanh errs by up to 1e-4 (2.10).
        squashed = ops.tanh(ops.cast(scores, self.precise) / self.softcap)
        return ops.cast(squashed * self.softcap, mstype.float32)

    def hidden(self, query, key, inputs):
        """Return a boolean, True where position, segment, tile or mask hides a pair. Return None if nothing can."""
        hidden = None
        if self.out_of_band is not None:
            hidden = self.out_of_band(query, key)
            if self.prefix is not None:
                behind = counted(key.shape[2]) >= ops.reshape(inputs[self.prefix], (-1, 1, 1, 1))
                hidden = ops.logical_and(hidden, behind)
        if self.segment_ids is not None:
            own, other = ops.expand_dims(inputs[self.segment_ids], -1), ops.expand_dims(inputs[self.kv_segment_ids], 1)
            apart = ops.expand_dims(ops.logical_or(self.differs(own, other), own < 0), 1)
            hidden = apart if hidden is None else ops.logical_or(hidden, apart)
        if self.block_mask is not None:
            apart = self.out_of_tiles(inputs[self.block_mask])
            hidden = apart if hidden is None else ops.logical_or(hidden, apart)
        if self.mask is not None:
            hidden = inputs[self.mask] if hidden is None else ops.logical_or(hidden, inputs[self.mask])
        return hidden


class _FiniteOnly(nn.Cell):
    """Return (..., rows, columns) with zeros for non-finite elements, and marks (..., rows, 1). A mark is NaN if its
    row had such an element, else 0.
    """

    def __init__(self):
        super().__init__()
        self.any, self.differs = ops.ReduceSum(keep_dims=True), Differs()

    def construct(self, x):
        zero = stopped(x) * 0.0  # NaN at the places where x is not finite
        bad = self.differs(zero, zero)
        return ops.masked_fill(x, bad, 0.0), self.any(zero, -1)


class _GivenKeep(nn.Cell):
    """Keep decisions from packed bits: int32 (batch, heads, seq_q, seq_k) of 0 and 1."""

    def __init__(self, call: Call):
        super().__init__()
        self.powers = Tensor(2 ** np.arange(8, dtype=np.int32))
        self.bit_and = ops.BitwiseAnd()

    def construct(self, query, key, keep_bits):
        bits = self.bit_and(ops.expand_dims(ops.cast(keep_bits, mstype.int32), -1), self.powers)
        kept = ops.reshape(ops.cast(bits > 0, mstype.int32), query.shape[:3] + (-1,))
        return kept[..., : key.shape[2]]


class _DrawnKeep(nn.Cell):
    """Keep decisions by Philox4x32-10, as `dropout.philox` draws them: int32 (batch, heads, seq_q, seq_k).

    The 32-bit words travel in int64: their products wrap modulo 2**64, which leaves both halves right. Words 0 and 2,
    the factors, are one tensor, and words 1 and 3 another, which halves the number of operations.
    """

    def __init__(self, call: Call):
        super().__init__()
        self.threshold = call.dropout_threshold
        self.batch_offset = call.batch_offset
        heads = call.head_offset + np.arange(call.heads).reshape(1, -1, 1, 1)
        self.heads = _int64(heads)
        self.even = None
        if not call.dynamic:
            batch, _, seq_q, blocks = call.shape_keep_bits()
            batches = call.batch_offset + np.arange(batch)
            even, odd = _counters(np.stack, batches, heads, np.arange(seq_q), np.arange(blocks))
            self.even, self.odd = _int64(even), _int64(odd)
        self.multipliers = _int64([0xD2511F53, 0xCD9E8D57]).reshape(2, 1, 1, 1, 1)
        self.key_steps = _int64(np.outer(np.arange(10), [0x9E3779B9, 0xBB67AE85])).reshape(10, 2, 1, 1, 1, 1)
        self.low, self.low16 = _int64(0xFFFFFFFF), _int64(0xFFFF)
        self.half, self.half16 = _int64(32), _int64(16)
        self.bit_and, self.bit_xor, self.shift = ops.BitwiseAnd(), ops.BitwiseXor(), ops.RightShift()
        self.swap = ops.ReverseV2(axis=[0])
        self.stack = ops.Stack(-1)

    def construct(self, query, key, seed):
        seq_k = key.shape[2]
        if self.even is None:
            batches = ops.arange(query.shape[0]) + self.batch_offset
            blocks = ops.arange((seq_k + 7) // 8)
            even, odd = _counters(ops.stack, batches, self.heads, ops.arange(query.shape[2]), blocks)
        else:
            even, odd = self.even, self.odd
        keys = self.bit_and(self.key_steps + ops.reshape(seed, (2, 1, 1, 1, 1)), self.low)
        for step in range(10):
            product = even * self.multipliers
            high = self.bit_and(self.shift(product, self.half), self.low)
            even = self.bit_xor(self.bit_xor(self.swap(high), odd), keys[step])
            odd = self.swap(self.bit_and(product, self.low))
        words = self.stack((even[0], odd[0], even[1], odd[1]))
        values = self.stack((self.bit_and(words, self.low16), self.shift(words, self.half16)))
        kept = ops.reshape(values, query.shape[:3] + (-1,)) >= self.threshold
        return ops.cast(kept[..., :seq_k], mstype.int32)


def _counters(stack, batches, heads, rows, blocks):
    """Return words 0 and 2, and words 1 and 3 of the counters. They are (2, batch, heads, seq_q, blocks) each."""
    batches, rows, blocks = batches.reshape(-1, 1, 1, 1), rows.reshape(1, 1, -1, 1), blocks.reshape(1, 1, 1, -1)
    zeros = (batches + heads + rows + blocks) * 0
    return stack((blocks + zeros, heads + zeros)), stack((rows + zeros, batches + zeros))


def _int64(value) -> Tensor:
    return Tensor(np.array(value, np.int64))


BACKEND = MathBackend()
