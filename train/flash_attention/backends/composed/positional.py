"""Compute the scores' part that position alone decides, for backends of MindSpore operations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from flash_attention.call import ALL_BLOCKS, AttentionRules, Call, alibi_slopes

if TYPE_CHECKING:
    from flash_attention.sharding.shard import Shard

_FAR = 1 << 30  # stands for an unlimited number of tiles in int32


class OutOfBand(nn.Cell):
    """Boolean (1, 1, seq_q, seq_k), True where position hides the key."""

    def __init__(self, call: Call):
        super().__init__()
        self.positions = Positions(call)
        self.by_rules = HiddenByRules(call.rules) if call.dynamic else None
        if not call.dynamic:
            bounds = np.array(list(call.band.rows()), np.int32).reshape(1, 1, call.seq_q, 2)
            self.lo, self.hi = Tensor(bounds[..., :1].copy()), Tensor(bounds[..., 1:].copy())

    def construct(self, query, key):
        position, column = self.positions(query, key)
        if self.by_rules is None:
            return ops.logical_or(column < self.lo, column >= self.hi)
        return self.by_rules(position, column)


class OutOfTiles(nn.Cell):
    """Hide keys by a block mask.

    Gives a boolean (batch or 1, heads or 1, seq_q, seq_k), True = hidden.
    """

    def __init__(self, call: Call):
        super().__init__()
        tokens = np.arange(max(call.seq_q, call.seq_k), dtype=np.int32) // call.block_mask_tile
        self.rows, self.columns = Tensor(tokens[: call.seq_q]), Tensor(tokens[: call.seq_k])
        self.cast, self.by_rows, self.by_columns, self.equal = ops.Cast(), ops.Gather(), ops.Gather(), ops.Equal()

    def construct(self, block_mask):
        # Not everywhere is there a Gather of bytes.
        rows = self.by_rows(self.cast(block_mask, mstype.int32), self.rows, 2)
        return self.equal(self.by_columns(rows, self.columns, 3), 0)

    def shard(self, shard: Shard, axes: tuple) -> None:
        """Set strategies for a block mask of these axes, which the result has too."""
        shard.glue(self.cast, axes)
        shard.glue(self.by_rows, axes, (None,))
        shard.glue(self.by_columns, axes, (None,))
        shard.glue(self.equal, axes, ())


class HiddenByRules(nn.Cell):
    """Give a boolean, True where the rules hide a key from a query. Positions of both are int32."""

    def __init__(self, rules: AttentionRules):
        super().__init__()
        self.causal, self.block = rules.causal, rules.tile
        self.left, self.right = rules.window_left, rules.window_right
        blocks = rules.prev_blocks, rules.next_blocks
        self.prev_blocks, self.next_blocks = (_FAR if count >= ALL_BLOCKS else count for count in blocks)

    def construct(self, position, column):
        tiles = column // self.block - position // self.block
        hidden = ops.logical_or(tiles < -self.prev_blocks, tiles > self.next_blocks)
        if self.causal:
            hidden = ops.logical_or(hidden, column > position)
        return hidden_by_window(hidden, position, column, self.left, self.right)


def hidden_by_window(hidden, position, column, left, right):
    """Hide keys outside of a window around their query's position too; -1 = no limit."""
    if left >= 0:
        hidden = ops.logical_or(hidden, column < position - left)
    if right >= 0:
        hidden = ops.logical_or(hidden, column > position + right)
    return hidden


class ComputedAlibi(nn.Cell):
    """float32 (1 or batch, heads, seq_q, seq_k): -slope * |position of the query - key|, exact distances below 2**24.

    `slopes` are the caller's if call.slopes_shape says so, and get no gradient.
    """

    def __init__(self, call: Call):
        super().__init__()
        self.heads, self.given = call.heads, call.slopes_shape is not None
        self.slopes = Tensor(np.array(alibi_slopes(call), np.float32))
        self.positions = Positions(call)

    def construct(self, query, key, slopes):
        position, column = self.positions(query, key)
        return alibi_bias(slopes if self.given else self.slopes, self.heads, position, column)


def alibi_bias(slopes, heads, position, column):
    """Compute -slope * |position - column| for float32 slopes, (heads,) or (batch, heads)."""
    return -ops.reshape(slopes, (-1, heads, 1, 1)) * ops.cast(ops.abs(position - column), mstype.float32)


class Positions(nn.Cell):
    """Give int32 positions: of queries (1, 1, seq_q, 1), of keys (1, 1, 1, seq_k).

    Constants if the sizes are known; otherwise from the tensors at run time.
    """

    def __init__(self, call: Call):
        super().__init__()
        self.dynamic = call.dynamic
        self.bottom_right, self.first = call.rules.causal_alignment == "bottom_right", call.rules.first_query or 0
        if not call.dynamic:
            self.rows = Tensor((np.arange(call.seq_q, dtype=np.int32) + call.offset).reshape(1, 1, -1, 1))
            self.columns = Tensor(np.arange(call.seq_k, dtype=np.int32).reshape(1, 1, 1, -1))

    def construct(self, query, key):
        if not self.dynamic:
            return self.rows, self.columns
        seq_q, seq_k = query.shape[2], key.shape[2]
        rows = counted(seq_q) + self.first
        if self.bottom_right:
            rows = rows + (seq_k - seq_q)
        return ops.reshape(rows, (1, 1, -1, 1)), ops.reshape(counted(seq_k), (1, 1, 1, -1))


def counted(size):
    """Return 0, 1, 2, ... as int32 (size,), for a size that is only known at run time."""
    return ops.cast(ops.arange(size), mstype.int32)
