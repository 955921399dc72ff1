"""Put the TIK operators together as a MindSpore Cell. The Cell is the same for a device and for the emulator.

They differ in two points: where a primitive comes from, and who decides which scores dropout keeps.
"""

from __future__ import annotations

from typing import Callable

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from flash_attention.backends.tik import graph_integers
from flash_attention.backends.tik.constants import NOTHING_SEEN, Constants, MakePrimitive
from flash_attention.backends.tik.decode import DecodeKernels
from flash_attention.backends.tik.expanded import Expanded
from flash_attention.backends.tik.explicit_mask import ExplicitMask, with_mask
from flash_attention.backends.tik.unsplit import OwnParts, Redistributed, Unsplit
from flash_attention.bridge.constants import unfolded
from flash_attention.bridge.gradients import Differentiable, zeros_like
from flash_attention.bridge.parameters import Compiled
from flash_attention.bridge.versions import MORPH
from flash_attention.call import Call
from flash_attention.call.block_mask import known
from flash_attention.call.optional import OPTIONAL
from flash_attention.kernels.tik import describe, operators, signatures
from flash_attention.kernels.tik.common import segments
from flash_attention.kernels.tik.decode import schedule as decode_scheduler
from flash_attention.kernels.tik.layout import HIDDEN_BY_BIAS, KEEP_PADDING, SINK_LANES, TENSORS, placement
from flash_attention.kernels.tik.problem import Chip, KernelProblem, padded
from flash_attention.sharding.shard import TENSOR, Shard


class OperatorAttention(nn.Cell):
    """Attention on tensors in call.layout, BNSD or TH, with the meanings of `Backend.build`.

    Args:
        call: what to run.
        make_primitive: makes the primitive of a kernel.
        draw: a Cell that draws keep bits, draw(seed) -> uint8 in the order of the kernels, `layout.store_keep_bits`.
        chip: chip that the kernels are planned for.
        shard: see `Backend.build`.
    """

    def __init__(
        self,
        call: Call,
        make_primitive: MakePrimitive,
        draw: nn.Cell,
        chip: Chip,
        shard: Shard | None = None,
    ):
        super().__init__()
        problem = describe.kernel_problem(call, **chip._asdict(), layout=call.layout)
        # The decoding kernels have no strategies for sharded graphs. Otherwise they run if they can. The forward kernel
        # and the change of keys and values to FRACTAL_NZ before it would take more modelled time.
        decodes = shard is None and decode_scheduler.refuse(problem) is None
        self.slopes_place = call.place("alibi_slopes")
        if shard is not None and self.slopes_place is not None:
            raise ValueError(
                "alibi_slopes: given to the TIK operators with shards, allowed there are alibi=True with the standard "
                "slopes, and a bias"
            )
        if shard is not None and call.keep_bits:
            raise ValueError(
                "keep_bits: given to the TIK operators with shards, allowed there is dropout that every card draws"
            )
        tiles = known(call.block_mask_key).tiles if problem.keeps_tiles else None
        if shard is not None and tiles is not None:
            tiles = shard.part(tiles, shard.block_axes)
        given = problem.listed and tiles is None
        names = ("prefix",) * problem.prefixed + ("segment_ids", "kv_segment_ids", "block_mask")
        inputs = [one for one in OPTIONAL if given and one.name in names and one.has(call)]
        self.listed = tuple(call.place(one.name) for one in inputs)
        self.lists: nn.Cell | None = _ListData(problem) if given else None
        parts = None
        axes: tuple = ()
        if shard is not None:
            axes = tuple(shard.block_axes if one.name == "block_mask" else one.axes for one in inputs)
        if axes and not MORPH:
            self.lists = parts = OwnParts(tuple(one.shape(call) for one in inputs), axes, shard)
        self.core: nn.Cell = kernels(problem, make_primitive, self.slopes_place is not None, decodes, tiles, parts)
        self.mask_place, self.bias_place, self.sinks_place = map(call.place, ("mask", "bias", "sinks"))
        self.mask = self.bias = None
        self.explicit_mask = ExplicitMask(call, shard) if describe.makes_mask(call) else None
        shard = with_mask(shard, call)
        self.to_half = ops.Cast()
        if shard is not None and shard.mask_axes is not None:
            shard.glue(self.to_half, shard.mask_axes)
        self.arriving = self.arriving_bias = None
        if shard is not None:
            self.arriving = Redistributed(shard, TENSOR)
            self.arriving_bias = None if shard.bias_axes is None else Redistributed(shard, shard.bias_axes)
        if problem.mask == "per_key":
            self.mask = _PerKey(problem.call.mask_shape, False, shard, None if shard is None else shard.mask_axes)
        if problem.call.bias == "per_key":
            self.bias = _PerKey(call.bias_shape, True, shard, None if shard is None else shard.bias_axes)
        if shard is not None and MORPH:
            self.core, self.lists = Expanded(self.core, shard, problem, self.lists, axes), None
        self.decisions = call.place("keep_bits" if call.keep_bits else "seed")
        self.keep = _KeepOrder(problem) if call.keep_bits else draw
        self.sinks = SpreadSinks(call.batch, shard) if call.sinks else None
        self.seq_q = call.seq_q
        self.nothing = Tensor(np.zeros(1, np.float16))  # a graph's gradient function takes no None

    def construct(self, query, key, value, inputs):
        hidden, bias, keep, spread = self.nothing, self.nothing, self.nothing, self.nothing
        if self.arriving is not None:
            query, key, value = self.arriving(query), self.arriving(key), self.arriving(value)
        if self.explicit_mask is not None:
            hidden = ops.stop_gradient(self.to_half(self.explicit_mask(inputs), mstype.float16))
        elif self.mask_place is not None:
            hidden = self.to_half(inputs[self.mask_place], mstype.float16)
        if self.mask is not None:
            hidden = self.mask(hidden)
        if self.bias_place is not None:
            bias = inputs[self.bias_place]
            if self.arriving_bias is not None:
                bias = self.arriving_bias(bias)
            if self.bias is not None:
                bias = self.bias(bias)
        if self.decisions is not None:
            keep = ops.stop_gradient(self.keep(inputs[self.decisions]))
        if self.sinks_place is not None:
            spread = self.sinks(inputs[self.sinks_place])
        slopes = self.nothing
        if self.slopes_place is not None:
            slopes = ops.reshape(inputs[self.slopes_place], (-1,))
        others = (hidden, bias, keep, spread, slopes)
        data = ()
        for place in self.listed:
            data = data + (unfolded(inputs[place], query) if self.lists is not None else inputs[place],)
        others = others + (self.lists(*data) if self.lists is not None else data)
        output, logsumexp = self.core(query, key, value, others)
        logsumexp = logsumexp[:, :, : self.seq_q]
        return output, ops.masked_fill(logsumexp, logsumexp < NOTHING_SEEN, -float("inf"))


