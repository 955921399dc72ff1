"""Rotary position embedding (Su et al., "RoFormer", 2021): pairs of a head's components turned by angles of a table."""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype
from mindspore.ops import constexpr

from flash_attention.backends.registry import serves_native
from flash_attention.bridge.gradients import UnlessRecorded
from flash_attention.bridge.parameters import EntryCell
from flash_attention.bridge.precision import fix_dtypes
from flash_attention.bridge.tensors import as_int32, constant, remembered, spec, tensor_spec
from flash_attention.call.checks import INTEGERS, check_bool, check_dtype, check_int, check_name
from flash_attention.call.inputs import DTYPES, TensorSpec
from flash_attention.call.layout import UNKNOWN
from flash_attention.call.names import called

_LAYOUTS = ("BSND", "BNSD")


def rotary_embedding(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    interleaved: bool = False,
    offsets: int | Tensor = 0,
    input_layout: str = "BSND",
    argument_names: tuple[tuple[str, str], ...] = (),
) -> Tensor:
    """Turn the first rotary_dim components of every head by the angles of its position. The others stay.

    A pair (a, b) becomes (a * cos - b * sin, a * sin + b * cos), in float32. Pair i is the components i and
    i + rotary_dim / 2, or interleaved 2 * i and 2 * i + 1.

    Args:
        x (Tensor): (batch, seq, heads, head_dim), float16, bfloat16 or float32.
        cos (Tensor): (positions, rotary_dim / 2), of any of these dtypes; rotary_dim <= head_dim.
        sin (Tensor): like cos.
        interleaved (bool): neighbouring components make a pair. Default: False, components half of rotary_dim apart.
        offsets (int or Tensor): position of the first token of every sequence; ints (batch,) has one for each.
            Default: 0.
        input_layout (str): "BSND", or "BNSD": (batch, heads, seq, head_dim). Default: "BSND".
        argument_names (tuple): as of `flash_attention`.

    Returns:
        Tensor like x, differentiable in x, cos and sin. If offsets are a Tensor, a token whose position is not in the
        tables gives NaN in the components that are turned.

    Raises:
        TypeError, ValueError: an input is not allowed, an int of offsets past the tables included.

    Examples:
        >>> import numpy as np
        >>> from mindspore import Tensor
        >>> from flash_attention import rotary_embedding
        >>> angles = np.arange(128)[:, None] * 10000.0 ** -(np.arange(0, 64, 2) / 64)
        >>> cos, sin = Tensor(np.cos(angles).astype(np.float32)), Tensor(np.sin(angles).astype(np.float32))
        >>> query = Tensor(np.random.randn(2, 100, 8, 64).astype(np.float16))
        >>> print(rotary_embedding(query, cos, sin, offsets=28).shape)
        (2, 100, 8, 64)
    """
    run = _prepare(spec(x), spec(cos), spec(sin), spec(offsets), interleaved, input_layout, argument_names)
    # The Cell has a number.
    return run(x, cos, sin, constant(as_int32(offsets)) if isinstance(offsets, Tensor) else None)


class _Composed(EntryCell):
    """Compute one kind of call by MindSpore's operations. They are in float32, which compiled graphs have on every
    device.
    """

    def __init__(self, x, cos, offset: int | None, interleaved: bool, layout: str):
        super().__init__()
        self.dtype = getattr(mstype, x.dtype)
        self.interleaved = interleaved
        seq_axis = 1 if layout == "BSND" else 2
        self.seq, self.table = x.shape[seq_axis], cos.shape[0]
        self.half = cos.shape[1]
        self.whole = 2 * self.half == x.shape[3]
        # Shapes of a turned half, and of its angles. A position has the same angles for every head.
        self.shape = x.shape[:3] + (2 * self.half,)
        self.angles = (-1, self.seq, 1, self.half) if layout == "BSND" else (-1, 1, self.seq, self.half)
        self.offset = offset
        self.rows = Tensor(np.arange(self.seq, dtype=np.int32).reshape(1, -1))
        self.low, self.high = Tensor(0, mstype.int32), Tensor(self.table - 1, mstype.int32)
        self.outside = Tensor(float("nan"), mstype.float32)

    def construct(self, x, cos, sin, offsets):
        x = ops.cast(x, mstype.float32)
        cos, sin = self.of_positions(cos, offsets), self.of_positions(sin, offsets)
        turned = x if self.whole else x[..., : 2 * self.half]
        if self.interleaved:
            pairs = ops.reshape(turned, self.shape[:3] + (self.half, 2))
            first, second = pairs[..., 0], pairs[..., 1]
            turned = ops.reshape(ops.stack((first * cos - second * sin, first * sin + second * cos), -1), self.shape)
        else:
            first, second = turned[..., : self.half], turned[..., self.half :]
            turned = ops.concat((first * cos - second * sin, first * sin + second * cos), -1)
        if not self.whole:
            turned = ops.concat((turned, x[..., 2 * self.half :]), -1)
        return ops.cast(turned, self.dtype)

    def of_positions(self, table, offsets):
        """Return a table's rows for the tokens, in float32. They broadcast to a half of the turned components."""
        table = ops.cast(table, mstype.float32)
        if self.offset is not None:
            return ops.reshape(table[self.offset : self.offset + self.seq], self.angles)
        positions = ops.reshape(offsets, (-1, 1)) + self.rows
        inside = ops.minimum(ops.maximum(positions, self.low), self.high)
        rows = ops.reshape(ops.gather(table, ops.reshape(inside, (-1,)), 0), self.angles)
        known = ops.reshape(ops.equal(inside, positions), self.angles[:3] + (1,))
        return ops.masked_fill(rows, ops.logical_not(known), self.outside)


