"""Backend `fused`: MindSpore's own `ops.flash_attention_score`, which Atlas A2 and later devices have.

`fused_arguments` says how a call maps onto that operator; it needs no device. The operator's meaning is taken from
the documentation of `mindspore.ops.flash_attention_score` (2.10).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from types import FunctionType
from typing import TYPE_CHECKING

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from flash_attention.backends.base import BAND_RULES, Backend
from flash_attention.backends.composed.positional import ComputedAlibi, OutOfBand
from flash_attention.bridge.seeds import draw
from flash_attention.bridge.versions import ascend_generation, flash_attention_score
from flash_attention.call import ALL_BLOCKS, Call

if TYPE_CHECKING:
    from flash_attention.sharding.shard import Shard

UNLIMITED_TOKENS = 2147483647
COMPRESSED_MASK = 2048  # side of the triangular mask that stands for any length in sparse modes 2 to 4
DEFAULT_MASK, ALL_MASK, LEFT_UP_CAUSAL, RIGHT_DOWN_CAUSAL, BAND, PREFIX = range(6)  # sparse_mode
_DEVICES = ("ascend910b", "ascend910_93")
# MindSpore's own, and a copy, because `flash_attention.patch_mindspore` gives the function other code.
if isinstance(flash_attention_score, FunctionType):
    flash_attention_score = FunctionType(
        flash_attention_score.__code__, flash_attention_score.__globals__, argdefs=flash_attention_score.__defaults__
    )
_LOWEST = {"float16": -65504.0, "bfloat16": -3.0e38}


@dataclass(frozen=True)
class FusedArguments:
    """Arguments of `ops.flash_attention_score` for a call, and the form that its tensors need."""

    head_num: int
    keep_prob: float
    scalar_value: float
    pre_tokens: int
    next_tokens: int
    sparse_mode: int
    # "none", "compressed": the (2048, 2048) triangle, "dense": (batch or 1, heads or 1, seq_q, seq_k) of zeros and ones
    attn_mask: str
    # The operator computes scale * (query @ key^T + real_shift): a bias enters divided by the scale.
    real_shift_factor: float
    head_dim: int  # padded to a multiple of 16


def fused_arguments(call: Call) -> FusedArguments:
    """Map `call` onto the arguments of the operator.

    Causal and token windows become its sparse modes, so that it skips hidden keys. Block windows and explicit masks
    become a dense mask. The band around them is given as a hint if it counts from the top left corner.
    """
    pre_tokens, next_tokens, mode, mask = UNLIMITED_TOKENS, UNLIMITED_TOKENS, DEFAULT_MASK, "none"
    band = call.band
    if call.mask_shape is None and band.unlimited():
        pass
    elif call.mask_shape is None and _is_window(call):
        mask = "compressed"
        left = call.rules.window_left if call.rules.window_left >= 0 else UNLIMITED_TOKENS
        right = call.rules.window_right if call.rules.window_right >= 0 else UNLIMITED_TOKENS
        if call.rules.causal and left == UNLIMITED_TOKENS:
            mode = RIGHT_DOWN_CAUSAL if call.offset else LEFT_UP_CAUSAL
        else:
            mode, pre_tokens, next_tokens = BAND, left, 0 if call.rules.causal else right
    else:
        mask, mode = "dense", ALL_MASK
        if call.offset == 0:
            mode = DEFAULT_MASK
            pre_tokens = max(0, max(row - lo for row, (lo, _) in enumerate(band.rows())))
            next_tokens = max(0, max(hi - 1 - row for row, (_, hi) in enumerate(band.rows())))
    return FusedArguments(
        head_num=call.heads,
        keep_prob=1.0 / call.dropout_scale,
        scalar_value=call.scale,
        pre_tokens=pre_tokens,
        next_tokens=next_tokens,
        sparse_mode=mode,
        attn_mask=mask,
        real_shift_factor=1.0 if call.bias == "none" else 1.0 / call.scale,
        head_dim=-(-call.head_dim // 16) * 16,
    )


def _is_window(call: Call) -> bool:
    """Return True if causal and token window alone make the band. The operator knows only these.

    Its band mode counts from one corner only, and its causal modes want a key for every query.
    """
    blocks = min(call.rules.prev_blocks, call.rules.next_blocks)
    unlimited_blocks = blocks >= ALL_BLOCKS or blocks * call.rules.tile >= call.seq_q + call.seq_k
    square = call.seq_q == call.seq_k
    only_causal = call.rules.causal and call.rules.window_left < 0
    return unlimited_blocks and (square or (only_causal and call.seq_q <= call.seq_k))


class FusedBackend(Backend):
    """Run `ops.flash_attention_score`. Dropout's bits, unless given, come from MindSpore's DropoutGenMask, not a
    seed.
    """

    name = "fused"
    takes = ("mask", "bias", "keep_bits", "seed", "alibi_slopes")
    rules = (*BAND_RULES, "alibi", "dropout_rate", "scale")

    def unavailable(self) -> str | None:
        target = ms.get_context("device_target")
        if target != "Ascend":
            return f"needs an Atlas A2 or later device, and the device target is {target}"
        if flash_attention_score is None:
            return f"MindSpore {ms.__version__} has no ops.flash_attention_score"
        soc = ascend_generation()
        if soc not in _DEVICES:
            return f"needs an Atlas A2 or later device ({', '.join(_DEVICES)}), and this one is {soc}"
        return None

    def refuse(self, call: Call) -> str | None:
        if call.dtype not in _LOWEST:
            return f"ops.flash_attention_score takes {' and '.join(_LOWEST)}, got {call.dtype}"
        if call.head_dim > 256 or call.value_dim != call.head_dim:
            return (
                "ops.flash_attention_score takes one head_dim up to 256 for query, key and value, got "
                f"{call.head_dim} and {call.value_dim} of value"
            )
        if call.return_lse:
            return "ops.flash_attention_score has no gradient through the logsumexp"
        if call.bias != "none" and call.scale == 0.0:
            return "ops.flash_attention_score scales the bias too, and the scale is 0"
        for name, size, limit in (("batch", call.batch, 2048), ("heads", call.heads, 256)):
            if size > limit:
                return f"ops.flash_attention_score takes {name} up to {limit}, got {size}"
        if call.dropout_threshold and call.seq_k % 8:
            return f"ops.flash_attention_score takes dropout over multiples of 8 keys, got {call.seq_k}"
        if max(call.seq_q, call.seq_k) > 512 * 1024:
            return "ops.flash_attention_score takes sequences up to 524288"
        return None

    def build(self, call: Call, shard: Shard | None = None) -> nn.Cell:
        return _Attention(call)


class _Attention(nn.Cell):
    """Prepare the operator's tensors from BNSD tensors, and call it."""

    def __init__(self, call: Call):
        super().__init__()
        arguments = fused_arguments(call)
        self.arguments = asdict(arguments)
        self.dtype = getattr(mstype, call.dtype)
        self.padding = arguments.head_dim - call.head_dim
        self.head_dim = call.head_dim
        self.zeros_query = _zeros((*call.shape_query()[:3], self.padding), self.dtype)
        self.zeros_key = _zeros((*call.shape_key()[:3], self.padding), self.dtype)
        self.mask = _Mask(call, arguments)
        self.shift = None if call.bias == "none" else _RealShift(call, arguments)
        self.bits = _DropMask(call, arguments) if call.dropout_threshold > 0 else None
        # The operator's result for a query that sees nothing is not defined: it is replaced by 0.
        self.may_be_fully_masked = call.mask_shape is not None or any(lo >= hi for lo, hi in call.band.rows())
        self.least = ops.ReduceMin(keep_dims=True)

    def construct(self, query, key, value, inputs):
        if self.padding > 0:
            query = ops.concat((query, self.zeros_query), -1)
            key, value = ops.concat((key, self.zeros_key), -1), ops.concat((value, self.zeros_key), -1)
        real_shift, drop_mask = None, None
        if self.shift is not None:
            real_shift = self.shift(query, key, inputs)
        if self.bits is not None:
            drop_mask = self.bits(inputs)
        attn_mask = self.mask(query, key, inputs)
        output = flash_attention_score(
            query,
            key,
            value,
            self.arguments["head_num"],
            real_shift,
            drop_mask,
            None,
            attn_mask,
            keep_prob=self.arguments["keep_prob"],
            scalar_value=self.arguments["scalar_value"],
            pre_tokens=self.arguments["pre_tokens"],
            next_tokens=self.arguments["next_tokens"],
            input_layout="BNSD",
            sparse_mode=self.arguments["sparse_mode"],
        )
        if self.may_be_fully_masked:
            fully_masked = self.least(ops.cast(attn_mask, mstype.float16), -1) > 0
            output = ops.masked_fill(output, fully_masked, 0.0)
        return output[..., : self.head_dim], None