def kernels(
    problem: KernelProblem,
    make_primitive: MakePrimitive,
    given_slopes: bool,
    decodes: bool = False,
    tiles: np.ndarray | None = None,
    parts: OwnParts | None = None,
) -> Differentiable:
    """Return the forward kernel with the backward kernels as its gradient. If it decodes, the two decoding kernels are
    the forward pass.

        output, logsumexp = cell(query, key, value, (mask, bias, keep, sinks, slopes))

    query (B, H, Sq, D), key (B, Hkv, Sk, D), value (B, Hkv, Sk, Dv), or matrices of tokens with layout TH; mask, bias,
    keep and sinks as the kernels take them, or anything if the call has none; slopes (H,) or (B * H,) float32, or
    anything if they are not data (given_slopes). logsumexp (B, H, Sq padded).

    With packed sequences ends_q, ends_k and prefix of operators.work_tables follow, and the rows of logsumexp are the
    stored ones. If the kernels visit the tiles of a block mask, the mask follows, see operators.list_table. It does not
    if it is known: `tiles`. With segment ids the results of _ListData follow, or with `parts` its inputs.
    """
    shapes = {name: placement(problem, name).shape for name in TENSORS}
    shapes["d_bias"] = (*problem.bias_planes, problem.call.seq_q, problem.call.seq_k)

    def made(stage: str) -> tuple:
        operator, signature = signatures.arguments(stage, problem)
        return make_primitive(operator, signature, problem, shapes), Constants(problem, signature, given_slopes)

    def backward() -> nn.Cell:
        lists = None if parts is None else _ListData(problem)
        return Compiled(_Backward(problem, tiles, lists, *map(made, operators.stages(problem)[1:])))

    forward: nn.Cell
    if decodes:
        forward = _Decoding(problem, make_primitive, given_slopes)
    else:
        forward = _Forward(problem, tiles, made("forward"), parts)
    listed = 0 if not problem.listed or tiles is not None else 3 if problem.compares else 1
    if parts is not None:
        listed = len(parts.shapes)
    count = 8 if problem.sequences else 5 + listed
    return Differentiable(Compiled(forward), backward, "tik and emulator", count=count)


