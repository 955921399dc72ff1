"""Inputs of a sharded layer that arrive in other layouts: card_layouts.py DP MP CASE...

Prints card, case, verdict and detail: gradients compared with the float64 reference.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace

import mindspore as ms
import numpy as np
from flash_attention import BlockMask, FlashAttention, reference
from flash_attention.call import AttentionRules, Call
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from mindspore.communication import get_rank, init

from tests.train.flash_attention.st.support.card_program import on_the_card, report

BATCH, HEADS, SEQ, WIDTH = 4, 4, 136, 16
SHAPE = BATCH, HEADS, SEQ, WIDTH
SHAPES = {"query": SHAPE, "key": SHAPE, "value": SHAPE, "bias": (BATCH, HEADS, 1, SEQ), "sinks": (HEADS,)}
DP, MP = map(int, sys.argv[1:3])
CARDS = DP * MP
PREFIX = np.array([6, 0, 70, 136], np.int32)
# Tiles of 64 of each batch item and head.
TILES = (np.random.default_rng(3).random((BATCH, HEADS, 3, 3)) < 0.5).astype(np.uint8)


def split(layout, name, shape):
    """Return the number of parts into which a layout cuts each axis of an input."""
    ones = (1,) * (len(shape) - 1)
    if layout in ("whole", "cast"):
        return (1, *ones)
    if layout == "last":
        return (*ones, CARDS)
    if layout == "turned":  # the parts that the layer wants, on devices in another order
        return (MP, DP, 1, 1)
    if len(shape) == 1:
        return (MP,) if name == "sinks" else (DP,)
    if name in ("mask", "segments"):
        return (DP, *ones)
    return (DP, MP, 1, 1) if len(shape) == 4 else (DP, 1, MP)


@dataclass(frozen=True)
class Case:
    """Name layouts by input. Inputs without a name arrive as "wanted".

    "none" is an operation without strategy, "cast" a Cast without strategy behind a tensor that is not split. `split`
    defines the other layouts.

    Attributes:
        mask: dtype and rank; None: no mask.
        prefix: a causal layer with prefixes, which the network gets in place of segments, or has beside them.
        tiles: the layer has a block mask.
        given_tiles: the block mask is data, which the network gets in place of the mask.
    """

    layouts: dict = field(default_factory=dict)
    mask: tuple | None = None
    inputs: tuple = ("query", "key", "value")
    segments: bool = False
    prefix: bool = False
    tiles: bool = False
    given_tiles: bool = False
    layers: int = 1
    input_layout: str = "BNSD"
    recompute: bool = False
    full_batch: bool = True
    optimizer: bool = False


MASK = "uint8", 4
EVERY = (*SHAPES,)
CASES = {
    **{name: Case({name: "none"}) for name in ("query", "key", "value", "output")},
    "last": Case({"query": "last", "key": "last", "value": "last", "output": "last"}, MASK),
    "turned": Case({"query": "turned", "key": "turned", "value": "turned", "output": "turned"}),
    "mask": Case({"mask": "none"}, MASK, layers=2),
    "mask-whole": Case({"mask": "whole"}, MASK, layers=2),
    "mask-last": Case({"mask": "last"}, ("bool_", 4), layers=2),
    "mask-rank-3": Case({"mask": "none"}, ("uint8", 3)),
    "mask-float": Case({"mask": "none"}, ("float16", 3), layers=2),
    "bias-sinks": Case({"bias": "none", "sinks": "none"}, None, EVERY),
    "bias-last": Case({"bias": "last", "sinks": "whole"}, MASK, EVERY),
    "segments": Case({"segments": "none", "query": "none"}, MASK, segments=True, layers=2),
    "BSH": Case({"query": "none", "key": "none", "value": "none", "output": "none"}, MASK, input_layout="BSH"),
    "block-mask": Case({"query": "none"}, tiles=True),
    "block-mask-data": Case({"query": "none"}, tiles=True, given_tiles=True, layers=2),
    "block-mask-ids": Case({"query": "none"}, tiles=True, given_tiles=True, segments=True),
    "all-lists": Case({"prefix": "none"}, tiles=True, given_tiles=True, segments=True, prefix=True),
    "prefix": Case({"prefix": "none", "query": "none"}, prefix=True, layers=2),
    "prefix-whole": Case({"prefix": "whole"}, MASK, prefix=True),
    "casts": Case(dict.fromkeys((*EVERY, "mask"), "cast"), MASK, EVERY, layers=2),
    "everything": Case(
        dict.fromkeys((*EVERY, "mask", "segments", "output"), "none"), MASK, EVERY, segments=True, layers=2
    ),
}
CASES |= {
    "recompute": replace(CASES["everything"], recompute=True),
    "split-batch": replace(CASES["everything"], full_batch=False),
    "optimizer": replace(CASES["everything"], optimizer=True),
}


class Arrives(nn.Cell):
    """Hand on a tensor, doubled, in some layout."""

    def __init__(self, case, name, shape):
        super().__init__()
        layout = case.layouts.get(name, "wanted")
        self.turned, self.twice, self.turn = layout == "turned", ops.Add(), ops.Transpose()
        self.casts, self.widen, self.narrow = layout == "cast" and name != "mask", ops.Cast(), ops.Cast()
        if layout != "none":
            parts = split(layout, name, shape)
            self.twice.shard((parts, parts))
            if self.turned:
                self.turn.shard((parts,))

    def construct(self, tensor):
        if self.casts:
            wide = self.widen(tensor, ms.float32)
            return self.narrow(self.twice(wide, wide), tensor.dtype)
        if self.turned:  # as many heads as batch items
            return self.turn(self.twice(tensor, tensor), (1, 0, 2, 3))
        return self.twice(tensor, tensor)


class Network(nn.Cell):
    """Return the loss of layers that share all inputs but query.

    The first layer gets the given query, each other layer the output of the layer before.
    """

    def __init__(self, case, data, weights):
        super().__init__()
        shape = laid_out(case, weights).shape
        self.tensors = ParameterTuple(
            tuple(Parameter(Tensor(laid_out(case, data[name]) / -2), name=name) for name in case.inputs)
        )
        self.negate = [
            ops.Neg().shard((split("whole", name, one.shape),)) for name, one in zip(case.inputs, self.tensors)
        ]
        self.arrive = nn.CellList([Arrives(case, name, one.shape) for name, one in zip(case.inputs, self.tensors)])
        self.more = len(case.inputs) > 3
        self.masked, self.segments, self.prefix = case.mask is not None, case.segments, case.prefix
        if case.mask is not None:
            self.dtype = getattr(ms, case.mask[0])
            self.arrive_mask = Arrives(case, "mask", mask_shape(case))
            self.cast = ops.Cast()
            if case.layouts.get("mask", "wanted") not in ("none", "cast"):
                self.cast.shard((split(case.layouts.get("mask", "wanted"), "mask", mask_shape(case)),))
        self.arrive_segments = Arrives(case, "segments", (BATCH, SEQ))
        self.arrive_prefix, self.own_prefix = Arrives(case, "prefix", (BATCH,)), Tensor(PREFIX // 2)
        options = {"alibi": self.more, "causal": case.prefix, "input_layout": case.input_layout, "backend": "tik"}
        self.given_tiles = case.given_tiles
        if case.tiles and not case.given_tiles:
            options["block_mask"] = BlockMask(TILES, tile=64)
        self.layers = nn.CellList([FlashAttention(WIDTH, dp=DP, mp=MP, **options) for _ in range(case.layers)])
        if case.recompute:
            for layer in self.layers:
                layer.recompute()
        self.arrive_output = Arrives(case, "output", shape)
        self.weights, self.times, self.sum = Tensor(laid_out(case, weights) / 2), ops.Mul(), ops.ReduceSum()
        whole = split("whole", "", shape)
        self.times.shard((whole, whole))
        self.sum.shard((whole,))

    def construct(self, mask, segments):
        tensors = ()
        for negate, arrive, tensor in zip(self.negate, self.arrive, self.tensors):
            tensors = tensors + (arrive(negate(tensor)),)
        hidden, bias, sinks, ids, prefix, tiles = None, None, None, None, None, None
        if self.given_tiles:
            tiles = mask
        if self.masked:
            hidden = self.cast(self.arrive_mask(mask), self.dtype)
        if self.more:
            bias, sinks = tensors[3], tensors[4]
        if self.segments:
            ids = self.arrive_segments(segments)
        if self.prefix:
            prefix = self.arrive_prefix(self.own_prefix if self.segments else segments)
        output = tensors[0]
        for layer in self.layers:
            output = layer(output, tensors[1], tensors[2], hidden, bias, sinks, prefix, ids, None, None, tiles)
        return self.sum(self.times(self.arrive_output(output), self.weights))


class Gradients(nn.Cell):
    """Loss and gradients of the parameters of a network."""

    def __init__(self, network):
        super().__init__()
        self.network, self.parameters = network, network.tensors
        self.of = ops.GradOperation(get_by_list=True)

    def construct(self, mask, segments):
        return self.network(mask, segments), self.of(self.network, self.parameters)(mask, segments)


def mask_shape(case):
    """Return the shape of the mask: of one head."""
    return (BATCH, 1, SEQ, SEQ) if case.mask[1] == 4 else (BATCH, SEQ, SEQ)


def laid_out(case, array):
    """Bring a (batch, heads, seq, width) tensor into the layer's layout; return others unchanged."""
    if case.input_layout == "BSH" and array.shape == SHAPE:
        return np.ascontiguousarray(array.transpose(0, 2, 1, 3)).reshape(BATCH, SEQ, -1)
    return array


