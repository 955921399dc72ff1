"""Test GatherAttention without communication: in one process, what each of several computes."""

from dataclasses import replace

import mindspore as ms
import numpy as np
import pytest
from flash_attention import BlockMask, FlashAttention, reference
from flash_attention.context_parallel import GatherAttention, SequenceSplit, gather
from mindspore import Tensor, nn, ops

from tests.train.flash_attention.support.arrays import draw
from tests.train.flash_attention.support.cases import Case
from tests.train.flash_attention.support.cells import Gradients, with_gradients
from tests.train.flash_attention.support.modes import in_mode

WORLD, SEQ = 2, 80


def whole(**fields) -> Case:
    """Return attention over the whole sequence."""
    sizes = {"batch": 2, "heads": 4, "kv_heads": 2, "seq_q": SEQ, "seq_k": SEQ, "head_dim": 16, "dtype": "float32"}
    return Case(**{**sizes, "tiling": "sparse_64", **fields})


CAUSAL = {"mask": "causal"}
#: Float16 goes to the operators in TIK; 16 queries and fewer to the ones for decoding.
CASES = {
    "plain": whole(),
    "causal": whole(**CAUSAL),
    "sinks": whole(sinks=True, value_dim=40, softcap=1.5, **CAUSAL),
    "alibi": whole(alibi="computed"),
    "window": whole(window=(20, 9)),
    "window-alibi": whole(window=(30, -1), alibi="computed", **CAUSAL),
    "blocks": whole(blocks=(0, 0), seq_q=200, seq_k=200),
    "prefix": whole(prefix=True, **CAUSAL),
    "documents": whole(segments="documents", prefix=True, sinks=True, **CAUSAL),
    "tiles": whole(block_mask="all", seq_q=256, seq_k=256),
    "tiles-documents": whole(block_mask="heads", segments="documents", seq_q=512, seq_k=512, tile=128, **CAUSAL),
    "short": whole(seq_q=24, seq_k=24, window=(9, 4)),
}
_NOT_TAKEN = "causal_alignment", "dropout_rate"


def layer_of(case: Case, rank: int, order: str, backend: str, monkeypatch) -> GatherAttention:
    monkeypatch.setattr(gather, "processes", lambda: (rank, WORLD))
    rules = {name: value for name, value in case.options().items() if name not in _NOT_TAKEN}
    alibi = case.alibi == "computed"
    return GatherAttention(case.head_dim, order=order, backend=backend, alibi=alibi, **rules)


class OfAll(nn.Cell):
    """The attention of a process that has the keys and values of all."""

    def __init__(self, layer, case: Case, given: dict, tokens: int):
        super().__init__()
        self.layer, self.sizes, self.dtype = layer, (tokens, case.tile), getattr(ms, case.dtype)
        self.sinks, self.prefix, self.ids, self.tiles = (
            None if given[name] is None else Tensor(given[name])
            for name in ("sinks", "prefix", "segment_ids", "block_mask")
        )

    def construct(self, query, key, value):
        given = self.sinks, self.prefix, self.ids, self.tiles
        return self.layer.attend_to_all(query, key, value, *given, self.sizes, self.dtype)


def found(case: Case, order: str, backend: str, monkeypatch) -> reference.Attention:
    """Return the results of all processes as results of the whole sequence."""
    inputs, split = case.inputs(), SequenceSplit(WORLD, order)
    given = {**inputs.optional(), "sinks": inputs.sinks}
    outputs, d_queries, d_others = [], [], []
    for rank in range(WORLD):
        run = OfAll(layer_of(case, rank, order, backend, monkeypatch), case, given, split.chunk_length(case.seq_q))
        query, d_output = (split.split(array, rank, 2) for array in (inputs.query, inputs.d_output))
        tensors = [Tensor(array, getattr(ms, case.dtype)) for array in (query, inputs.key, inputs.value, d_output)]
        output, d_query, *others = (one.astype(ms.float32).asnumpy() for one in with_gradients(run, *tensors))
        outputs.append(output)
        d_queries.append(d_query)
        d_others.append(others)
    joined = (split.join(parts, 2) for parts in (outputs, d_queries))
    return reference.Attention(next(joined), None, next(joined), *map(sum, zip(*d_others)))


