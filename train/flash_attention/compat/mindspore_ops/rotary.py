"""`ApplyRotaryPosEmb` and `rotary_position_embedding`: turn queries and keys by cosines and sines as wide as a head."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from flash_attention.backends.composed.positional import counted
from flash_attention.bridge.constants import numbered
from flash_attention.bridge.parameters import EntryCell
from flash_attention.bridge.precision import fix_dtypes
from flash_attention.bridge.tensors import as_int32, compile_time, remembered, spec, tensor_spec
from flash_attention.call.checks import INTEGERS, check_dtype, check_int, check_range
from flash_attention.call.inputs import DTYPES, TensorSpec, fits
from flash_attention.call.layout import UNKNOWN
from flash_attention.call.paged import product
from flash_attention.call_cells import NumberCheck
from flash_attention.compat.ascend910 import Operator
from flash_attention.compat.mindspore_ops.operators import primitive_of


@ms.jit_class
class ApplyRotaryPosEmb(Operator):
    """`mindspore.ops.ApplyRotaryPosEmb`: x * cos + turned(x) * sin of query and key, in float32.

    Args:
        cos_format (int): 0 or 2: a component is turned with the component half a head away; 1 or 3: with its neighbour.

    Inputs:
        query, key (Tensor): (tokens, H) or (batch, tokens, H), each of its own H, a multiple of D.
        cos, sin (Tensor): (rows, D), float16, bfloat16 or float32: as many rows as tokens are a row for each token.
            More rows, and all rows of formats 0 and 1, are a table by position, and positions begin at 0 with each
            sequence.
        position_ids (Tensor): ints (sequences,), the lengths of the sequences. It counts with a table by position only.

    Outputs:
        The turned query and key.
    """

    def __init__(self, cos_format=0):
        super().__init__()
        self.cos_format = cos_format

    def __call__(self, query, key, cos, sin, position_ids):
        tensors = spec(query), spec(key), spec(cos), spec(sin), spec(position_ids)
        return _prepared(self.cos_format, tensors)(query, key, cos, sin, position_ids)


def apply_rotary_pos_emb_(query, key, cos, sin, position_ids, cos_format=0):
    """Compute `ApplyRotaryPosEmb`. The results are new tensors."""
    tensors = spec(query), spec(key), spec(cos), spec(sin), spec(position_ids)
    return _prepared(cos_format, tensors)(query, key, cos, sin, position_ids)


@compile_time
def _prepared(cos_format, specs):
    names = "query", "key", "cos", "sin", "position_ids"
    return _cell(cos_format, tuple(map(tensor_spec, names, specs)))


@remembered
def _cell(cos_format, specs) -> nn.Cell:
    query, key, cos, sin, lengths = specs
    check_int("cos_format", cos_format, 0, 3)
    for name, tensor in zip(("query", "key", "cos", "sin"), specs):
        check_dtype(name, tensor.dtype, DTYPES)
    check_dtype("position_ids", lengths.dtype, INTEGERS)
    if len(cos.shape) != 2 or cos.shape[1] == UNKNOWN or cos.shape[1] % 2 or sin.shape != cos.shape:
        raise ValueError(f"cos, sin: got shapes {cos.shape}, {sin.shape}, allowed is (rows, D) of both, D even")
    for name, tensor in (("query", query), ("key", key)):
        if len(tensor.shape) not in (2, 3) or tensor.shape[-1] % cos.shape[1] or tensor.shape[:-1] != query.shape[:-1]:
            raise ValueError(
                f"{name}: got shape {tensor.shape}, allowed are (tokens, H) and (batch, tokens, H), as many tokens in "
                f"query and key, with H a multiple of D = {cos.shape[1]}"
            )
    if len(lengths.shape) != 1:
        raise ValueError(f"position_ids: got shape {lengths.shape}, allowed is (sequences,)")
    return fix_dtypes(_Turn(query, cos, lengths, cos_format))


class _Turn(EntryCell):
    """Turn query and key by rows of tables."""

    def __init__(self, query: TensorSpec, cos: TensorSpec, lengths: TensorSpec, cos_format: int):
        super().__init__()
        self.turned = Turned(cos_format % 2 == 1)
        self.width, self.rows = cos.shape[1], None
        tokens = product(query.shape[:-1])
        if UNKNOWN in (tokens, cos.shape[0]):
            self.rows = _AnyRows(cos_format < 2)
        elif cos_format < 2 or cos.shape[0] != tokens:
            self.rows = _Positions(query, cos.shape[0], lengths)

    def construct(self, query, key, cos, sin, lengths):
        cos, sin = ops.cast(cos, mstype.float32), ops.cast(sin, mstype.float32)
        if self.rows is not None:
            places = self.rows(query, cos, lengths)
            cos, sin = self.gathered(cos, places), self.gathered(sin, places)
        shape = (-1, 1, self.width)
        cos, sin = ops.reshape(cos, shape), ops.reshape(sin, shape)
        return self.of(query, cos, sin), self.of(key, cos, sin)

    def gathered(self, table, places):
        """Return rows of a table, NaN where there is none."""
        last = table.shape[0] - 1
        rows = ops.gather(table, ops.minimum(ops.maximum(places, 0), last), 0)
        outside = ops.logical_or(places < 0, places > last)
        return ops.masked_fill(rows, ops.reshape(outside, (-1, 1)), float("nan"))

    def of(self, tensor, cos, sin):
        heads = ops.reshape(ops.cast(tensor, mstype.float32), (-1, tensor.shape[-1] // self.width, self.width))
        result = heads * cos + self.turned(heads) * sin
        return ops.cast(ops.reshape(result, tensor.shape), tensor.dtype)


class Turned(nn.Cell):
    """Turn each pair of components by a quarter: halves of the last axis are pairs, or neighbours."""

    def __init__(self, neighbours: bool):
        super().__init__()
        self.neighbours = neighbours

    def construct(self, x):
        if self.neighbours:
            pairs = ops.reshape(x, x.shape[:-1] + (-1, 2))
            return ops.reshape(ops.concat((-pairs[..., 1:], pairs[..., :1]), -1), x.shape)
        half = x.shape[-1] // 2
        return ops.concat((-x[..., half:], x[..., :half]), -1)


class _Positions(nn.Cell):
    """Give the position of each token in its sequence, of known shapes. Padded batches have every position."""

    def __init__(self, query: TensorSpec, rows: int, lengths: TensorSpec):
        super().__init__()
        self.tokens, self.table = product(query.shape[:-1]), rows
        self.padded = None
        if len(query.shape) == 3 and query.shape[1] > 1 and lengths.shape[0] == query.shape[0]:
            self.padded = Tensor(np.tile(np.arange(query.shape[1], dtype=np.int32), query.shape[0]))
            if rows < query.shape[1]:
                raise ValueError(
                    f"cos: got {rows} positions, allowed are at least {query.shape[1]}, one for each token"
                )
        looks = ms.get_context("device_target") == "CPU" and self.padded is None
        self.check = NumberCheck(self._check if looks else None)

    def _check(self, lengths):
        check_range("position_ids", lengths, self.table)
        if lengths.sum() != self.tokens:
            raise ValueError(
                f"position_ids: got {lengths.tolist()} beside a table by position, allowed are lengths of sequences "
                f"whose sum is the number of tokens, here {self.tokens}"
            )

    def construct(self, query, cos, lengths):
        if self.padded is not None:
            return self.padded
        self.check(lengths)
        return packed_positions(numbered(self.tokens), as_int32(lengths))


def packed_positions(token, lengths):
    """Return each token's position in its sequence, -1 if lengths and tokens do not fit."""
    ends = ops.cumsum(ops.cast(lengths, mstype.float32), 0)
    token = ops.cast(token, mstype.float32)
    starts = ops.cast(ops.reshape(token, (-1, 1)) >= ops.reshape(ends, (1, -1)), mstype.float32)
    begin = (starts * ops.reshape(ops.cast(lengths, mstype.float32), (1, -1))).sum(1)
    fits = ops.cast(ops.equal(ends[-1:], token[-1:] + 1), mstype.float32)
    return ops.cast((token - begin) * fits + fits - 1, mstype.int32)