class _Decoding(nn.Cell):
    def __init__(self, problem: KernelProblem, make_primitive: MakePrimitive, given_slopes: bool):
        super().__init__()
        self.kernels = DecodeKernels(problem, make_primitive, given_slopes)
        self.has_sinks = problem.call.sinks

    def construct(self, query, key, value, mask, bias, keep, sinks, slopes):
        return self.kernels(query, key, value, sinks[0, :, 0] if self.has_sinks else sinks, slopes)


class _Features(nn.Cell):
    """Select the optional inputs that the call has. A graph takes no starred tuple, see `bridge`."""

    def __init__(self, problem: KernelProblem):
        super().__init__()
        self.masked, self.biased, self.dropped = (
            problem.mask != "none",
            problem.call.bias_shape is not None,
            problem.call.dropout_threshold > 0,
        )

    def construct(self, mask, bias, keep):
        result = ()
        if self.masked:
            result = result + (mask,)
        if self.biased:
            result = result + (bias,)
        if self.dropped:
            result = result + (keep,)
        return result


class _ListData(nn.Cell):
    """Make the data of lists: tiles of a block mask, or states of tiles and float16 numbers of tokens.

    See `segments`. Factors of a stage come later. Inputs are what the call has of prefixes, ids of queries and keys,
    and a block mask.

    Args:
        parts: the inputs come from there, in a graph of which MindSpore splits every operation.
    """

    def __init__(self, problem: KernelProblem, parts: OwnParts | None = None):
        super().__init__()
        self.tokens = problem.prefixed + 2 * problem.call.segments
        self.casts = parts is None
        self.make: tuple = ()
        if self.tokens:
            self.make = (_arithmetic(lambda xp: segments.numbers(xp, problem), parts and parts.shapes, parts),)
        self.narrow = _unsplit(ops.Cast(), parts, 3), _unsplit(ops.Cast(), parts, 3)

    def construct(self, *given):
        if self.casts and len(given) > self.tokens:
            given = given[: self.tokens] + (ops.cast(given[self.tokens], mstype.int32),)
        if self.tokens == 0:
            return (ops.stop_gradient(given[0]),)
        states, queries, keys = self.make[0](*given)
        queries, keys = self.narrow[0](queries, mstype.float16), self.narrow[1](keys, mstype.float16)
        return ops.stop_gradient(states), ops.stop_gradient(queries), ops.stop_gradient(keys)


class _ListInputs(nn.Cell):
    """Give the inputs of a stage that lists tiles: numbers of segment ids, if there are some, and the work table.

    Args:
        lists: makes what the table and the numbers are made of, if they are not given.
        parts: see `_ListData`.
    """

    def __init__(
        self,
        problem: KernelProblem,
        stage: str,
        tiles: np.ndarray | None,
        lists: nn.Cell | None,
        parts: OwnParts | None = None,
    ):
        super().__init__()
        self.lists, self.table, self.factors = lists, _ListTable(problem, stage, tiles, parts), None
        self.times = _unsplit(ops.Mul(), parts, 3, 3), _unsplit(ops.Mul(), parts, 3, 3)
        if problem.compares:
            self.factors = tuple(map(Tensor, segments.factors(problem, stage)))

    def construct(self, *data):
        if self.lists is not None:
            data = self.lists(*data)
        if self.factors is None:
            return (self.table(*data),)
        numbers = self.times[0](data[1], self.factors[0]), self.times[1](data[2], self.factors[1])
        return numbers + (self.table(data[0]),)


def _arithmetic(make: Callable, shapes: tuple, parts: OwnParts | None) -> Callable:
    """Return make(xp) for tensors of a graph, or for the parts of tensors."""
    return make(graph_integers) if parts is None else Unsplit(make, shapes, parts.shard)


def _unsplit(primitive: ops.Primitive, parts: OwnParts | None, *ranks: int) -> ops.Primitive:
    """Return a primitive that splits no input, for parts of tensors. ranks: of the inputs."""
    return primitive if parts is None else parts.shard.glue(primitive, *((None,) * rank for rank in ranks))


class _ListTable(nn.Cell):
    """Give the work table of a stage, see operators.list_table. It is a constant if the block mask is: `tiles`."""

    def __init__(self, problem: KernelProblem, stage: str, tiles: np.ndarray | None, parts: OwnParts | None):
        super().__init__()
        self.table = self.make = None
        if tiles is not None:
            self.table = Tensor(operators.known_table(problem, stage, tiles))
        else:
            shapes = (problem.call.block_mask_shape,)
            self.make = (_arithmetic(lambda xp: operators.list_table(xp, problem, stage), shapes, parts),)

    def construct(self, *data):
        return self.make[0](*data) if self.table is None else self.table