@constexpr(reuse_result=False)
def _prepare(x, cos, sin, offsets, interleaved, input_layout, names):
    with called(names):
        specs = tuple(tensor_spec(name, given) for name, given in (("x", x), ("cos", cos), ("sin", sin)))
        if isinstance(offsets, tuple):
            offsets = tensor_spec("offsets", offsets)
        else:
            check_int("offsets", offsets, 0, other=" or a Tensor of integers (batch,)")
        return _prepared(*specs, offsets, interleaved, input_layout, serves_native())


@remembered
def _prepared(x, cos, sin, offsets, interleaved, input_layout, native) -> nn.Cell:
    offset = check_rotary(x, cos, sin, offsets, interleaved, input_layout)
    batch = x.shape[0]
    cell = _Composed(x, cos, offset, interleaved, input_layout)
    if native and batch != UNKNOWN:
        from flash_attention.backends.cpu.rotary import Rotary

        native_cell = Rotary(x, cos, sin, offset, interleaved, input_layout)
        return UnlessRecorded(fix_dtypes(native_cell), fix_dtypes(cell))
    return fix_dtypes(cell)


def check_rotary(
    x: TensorSpec, cos: TensorSpec, sin: TensorSpec, offsets, interleaved: bool, input_layout: str = "BSND"
) -> int | None:
    """Return the offset if it is a constant. Raise unless `rotary_embedding` takes the arguments."""
    check_bool("interleaved", interleaved)
    check_name("input_layout", input_layout, _LAYOUTS)
    for name, tensor in (("x", x), ("cos", cos), ("sin", sin)):
        check_dtype(name, tensor.dtype, DTYPES)
    if len(x.shape) != 4:
        raise ValueError(f"x: got shape {x.shape}, allowed is rank 4, as input_layout {input_layout} says")
    if len(cos.shape) != 2 or not 1 <= cos.shape[1] <= x.shape[3] // 2:
        raise ValueError(
            f"cos: got shape {cos.shape}, allowed is (positions, rotary_dim / 2), here up to {x.shape[3] // 2} columns"
        )
    if sin.shape != cos.shape:
        raise ValueError(f"sin: got shape {sin.shape}, allowed is the shape of cos, {cos.shape}")
    batch, seq = x.shape[0], x.shape[1 if input_layout == "BSND" else 2]
    if UNKNOWN in x.shape[1:] + cos.shape:
        raise ValueError(
            f"x, cos: got shapes {x.shape} and {cos.shape} in a graph for dynamic shapes, {UNKNOWN} is not known; "
            "allowed there is the batch of x"
        )
    offset = None
    if isinstance(offsets, TensorSpec):
        check_dtype("offsets", offsets.dtype, INTEGERS)
        if offsets.shape != (batch,):
            raise ValueError(f"offsets: got shape {offsets.shape}, allowed is (batch,) = ({batch},), or an int")
    else:
        offset = int(offsets)
        if offset + seq > cos.shape[0]:
            raise ValueError(
                f"cos: got {cos.shape[0]} positions, allowed are at least {offset + seq}: {seq} tokens from {offset} on"
            )
    return offset