class _AnyRows(nn.Cell):
    """Give each token's row of the tables in a graph for dynamic shapes."""

    def __init__(self, always_table: bool):
        super().__init__()
        self.always_table, self.shape = always_table, ops.TensorShape()

    def construct(self, query, cos, lengths):
        sizes, rows = ops.cast(self.shape(query), mstype.int32), ops.cast(self.shape(cos), mstype.int32)[:1]
        tokens = sizes[:1]
        token = counted(query.shape[0])
        if len(query.shape) == 3:
            tokens = sizes[:1] * sizes[1:2]
            token = counted(query.shape[0] * query.shape[1])
        places = packed_positions(token, as_int32(lengths))
        if len(query.shape) == 3:
            sequences = ops.cast(self.shape(lengths), mstype.int32)
            padded = ops.logical_and(ops.equal(sizes[:1], sequences), sizes[1:2] > 1)
            places = ops.select(padded, token % sizes[1:2], places)
        if not self.always_table:
            places = ops.select(ops.equal(rows, tokens), token, places)
        return places


def rotary_position_embedding(x, cos, sin, mode=0):
    """Compute `mindspore.ops.rotary_position_embedding`, in float32: x * cos + turned(x) * sin, with all gradients.

    Args:
        x (Tensor): rank 4, float16, bfloat16 or float32; its last axis is even.
        cos, sin (Tensor): rank 4, of one shape that broadcasts to x over its first three axes.
        mode (int): 0: a component is turned with the component half of the axis away; 1: with its neighbour.

    Returns:
        Tensor like x.

    Raises:
        TypeError, ValueError: an argument is not allowed.
    """
    return _embedding(mode, (spec(x), spec(cos), spec(sin)))(x, cos, sin)