class _Forward(nn.Cell):
    def __init__(self, problem: KernelProblem, tiles: np.ndarray | None, forward: tuple, parts: OwnParts | None):
        super().__init__()
        self.forward, self.constants = forward
        self.features = _Features(problem)
        self.has_sinks, self.packed, self.listed = problem.call.sinks, problem.sequences > 0, problem.listed
        # Wrapped: an attribute of a Cell that is a function counts as its method.
        if self.packed:
            self.tables = (operators.work_tables(graph_integers, problem, ("forward", "blocks")),)
        if self.listed:
            lists = None if parts is None else _ListData(problem, parts)
            self.list_inputs = _ListInputs(problem, "forward", tiles, lists, parts)

    def construct(self, query, key, value, mask, bias, keep, sinks, slopes, *data):
        features = self.features(mask, bias, keep)
        if self.has_sinks:
            features = features + (sinks,)
        if self.packed:
            work, blocks = self.tables[0](*data)
            features = features + (blocks, work)
        if self.listed:
            features = features + self.list_inputs(*data)
        return self.forward(query, key, value, *features, *self.constants(slopes))


class _Backward(nn.Cell):
    """Run the kernel of the rows, then the main kernel. A last kernel follows if the main kernel does not give
    d_query.
    """

    def __init__(
        self,
        problem: KernelProblem,
        tiles: np.ndarray | None,
        lists: nn.Cell | None,
        rows: tuple,
        main: tuple,
        *finish: tuple,
    ):
        call = problem.call
        super().__init__()
        self.rows, self.rows_constants = rows
        self.main, self.main_constants = main
        self.finish = finish[0][0] if finish else None
        self.features = _Features(problem)
        self.has_sinks, self.packed, self.listed = call.sinks, problem.sequences > 0, problem.listed
        if self.packed:
            self.tables = (operators.work_tables(graph_integers, problem, ("grad", "blocks")),)
        if self.listed:
            self.list_inputs = _ListInputs(problem, "grad", tiles, lists)
        self.return_lse, self.bias_grad = call.return_lse, problem.bias_grad
        self.last = 4 if self.bias_grad else 3  # no negative index, see flash_attention.bridge
        self.bias_sums = _BiasSums(problem) if self.bias_grad and call.bias == "per_key" else None

    def construct(
        self, query, key, value, output, logsumexp, d_output, d_logsumexp,
        mask, bias, keep, sinks, slopes, *data,
    ):  # fmt: skip
        # A row without visible keys has no logsumexp, and its share of the gradient is zero.
        given = (output, d_output, logsumexp)
        if self.return_lse:
            given = given + (d_logsumexp,)
        if self.has_sinks:
            given = given + (sinks,)
        features, blocks = self.features(mask, bias, keep), ()
        if self.packed:
            work, table = self.tables[0](*data)
            blocks, features = (table,), features + (work,)
        if self.listed:
            features = features + self.list_inputs(*data)
        rows = self.rows(*given, *blocks, *self.rows_constants(slopes))
        gradients = self.main(query, key, value, rows[1], rows[0], *features, *self.main_constants(slopes))
        if self.finish is None:
            d_query = gradients[self.last]
        else:
            d_query = self.finish(gradients[2], *blocks)
            d_query = d_query[0] if isinstance(d_query, tuple) else d_query
        d_bias = ops.zeros_like(bias)
        if self.bias_grad:
            sums = gradients[3] if self.bias_sums is None else self.bias_sums(gradients[3])
            d_bias = ops.cast(sums, mstype.float16)
        d_sinks = ops.zeros_like(sinks)
        if self.has_sinks:
            by_head = ops.ReduceSum(keep_dims=True)(rows[2], 2)
            d_sinks = ops.concat((by_head, d_sinks[:, :, 1:]), 2)
        d_others = (ops.zeros_like(mask), d_bias, ops.zeros_like(keep), d_sinks, ops.zeros_like(slopes))
        return (d_query, gradients[0], gradients[1]) + d_others + zeros_like(data)


class SpreadSinks(nn.Cell):
    """Repeat each of the sinks (H,) for the kernels: float32 (batch, H, SINK_LANES)."""

    def __init__(self, batch: int, shard: Shard | None):
        super().__init__()
        # By batch item too: shards then have the same devices in the same places as shards of all other tensors.
        lanes, axes = (batch, 1, SINK_LANES), ("dp", None, None)
        self.ones = Tensor(np.ones(lanes if shard is None else shard.whole(lanes, axes), np.float32))
        self.times = ops.Mul()
        if shard is not None:
            shard.glue(self.times, (None, "mp", None), axes)

    def construct(self, sinks):
        return self.times(ops.reshape(sinks, (1, -1, 1)), self.ones)