def turned(case, name, array):
    """Turn a parameter's array into the array that the layer sees, or back."""
    return array.swapaxes(0, 1) if case.layouts.get(name) == "turned" else array


def expected(case, data, weights, mask, segments, tiles):
    """Return the gradients of the inputs in float64."""
    given = {name: turned(case, name, data[name]).astype(float) for name in case.inputs}
    biased = "bias" in given
    call = Call(
        *SHAPE[:2], SEQ, SEQ, WIDTH, mask_shape=mask_shape(replace(case, mask=("", 4))) if case.mask else None,
        bias_shape=SHAPES["bias"] if biased else None, bias_dtype="float16" if biased else None,
        mask_dtype="uint8" if case.mask else None, sinks=biased, segments=case.segments, prefix=case.prefix,
        block_mask_shape=TILES.shape if case.tiles else None, block_mask_tile=64 if case.tiles else 0,
        rules=AttentionRules(causal=case.prefix),
    )  # fmt: skip
    more = {name: given[name] for name in case.inputs[3:]} | ({"mask": mask} if case.mask else {})
    if case.segments:
        more |= {"segment_ids": segments, "kv_segment_ids": segments}
    if case.prefix:
        more["prefix"] = PREFIX if case.segments else segments
    if case.tiles:
        more["block_mask"] = tiles
    queries = [given["query"]]
    for _ in range(case.layers):
        queries.append(reference.truth(call, queries[-1], given["key"], given["value"], **more).output)
    found = dict.fromkeys(case.inputs, 0)
    d_output = turned(case, "output", weights).astype(float)
    for query in queries[-2::-1]:
        one = reference.truth(call, query, given["key"], given["value"], d_output=d_output, **more).named()
        d_output = one["d_query"]
        for name in case.inputs[1:]:
            found[name] = found[name] + one[f"d_{name}"]
    found["query"] = d_output
    return {name: turned(case, name, array) for name, array in found.items()}