class _Mask(nn.Cell):
    """The operator's attn_mask: uint8, 1 = hidden; None without one."""

    def __init__(self, call: Call, arguments: FusedArguments):
        super().__init__()
        self.dense = arguments.attn_mask == "dense"
        self.constant = None
        if arguments.attn_mask == "compressed":
            self.constant = Tensor(np.triu(np.ones((COMPRESSED_MASK, COMPRESSED_MASK), np.uint8), 1))
        self.out_of_band = None if call.band.unlimited() else OutOfBand(call)
        self.given = call.place("mask")
        heads = call.heads if self.given is not None and call.mask_shape[1] > 1 else 1
        self.shape = call.batch, heads, call.seq_q, call.seq_k

    def construct(self, query, key, inputs):
        if not self.dense:
            return self.constant
        if self.given is None:
            hidden = self.out_of_band(query, key)
        else:
            hidden = inputs[self.given]
            if self.out_of_band is not None:
                hidden = ops.logical_or(hidden, self.out_of_band(query, key))
        return ops.cast(ops.broadcast_to(hidden, self.shape), mstype.uint8)


class _RealShift(nn.Cell):
    """The operator's real_shift: bias / scale, (batch or 1, heads, seq_q, seq_k), clipped to the range of the dtype."""

    def __init__(self, call: Call, arguments: FusedArguments):
        super().__init__()
        self.dtype = getattr(mstype, call.dtype)
        self.lowest = _LOWEST[call.dtype]
        self.factor = arguments.real_shift_factor
        self.given, self.slopes = call.place("bias"), call.place("alibi_slopes")
        batch = 1 if call.bias_shape is None else call.bias_shape[0]
        if call.slopes_shape is not None and len(call.slopes_shape) == 2:
            batch = call.batch
        self.shape = batch, call.heads, call.seq_q, call.seq_k
        self.computed = ComputedAlibi(call)

    def construct(self, query, key, inputs):
        if self.given is not None:
            bias = ops.cast(inputs[self.given], mstype.float32)
        else:
            bias = self.computed(query, key, None if self.slopes is None else inputs[self.slopes])
        shift = ops.clip_by_value(bias * self.factor, self.lowest, -self.lowest)
        return ops.cast(ops.broadcast_to(shift, self.shape), self.dtype)


class _DropMask(nn.Cell):
    """The operator's drop_mask: uint8 (batch, heads, seq_q, columns / 8), a set bit keeps."""

    def __init__(self, call: Call, arguments: FusedArguments):
        super().__init__()
        self.given = call.place("keep_bits")
        self.count = call.batch, call.heads, call.seq_q, call.seq_k
        self.packed = call.shape_keep_bits()
        self.bytes = int(np.prod(self.packed))
        self.keep_prob = Tensor(arguments.keep_prob, mstype.float32)
        self.generate = None
        if self.given is None:
            self.generate = ops.operations.DropoutGenMask(*draw()).add_prim_attr("recompute", False)

    def construct(self, inputs):
        if self.given is not None:
            return inputs[self.given]
        bits = self.generate(self.count, self.keep_prob)
        return ops.reshape(bits[: self.bytes], self.packed)


def _zeros(shape: tuple, dtype) -> Tensor:
    """Return the zeros to pad with, None if there is nothing to pad."""
    return Tensor(np.zeros(shape, np.float32)).astype(dtype) if shape[-1] else None


BACKEND = FusedBackend()