RotaryPositionEmbedding = primitive_of("RotaryPositionEmbedding", rotary_position_embedding)


@compile_time
def _embedding(mode, specs):
    return _embedding_cell(mode, tuple(map(tensor_spec, ("x", "cos", "sin"), specs)))


@remembered
def _embedding_cell(mode, specs) -> nn.Cell:
    x, cos, sin = specs
    check_int("mode", mode, 0, 1)
    for name, tensor in zip(("x", "cos", "sin"), specs):
        check_dtype(name, tensor.dtype, DTYPES)
        if len(tensor.shape) != 4:
            raise ValueError(f"{name}: got shape {tensor.shape}, allowed is rank 4")
    if x.shape[3] == UNKNOWN or x.shape[3] % 2:
        raise ValueError(f"x: got shape {x.shape}, allowed is a last axis that is even and known")
    wrong = [one for one, size in zip(cos.shape[:3], x.shape[:3]) if one != 1 and not fits(one, size)]
    if wrong or sin.shape != cos.shape or cos.shape[3] != x.shape[3]:
        raise ValueError(
            f"cos, sin: got shapes {cos.shape}, {sin.shape}, allowed is one shape that broadcasts to x, {x.shape}, "
            "over its first three axes"
        )
    return fix_dtypes(_Embedding(mode == 1))


class _Embedding(EntryCell):
    """Turn one tensor."""

    def __init__(self, neighbours: bool):
        super().__init__()
        self.turned = Turned(neighbours)

    def construct(self, x, cos, sin):
        wide = ops.cast(x, mstype.float32)
        result = wide * ops.cast(cos, mstype.float32) + self.turned(wide) * ops.cast(sin, mstype.float32)
        return ops.cast(result, x.dtype)