def context(case):
    """Set MindSpore's parallel context for the case."""
    ms.reset_auto_parallel_context()
    ms.set_auto_parallel_context(
        parallel_mode="semi_auto_parallel", device_num=CARDS, full_batch=case.full_batch,
        enable_parallel_optimizer=case.optimizer, parallel_optimizer_config={"parallel_optimizer_threshold": 0},
    )  # fmt: skip


def check(name):
    """Check a case."""
    case, rank = CASES[name], get_rank()
    random = np.random.default_rng(0)
    data = {name: random.standard_normal(shape).astype(np.float16) for name, shape in SHAPES.items()}
    data["sinks"] = data["sinks"].astype(np.float32)
    weights = random.standard_normal(SHAPE).astype(np.float16)
    mask = (random.random((BATCH, 1, SEQ, SEQ)) < 0.3).astype(np.float16)
    segments = np.sort(random.integers(0, 6, (BATCH, SEQ))).astype(np.int32)
    if case.prefix and not case.segments:
        segments = PREFIX
    mine = slice(None) if case.full_batch else slice(rank * BATCH // CARDS, (rank + 1) * BATCH // CARDS)

    def inputs(tiles):
        given_mask = mask.reshape(mask_shape(case)) if case.mask else tiles if case.given_tiles else mask
        given_ids = segments // 2 if case.prefix and not case.segments else segments  # which arrive doubled
        return Tensor(given_mask[mine]), Tensor(given_ids[mine])

    if case.optimizer:
        shared, alone = (losses(one, data, weights, inputs(TILES)) for one in (case, replace(case, optimizer=False)))
        np.testing.assert_allclose(shared, alone, rtol=1e-3)
        return
    context(case)
    network, wrong = Gradients(Network(case, data, weights).set_train()), []
    for call in range(2):  # the second has the data of other batch items
        order = np.arange(BATCH)[::-1] if call else np.arange(BATCH)
        tiles = TILES[order] if case.given_tiles else TILES
        mask, segments = mask[order], segments[order]
        _, gradients = network(*inputs(tiles))
        for (name, right), found in zip(expected(case, data, weights, mask, segments, tiles).items(), gradients):
            right = laid_out(case, right)
            error = np.abs(found.asnumpy() / -2 - right).max() / np.abs(right).max()
            if not error < 0.01:
                wrong.append(f"{name}, call {call}: {error:.3f}")
    assert not wrong, "; ".join(wrong)


def losses(case, data, weights, inputs):
    """Return the losses of three steps."""
    context(case)
    network = Network(case, data, weights)
    optimizer = nn.AdamWeightDecay(network.trainable_params(), 1e-2, eps=1e-3)
    step = nn.TrainOneStepCell(network, optimizer).set_train()
    return [float(step(*inputs).asnumpy()) for _ in range(3)]


if __name__ == "__main__":
    on_the_card("graph")
    init()
    report(sys.argv[3:], check, get_rank())