def check(case: Case, actual: reference.Attention) -> None:
    inputs = case.inputs()
    tensors = inputs.query, inputs.key, inputs.value
    exact, low = (
        run(case.call, *tensors, d_output=inputs.d_output, **inputs.optional())
        for run in (reference.truth, reference.baseline)
    )
    errors = reference.compare(actual, exact, low)
    assert len(errors) == 4 and [str(error) for error in errors if not error.ok] == []


@pytest.mark.spread
@pytest.mark.parametrize("order", ("zigzag", "contiguous"))
@pytest.mark.parametrize("backend", ("cpu", "math", "emulator"))
@pytest.mark.parametrize("name", CASES)
def test_processes_together_have_the_results_of_one(name, backend, order, monkeypatch):
    case = CASES[name]
    if backend == "emulator":
        case = replace(case, dtype="float16")
    check(case, found(case, order, backend, monkeypatch))


class _Gathered(nn.Cell):
    """Join what this process and the others hold."""

    def __init__(self, parts, rank):
        super().__init__()
        self.before, self.behind = parts[:rank], parts[rank + 1 :]

    def construct(self, tensor):
        return ops.concat((*self.before, tensor, *self.behind))


class _Summed(nn.Cell):
    """Add what the others hold."""

    def __init__(self, others):
        super().__init__()
        self.others = others

    def construct(self, tensor):
        return tensor + self.others


@pytest.mark.spread
@pytest.mark.parametrize("mode", ("graph", "pynative"))
@pytest.mark.parametrize("on_cpu", (True, False))
@pytest.mark.parametrize("axis", (0, 1, 2))
@pytest.mark.parametrize("order", ("zigzag", "contiguous"))
def test_gathered_parts_and_their_gradients(order, axis, on_cpu, mode, monkeypatch):
    shape = [2, 3, 5]
    shape[axis] = 12
    array, weight, split = draw(*shape), draw(*shape, seed=1), SequenceSplit(2, order)
    parts = [split.split(array, rank, axis) for rank in range(2)]
    for rank, part in enumerate(parts):
        others = split.join([0 * one if other == rank else one for other, one in enumerate(parts)], axis)
        monkeypatch.setattr(gather.ops, "AllReduce", lambda others=others: _Summed(Tensor(others)))
        monkeypatch.setattr(gather.ops, "AllGather", lambda rank=rank: _Gathered(list(map(Tensor, parts)), rank))
        cell = gather.Gather(split, rank, axis, on_cpu)
        with in_mode(mode):
            np.testing.assert_array_equal(cell(Tensor(part)).asnumpy(), array)
            (gradient,) = Gradients(cell)(Tensor(part), Tensor(weight))
        np.testing.assert_array_equal(gradient.asnumpy(), split.split(weight, rank, axis))


@pytest.mark.spread
@pytest.mark.parametrize("way", ("graph", "jit in pynative"))
@pytest.mark.parametrize("layout", ("BNSD", "SBH"))
def test_a_graph_has_the_gradients_of_pynative(layout, way, monkeypatch):
    """The chunks of a process are unlike calls in one graph: each has the backward pass of its own position."""
    monkeypatch.setattr(gather, "processes", lambda: (0, 2))
    monkeypatch.setattr(gather.ops, "AllReduce", nn.Identity)  # the other process holds zeros
    shapes = (
        ((1, 4, 16, 16), (1, 2, 16, 16), (1, 2, 16, 16)) if layout == "BNSD" else ((16, 1, 64), *((16, 1, 32),) * 2)
    )
    given = [Tensor(draw(*shape)) for shape in (*shapes, (4,))]
    layer, weight = GatherAttention(16, causal=True, input_layout=layout), Tensor(draw(*shapes[0], seed=9))

    def loss(query, key, value, sinks):
        first = layer(query, key, value, sinks=sinks)
        return ((first + layer(query + first, key * 2, value * 3, sinks=sinks)) * weight).sum()

    def gradient(*tensors):
        return ops.grad(loss, (0, 1, 2, 3))(*tensors)

    wanted = gradient(*given)
    if way == "graph":
        with in_mode("graph"):
            results = ms.jit(gradient)(*given)
    else:
        results = ops.grad(ms.jit(loss), (0, 1, 2, 3))(*given)
    for one, other in zip(results, wanted):
        assert np.abs(other.asnumpy()).max() > 0.01
        np.testing.assert_allclose(one.asnumpy(), other.asnumpy(), rtol=1e-5, atol=1e-5)


