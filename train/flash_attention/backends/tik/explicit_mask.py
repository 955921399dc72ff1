"""Make an explicit mask for the TIK operators of what cannot become lists of tiles.

Segment ids and a block mask join it where `describe.lists_tiles` says no, prefixes where `describe.masks_prefix` says
yes. No tile is skipped for them. The mask takes 2 bytes a score and batch item (and head, if the caller's mask varies
by head).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from mindspore import Tensor, nn, ops

from flash_attention.backends.composed.positional import OutOfTiles
from flash_attention.bridge.hiding import Differs
from flash_attention.call import Call
from flash_attention.kernels.tik.describe import lists_tiles, makes_mask, masks_prefix
from flash_attention.sharding.shard import Shard

_ALL = (None, None, None, None)
_BATCH = ("dp", None, None, None)


def with_mask(shard: Shard | None, call: Call) -> Shard | None:
    """Return the shard with the axes of the kernels' mask."""
    if shard is None or not makes_mask(call):
        return shard
    listed = lists_tiles(call)
    given = [axes for axes in (shard.mask_axes, None if listed else shard.block_axes) if axes is not None]
    batch = "dp" if masks_prefix(call) or (call.segments and not listed) or any(axes[0] for axes in given) else None
    heads = "mp" if any(axes[1] for axes in given) else None
    return replace(shard, mask_axes=(batch, heads, None, None))


class ExplicitMask(nn.Cell):
    """Give a boolean of the kernels' mask_shape, True where a score is hidden. The call's mask, the prefix, the
    segments or the block mask hide scores.

    Args:
        call: `describe.makes_mask` says yes.
        shard: of the call, with the axes of its own mask.
    """

    def __init__(self, call: Call, shard: Shard | None):
        super().__init__()
        self.mask, self.prefix = map(call.place, ("mask", "prefix" if masks_prefix(call) else ""))
        listed = lists_tiles(call)
        of_ids = ("", "") if listed else ("segment_ids", "kv_segment_ids")
        self.segment_ids, self.kv_segment_ids = map(call.place, of_ids)
        self.out_of_band = Tensor(~call.band.dense()[None, None])
        self.block_mask = None if listed else call.place("block_mask")
        self.out_of_tiles = None if self.block_mask is None else OutOfTiles(call)
        self.columns = Tensor(np.arange(call.seq_k, dtype=np.int32).reshape(1, 1, 1, -1))
        self.behind, self.late = ops.GreaterEqual(), ops.LogicalAnd()
        self.differ, self.negative, self.apart = Differs(), ops.Less(), ops.LogicalOr()
        self.either, self.among, self.given = ops.LogicalOr(), ops.LogicalOr(), ops.LogicalOr()
        if shard is not None:
            shard.glue(self.behind, _ALL, _BATCH)
            shard.glue(self.late, _ALL, _BATCH)
            self.differ.shard(shard, _BATCH, _BATCH)
            shard.glue(self.negative, _BATCH, ())
            shard.glue(self.apart, _BATCH, _BATCH)
            shard.glue(self.either, _BATCH, _BATCH)
            axes = _BATCH if self.prefix is not None or self.segment_ids is not None else _ALL
            if self.out_of_tiles is not None:
                self.out_of_tiles.shard(shard, shard.block_axes)
                shard.glue(self.among, axes, shard.block_axes)
                axes = with_mask(replace(shard, mask_axes=None), call).mask_axes
            if self.mask is not None:
                shard.glue(self.given, shard.mask_axes, axes)

    def construct(self, inputs):
        hidden = None
        if self.prefix is not None:
            behind = self.behind(self.columns, ops.reshape(inputs[self.prefix], (-1, 1, 1, 1)))
            hidden = self.late(self.out_of_band, behind)
        if self.segment_ids is not None:
            own, other = inputs[self.segment_ids], inputs[self.kv_segment_ids]
            own = ops.reshape(own, (own.shape[0], 1, own.shape[1], 1))
            other = ops.reshape(other, (other.shape[0], 1, 1, other.shape[1]))
            apart = self.apart(self.differ(own, other), self.negative(own, 0))
            hidden = apart if hidden is None else self.either(hidden, apart)
        if self.block_mask is not None:
            apart = self.out_of_tiles(inputs[self.block_mask])
            hidden = apart if hidden is None else self.among(hidden, apart)
        if self.mask is not None:
            hidden = self.given(inputs[self.mask], hidden)
        return hidden