class _PerKey(nn.Cell):
    """Pad a mask or bias per key for the kernels. Its shape is (B or 1, H or 1, 1, Sk).

    A bias becomes two planes, its values and its hidden keys: (2, B or 1, H or 1, 1, Sk padded). If a bias is -inf
    (-65504 stands for it on a chip without infinities), the value is 0, and the second plane is HIDDEN_BY_BIAS.

    Args:
        shape: on one device.
        axes: how a shard splits it.
    """

    def __init__(self, shape: tuple, hides: bool, shard: Shard | None, axes: tuple | None):
        super().__init__()
        *rows, seq_k = shape if shard is None else shard.whole(shape, axes)
        self.pads, self.hides = padded(seq_k) > seq_k, hides
        self.padding = Tensor(np.zeros((*rows, padded(seq_k) - seq_k), np.float16)) if self.pads else None
        self.zeros = Tensor(np.zeros((*rows, padded(seq_k)), np.float16))
        self.concat, self.at_most, self.select = ops.Concat(3), ops.LessEqual(), ops.Select()
        self.times, self.stack = ops.Mul(), ops.Stack(0)
        if shard is not None:
            shard.glue(self.concat, axes, axes)
            shard.glue(self.at_most, axes, ())
            shard.glue(self.select, axes, axes, axes)
            shard.glue(self.times, axes, ())
            shard.glue(self.stack, axes, axes)

    def construct(self, tensor):
        if self.pads:
            tensor = self.concat((tensor, self.padding))
        if self.hides:
            hidden = self.at_most(tensor, -65504.0)
            values = self.select(hidden, self.zeros, tensor)
            tensor = self.stack((values, self.times(ops.cast(hidden, mstype.float16), HIDDEN_BY_BIAS)))
        return tensor


class _KeepOrder(nn.Cell):
    """Bring keep bits into the order of the kernels. It is layout.store_keep_bits in MindSpore operations."""

    def __init__(self, call: KernelProblem):
        super().__init__()
        p = call
        self.rows = padded(p.call.seq_q) - p.call.seq_q
        wide = padded(p.call.seq_k) // 8
        self.bytes = wide - -(-p.call.seq_k // 8)
        # Constants, see flash_attention.bridge.constants.
        self.beside = (
            Tensor(np.zeros((p.call.batch, p.call.heads, p.call.seq_q, self.bytes), np.uint8)) if self.bytes else None
        )
        self.below = Tensor(np.zeros((p.call.batch, p.call.heads, self.rows, wide), np.uint8)) if self.rows else None
        self.end = Tensor(np.zeros(KEEP_PADDING, np.uint8))

    def construct(self, bits):
        batch, heads, seq_q, _ = bits.shape
        if self.bytes > 0:
            bits = ops.concat((bits, self.beside), 3)
        if self.rows > 0:
            bits = ops.concat((bits, self.below), 2)
        words = ops.reshape(bits, (batch, heads, seq_q + self.rows, -1, 2))
        return ops.concat((ops.reshape(ops.transpose(words, (0, 1, 3, 2, 4)), (-1,)), self.end), 0)


class _BiasSums(nn.Cell):
    """Compute the gradient of a bias per key, in the form of _PerKey. The main kernel stores sums per query head."""

    def __init__(self, call: KernelProblem):
        super().__init__()
        p = call
        self.shape = (p.call.batch, p.call.kv_heads, -1, padded(p.call.seq_k), 16)
        self.heads = (p.call.batch, p.call.kv_heads, -1, padded(p.call.seq_k))
        self.all = (p.call.batch, p.call.heads, padded(p.call.seq_k))
        self.group = p.call.group
        self.given = (2, *p.bias_planes, 1, padded(p.call.seq_k))
        self.axes = tuple(
            axis
            for axis, (size, full) in enumerate(zip(p.bias_planes, (p.call.batch, p.call.heads)))
            if size == 1 and full > 1
        )

    def construct(self, sums):
        by_head = ops.reshape(ops.transpose(ops.reshape(sums, self.shape), (0, 1, 2, 4, 3)), self.heads)
        rows = ops.reshape(by_head[:, :, : self.group], self.all)
        if len(self.axes) > 0:
            rows = ops.ReduceSum(keep_dims=True)(rows, self.axes)
        return ops.reshape(ops.concat((rows, ops.zeros_like(rows)), 0), self.given)