class _WithTiles(nn.Cell):
    """A layer with a block mask as data, or None."""

    def __init__(self, layer, tiles):
        super().__init__()
        self.layer, self.tiles = layer, tiles

    def construct(self, query, key, value):
        return self.layer(query, key, value, block_mask=self.tiles)


@pytest.mark.spread
@pytest.mark.parametrize("order", ("zigzag", "contiguous"))
def test_tiles_are_the_layers_or_those_of_a_call(order, mode, monkeypatch):
    """One process holds all chunks, and so has what the whole sequence has."""
    monkeypatch.setattr(gather, "processes", lambda: (0, 1))
    monkeypatch.setattr(gather.ops, "AllReduce", nn.Identity)
    own, other = (BlockMask(np.random.default_rng(seed).random((4, 4)) < 0.5, 64) for seed in range(2))
    tensors = [Tensor(draw(1, 2, 256, 16, seed=seed)) for seed in range(3)]
    layer, whole = GatherAttention(16, order=order, block_mask=own), FlashAttention(16, block_mask=own)
    for given in (None, Tensor(other.tiles != 0)):
        found, wanted = (ops.grad(_WithTiles(run, given), (0, 1, 2))(*tensors) for run in (layer, whole))
        for one, right in zip(found, wanted):
            np.testing.assert_allclose(one.asnumpy(), right.asnumpy(), atol=1e-6)
            assert np.abs(right.asnumpy()).max() > 0.01


REFUSED = {
    "odd": ((3, 3), {}, r"query: got 3 tokens per process.*multiples of 2 in zigzag.*of 4 tokens over 2"),
    "lengths": ((4, 8), {}, r"key: got 8 tokens, but query has 4"),
    "sinks": ((4, 4), {"sinks": (3,)}, r"sinks: got shape \(3,\), allowed is \(heads,\), here \(4,\)"),
    "prefix": ((4, 4), {"prefix": (2,)}, "prefix: given without causal=True"),
    "ids": ((4, 4), {"segment_ids": (2, 4)}, r"segment_ids: got shape \(2, 4\).*here \(2, 8\)"),
    "tiles": ((4, 4), {"block_mask": (1, 1, 2, 1)}, r"block_mask: got shape \(1, 1, 2, 1\).*\(1, 1\) for tiles"),
    "cut": (
        (4, 4),
        {"block_mask": (1, 1, 1, 1)},
        "block_mask: got tiles of 64 tokens for chunks of 2, .*zigzag order a whole sequence of a multiple of 256",
    ),
    "mask": ((4, 4), {"attention_mask": (4, 4)}, "attention_mask: GatherAttention takes none"),
    "bias": ((4, 4), {"alibi_mask": (1, 1, 1, 4)}, "alibi_mask: GatherAttention takes none"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_inputs_belong_to_the_whole_sequence(name, monkeypatch):
    (tokens, keys), given, message = REFUSED[name]
    monkeypatch.setattr(gather, "processes", lambda: (1, 2))
    layer = GatherAttention(16)
    dtypes = {"sinks": np.float32, "attention_mask": np.float32, "alibi_mask": np.float32, "block_mask": np.uint8}
    inputs = {one: Tensor(np.ones(shape, dtypes.get(one, np.int32))) for one, shape in given.items()}
    tensors = [Tensor(draw(2, 4, seq, 16)) for seq in (tokens, keys, keys)]
    with pytest.raises(ValueError, match=message):
        layer(*tensors, **inputs)
