"""Shard strategies of attention under semi-automatic parallelism: batch over `dp` devices, heads over `mp`.

`DeviceGrid` says how every tensor is split. MindSpore takes this in one of two forms for a Custom primitive: Layout
objects (from 2.3), or tuples beside primitive attributes (2.0-2.2). The grid also gives the call of one shard, whose
dropout and computed ALiBi are as in the whole call. shard.py takes the grid from the layer to the primitives.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from flash_attention.call import Call
from flash_attention.call.checks import check_int, check_name
from flash_attention.call.layout import LAYOUTS


@dataclass(frozen=True)
class DeviceGrid:
    """Batch over `dp` devices and heads over `mp`, of `device_num` devices.

    Raises:
        TypeError, ValueError: dp * mp is not device_num, or an argument is not allowed.
    """

    dp: int
    mp: int
    device_num: int
    input_layout: str = "BNSD"

    def __post_init__(self):
        for name in ("dp", "mp", "device_num"):
            check_int(name, getattr(self, name), 1)
        check_name("input_layout", self.input_layout, LAYOUTS)
        if self.dp * self.mp != self.device_num:
            raise ValueError(
                f"dp, mp: got {self.dp} * {self.mp} = {self.dp * self.mp} for {self.device_num} devices; their product "
                "must be the number of devices"
            )

    @classmethod
    def from_strategies(cls, in_strategy: tuple, out_strategy: tuple | None, input_layout: str = "BNSD") -> DeviceGrid:
        """Return the grid that MindSpore-style strategies ask for.

        Args:
            in_strategy: one tuple of integers per tensor, into how many parts each axis is split. The tensors are
                query, key, value, and then, if the layer has them, attention_mask and alibi_mask. () for a mask leaves
                its split to dp and mp, as if no strategy was given.
            out_strategy: one such tuple for the output in a tuple, or None.

        Raises:
            TypeError, ValueError: a strategy is not possible; the message says what is.
        """
        check_name("input_layout", input_layout, LAYOUTS)
        if not isinstance(in_strategy, (tuple, list)) or not 3 <= len(in_strategy) <= 5:
            raise ValueError(
                f"in_strategy: got {in_strategy!r}, allowed are 3 to 5 tuples: query, key, value, attention_mask, "
                "alibi_mask"
            )
        dp, mp = _read("in_strategy[0] (query)", in_strategy[0], input_layout)
        grid = cls(dp, mp, dp * mp, input_layout)
        for index, name in ((1, "key"), (2, "value")):
            if _read(f"in_strategy[{index}] ({name})", in_strategy[index], input_layout) != (dp, mp):
                raise ValueError(
                    f"in_strategy[{index}] ({name}): got {in_strategy[index]}, but query has {in_strategy[0]}; batch "
                    "and heads of all three must be split alike"
                )
        for index, name in ((3, "attention_mask"), (4, "alibi_mask")):
            if index < len(in_strategy):
                grid._check_mask(f"in_strategy[{index}] ({name})", in_strategy[index])
        if out_strategy is not None:
            if not isinstance(out_strategy, (tuple, list)) or len(out_strategy) != 1:
                raise ValueError(f"out_strategy: got {out_strategy!r}, allowed is one tuple for the output, in a tuple")
            if _read("out_strategy[0]", out_strategy[0], input_layout) != (dp, mp):
                raise ValueError(
                    f"out_strategy[0]: got {out_strategy[0]}, allowed is the strategy of query, {in_strategy[0]}"
                )
        return grid

    def strategy(self, axes: tuple) -> tuple:
        """Return the tuple strategy of a tensor whose axes "dp", "mp" or None split: into how many parts each is."""
        return tuple({"dp": self.dp, "mp": self.mp, None: 1}[axis] for axis in axes)

    def layout(self, axes: tuple):
        """Return the `mindspore.Layout` of a tensor with these `axes`."""
        from mindspore import Layout

        return Layout((self.dp, self.mp), ("dp", "mp"))(*("None" if axis is None else axis for axis in axes))

    def primitive_attributes(self, inputs: list, outputs: list) -> dict:
        """Return the attributes that a Custom primitive of MindSpore 2.0-2.2 needs beside its tuple strategies.

        A tensor map names, per axis, the dimension of the device matrix that splits it, counted from the right; -1 is
        none.

        Args:
            inputs, outputs: `axes` of each tensor of the primitive.
        """

        def tensor_maps(tensors):
            return [[{"dp": 1, "mp": 0, None: -1}[axis] for axis in axes] for axes in tensors]

        unused = (size for name, size in (("dp", self.dp), ("mp", self.mp)) if name not in outputs[0])
        return {
            "self_define_shard": True,
            "dev_matrix_shape": [self.dp, self.mp],
            "inputs_tensor_map": tensor_maps(inputs),
            "outputs_tensor_map": tensor_maps(outputs),
            # A loss of the first output counts this often, because so many devices hold the same part of the output.
            "as_loss_divisor": math.prod(unused),
            "empty_mirror_ops": 0,
        }

    def local(self, call: Call, rank: int) -> Call:
        """Return the call of the shard on device `rank` (device matrix (dp, mp), mp innermost).

        Its offsets make dropout and computed ALiBi equal to the whole call's.
        """
        check_int("rank", rank, 0, self.device_num - 1)
        if call.dynamic:
            raise ValueError("dp, mp: sharding needs shapes that are known when the graph is compiled (no set_inputs)")
        if call.batch % self.dp:
            raise ValueError(f"dp: got {self.dp} for batch {call.batch}, allowed are divisors of the batch")
        if call.heads % self.mp:
            raise ValueError(f"mp: got {self.mp} for {call.heads} heads of query, allowed are divisors")
        if call.kv_heads % self.mp:
            raise ValueError(
                f"mp: got {self.mp} for {call.kv_heads} key/value heads (grouped-query attention), allowed are "
                "divisors of their number; repeat key and value heads to use more devices"
            )
        batch, heads = call.batch // self.dp, call.heads // self.mp
        return replace(
            call,
            batch=batch,
            heads=heads,
            kv_heads=call.kv_heads // self.mp,
            mask_shape=_cut(call.mask_shape, batch, heads),
            bias_shape=_cut(call.bias_shape, batch, heads),
            block_mask_shape=_cut(call.block_mask_shape, batch, heads),
            batch_offset=call.batch_offset + rank // self.mp * batch,
            head_offset=call.head_offset + rank % self.mp * heads,
        )

    def _check_mask(self, name: str, strategy) -> None:
        parts = _integers(name, strategy)
        if not parts:
            return
        known: dict[int, list[tuple]] = {2: [(1, 1)], 3: [(self.dp, 1, 1), (1, 1, 1)]}
        allowed = known.get(len(parts))
        if len(parts) == 4:
            allowed = [(d, m, 1, 1) for d in (self.dp, 1) for m in (self.mp, 1)]
        if allowed is None or parts not in allowed:
            shown = "() or rank 2, 3 or 4" if allowed is None else " or ".join(map(str, dict.fromkeys(allowed)))
            raise ValueError(f"{name}: got {strategy}, allowed is {shown} if query has dp={self.dp}, mp={self.mp}")


def axes_of(shape: tuple) -> tuple:
    """Return the split of each axis of a mask or bias. Axes of size 1 are not split. A mask of rank 3 is (batch, seq_q,
    seq_k).
    """
    names = {2: (None, None), 3: ("dp", None, None), 4: ("dp", "mp", None, None)}[len(shape)]
    return tuple(None if size == 1 else name for name, size in zip(names, shape))


def _integers(name: str, strategy) -> tuple:
    if not isinstance(strategy, (tuple, list)):
        raise TypeError(f"{name}: got {type(strategy).__name__}, allowed is a tuple of integers")
    for parts in strategy:
        check_int(name, parts, 1)
    return tuple(strategy)


def _read(name: str, strategy, input_layout: str) -> tuple[int, int]:
    """Read (dp, mp) from the strategy of query, key, value or output."""
    parts, layout = _integers(name, strategy), LAYOUTS[input_layout]
    axes = layout.sharding
    if len(parts) != len(axes):
        raise ValueError(f"{name}: got {strategy}, allowed is one number per axis of {layout}")
    for count, axis, what in zip(parts, axes, layout.axes):
        if axis is None and count > 1:
            instead = "context parallelism does that: GatherAttention" if what == "seq" else "split the heads instead"
            raise ValueError(f"{name}: got {strategy}, which splits {what} into {count}; allowed is 1 ({instead})")
    return parts[axes.index("dp")], parts[axes.index("mp")]


def _cut(shape: tuple | None, batch: int, heads: int) -> tuple | None:
    """Return the shape of a shard's part of a mask or bias."""
    if shape is None:
        return None
    return (1 if shape[0] == 1 else batch, 1 if shape[1] == 1 else heads, *shape[2:])
