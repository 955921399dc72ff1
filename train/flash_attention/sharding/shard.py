"""Turn the layer's dp and mp into strategies on the primitives of a sharded graph.

Under semi-automatic parallelism a network is written for the whole batch and all heads. MindSpore compiles it with
these shapes, then cuts the tensors of every primitive as its strategy says, and infers all shapes again. Only then does
it make the gradients, whose operations see the shapes of one device. So a primitive with a call of its own (a `Custom`)
is built for its device's share from the start. It has to infer the shapes of the whole as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from mindspore import nn

from flash_attention.bridge.parallel import place_in_stage
from flash_attention.bridge.versions import LAYOUTS
from flash_attention.call import LAYOUTS as CALL_LAYOUTS
from flash_attention.call import Call
from flash_attention.sharding.strategy import DeviceGrid, axes_of

TENSOR = CALL_LAYOUTS["BNSD"].sharding
ROWS = ("dp", "mp", None)  # logsumexp and its gradient


class ShardRequest(NamedTuple):
    """Say how to split a call, in plain constants, because a graph passes it on."""

    dp: int
    mp: int
    mask_batch: bool = True  # have_attention_mask_batch
    mask: tuple = ()  # strategies of attention_mask and alibi_mask that `FlashAttention.shard` was given
    alibi: tuple = ()


class RequestedSharding(nn.Cell):
    """A request as a cell: None in PYNATIVE, which calls it, and the request in a graph, which has its `construct`."""

    def __init__(self, request: ShardRequest):
        super().__init__()
        self.request = request

    def __call__(self):
        return None

    def construct(self):
        return self.request


@dataclass(frozen=True)
class Shard:
    """One device's share of a call.

    Attributes:
        mask_axes, bias_axes, block_axes: how mask and bias of rank 4 and a block mask are split, see `axes_of`; None
            if there is none.
    """

    grid: DeviceGrid
    rank: int
    mask_axes: tuple | None = None
    bias_axes: tuple | None = None
    block_axes: tuple | None = None

    def glue(self, primitive, *axes: tuple):
        """Give one of MindSpore's own primitives the strategies of its inputs; `axes` as in `DeviceGrid.strategy`."""
        return primitive.shard(tuple(self.grid.strategy(one) for one in axes))

    def whole(self, shape: tuple, axes: tuple) -> list:
        """Return the whole call's shape of a tensor with this shape on one device."""
        return [size * parts for size, parts in zip(shape, self.grid.strategy(axes))]

    def part(self, array: np.ndarray, axes: tuple) -> np.ndarray:
        """Return this device's part of an array of the whole call."""
        place = dict(zip(("dp", "mp"), divmod(self.rank, self.grid.mp)))
        for number, (axis, parts) in enumerate(zip(axes, self.grid.strategy(axes))):
            if parts > 1:
                array = np.split(array, parts, number)[place[axis]]
        return array

    def infer_shapes(self, first: tuple, outputs: list[tuple]):
        """Return the `out_shape` of a Custom primitive.

        Args:
            first: shape of the first input on one device.
            outputs: shape on one device and axes of every output.
        """
        local = [list(shape) for shape, _ in outputs]
        whole = [self.whole(shape, axes) for shape, axes in outputs]

        def infer(*shapes):
            found = local if list(shapes[0]) == list(first) else whole
            return found[0] if len(found) == 1 else tuple(found)

        return infer

    def attach(self, primitive, inputs: list[tuple], outputs: list[tuple]):
        """Give a Custom primitive its strategies, in the form that this MindSpore takes."""
        if LAYOUTS:
            primitive.add_prim_attr("self_define_shard", True)
            return primitive.shard(tuple(map(self.grid.layout, inputs)), tuple(map(self.grid.layout, outputs)))
        for name, value in self.grid.primitive_attributes(inputs, outputs).items():
            primitive.add_prim_attr(name, value)
        return primitive.shard(tuple(map(self.grid.strategy, inputs)))


@dataclass(frozen=True)
class Sharding:
    """Describe the sharding of the graph being compiled: the layer's request, and this device's place."""

    request: ShardRequest
    devices: int  # number of devices of the pipeline stage
    rank: int  # among them

    def shard(self, call: Call, mask_shape: tuple | None) -> Shard | None:
        """Return this device's share of a call, or None if one device does everything.

        Args:
            call: the whole call.
            mask_shape: of attention_mask as the caller gave it.
        """
        request = self.request
        grid = DeviceGrid(request.dp, request.mp, self.devices, call.layout)
        if self.devices == 1:
            return None
        if call.slopes_shape is not None:
            raise ValueError(
                "alibi_slopes: given to a call that semi-automatic parallelism splits, allowed there are alibi=True "
                "with the standard slopes, and alibi_mask"
            )
        mask_axes = bias_axes = None
        if call.mask_shape is not None:
            mask_axes = axes_of(call.mask_shape)
            if request.dp > 1 and "dp" in mask_axes and not request.mask_batch:
                raise ValueError(
                    f"attention_mask: got shape {mask_shape} with have_attention_mask_batch=False and dp={request.dp}, "
                    "allowed is a mask without batch axis (or of batch 1); have_attention_mask_batch=True splits it"
                )
            _check("in_strategy[3] (attention_mask)", grid, mask_shape, request.mask)
        if call.bias_shape is not None:
            bias_axes = axes_of(call.bias_shape)
            _check("in_strategy[4] (alibi_mask)", grid, call.bias_shape, request.alibi)
        block_axes = None if call.block_mask_shape is None else axes_of(call.block_mask_shape)
        return Shard(grid, self.rank, mask_axes, bias_axes, block_axes)


def sharding(request: tuple | None) -> Sharding | None:
    """Return the sharding of the graph being compiled, or None if MindSpore shards nothing."""
    place = None if request is None else place_in_stage()
    return place and Sharding(ShardRequest(*request), *place)


def _check(name: str, grid: DeviceGrid, shape: tuple, requested: tuple) -> None:
    wanted = grid.strategy(axes_of(shape))
    if requested and tuple(requested) != wanted:
        raise ValueError(f"{name}: got {tuple(requested)} for a tensor of shape {shape}, allowed is {wanted}")
