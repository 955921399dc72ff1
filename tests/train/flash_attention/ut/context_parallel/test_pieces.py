"""Test calls on parts of a sequence, merged into the whole, without communication. One process holds the whole ring."""

import mindspore as ms
import numpy as np
import pytest
from flash_attention import reference
from flash_attention.call import AttentionRules, Call, TensorSpec
from flash_attention.context_parallel.pieces import (
    Pair,
    SinksGradient,
    SourceBackward,
    SourceForward,
    Sources,
    Start,
)
from flash_attention.context_parallel.plan import pieces
from flash_attention.context_parallel.sequence import SequenceSplit
from flash_attention.context_parallel.split_attention import read_call
from mindspore import Tensor

from tests.train.flash_attention.support.arrays import draw
from tests.train.flash_attention.support.calls import make_call

BATCH, HEADS, KV_HEADS, DIM, VALUE_DIM, SEQ, WORLD = 2, 4, 2, 24, 40, 64, 2
SINKS = np.array([1.0, -2.0, 0.5, 4.0], np.float32)
PREFIX = np.array([41, 7], np.int32)
# Documents in ascending order with padding behind, and ids in any order.
IDS = np.stack([np.repeat([3, 5, -1], [20, 30, 14]), np.random.default_rng(0).integers(-1, 3, SEQ)]).astype(np.int32)
NAMES = "output", "logsumexp", "d_query", "d_key", "d_value"


QUERY, KEY = draw(BATCH, HEADS, SEQ, DIM, seed=1), draw(BATCH, KV_HEADS, SEQ, DIM, seed=2)
VALUE, D_OUTPUT = draw(BATCH, KV_HEADS, SEQ, VALUE_DIM, seed=3), draw(BATCH, HEADS, SEQ, VALUE_DIM, seed=4)


class Process:
    """Compute what process `rank` has with the keys of every other process."""

    def __init__(self, rank, split, own, backend):
        self.split, self.rank = split, rank
        sources = Sources(own, split, rank, list(range(WORLD)), backend, SourceForward, SourceBackward)
        self.forward, self.backward = sources.passes
        self.start, self.of_sinks = Start(own), SinksGradient(own)
        shares = [share(Tensor(IDS)) for share in sources.shares]
        self.optional = [(Tensor(PREFIX), shares[rank], share) for share in shares]

    def part(self, array):
        return Tensor(self.split.split(array, self.rank, 2))

    def run(self, pairs):
        """Return output, logsumexp, and the gradients of queries, pairs and sinks."""
        query, d_output = self.part(QUERY), self.part(D_OUTPUT)
        output, logsumexp = self.start(Tensor(SINKS))
        for compute, pair, optional in zip(self.forward, pairs, self.optional):
            output, logsumexp = compute(query, pair, optional, output, logsumexp)
        logsumexp = logsumexp.astype(ms.float32)
        d_query, d_pairs = Tensor(np.zeros(query.shape, np.float32)), []
        for compute, pair, optional in zip(self.backward, pairs, self.optional):
            d_query, d_pair = compute(query, pair, optional, output, logsumexp, d_output, d_query)
            d_pairs.append(d_pair)
        return output, logsumexp, d_query, d_pairs, self.of_sinks(Tensor(SINKS), output, logsumexp, d_output)


def process_call(**given):
    """Return the call of a process's tokens."""
    sizes = {"batch": BATCH, "heads": HEADS, "kv_heads": KV_HEADS, "head_dim": DIM, "value_dim": VALUE_DIM}
    fixed = {"seq_q": SEQ // WORLD, "seq_k": SEQ // WORLD, "bias_grad": False, "return_lse": True}
    return Call(**{**sizes, **fixed, "dtype": "float32", **given})


def whole(rules, order, backend, **given):
    """Return the results of all processes as one result of the whole sequence."""
    own = process_call(rules=rules, **given)
    split, pair = SequenceSplit(WORLD, order), Pair(own)
    processes = [Process(rank, split, own, backend) for rank in range(WORLD)]
    pairs = [pair.join(one.part(KEY), one.part(VALUE)) for one in processes]
    found = [one.run(pairs) for one in processes]
    d_pairs = [pair.split(sum(one[3][source] for one in found)) for source in range(WORLD)]
    parts = [(*one[:3], *d_pair) for one, d_pair in zip(found, d_pairs)]
    joined = {name: split.join([part.asnumpy() for part in own], 2) for name, own in zip(NAMES, zip(*parts))}
    return joined, sum(one[4].asnumpy() for one in found)


CASES = {
    "plain": {},
    "sinks": {"sinks": True, "causal": True},
    "sinks-softcap": {"sinks": True, "softcap": 1.5, "alibi": True},
    "prefix": {"prefix": True, "causal": True},
    "documents": {"segments": True, "causal": True, "sinks": True},
    "documents-window": {"segments": True, "window_left": 20, "window_right": 9},
    "all": {"prefix": True, "causal": True, "segments": True, "sinks": True, "softcap": 2.0, "alibi": True},
}


@pytest.mark.daily("zigzag-cpu-*", "contiguous-math-[psd]*")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("backend", ("cpu", "math"))
@pytest.mark.parametrize("order", ("zigzag", "contiguous"))
def test_the_parts_make_the_whole(name, backend, order):
    fields = CASES[name]
    given = {key: fields.get(key, False) for key in ("sinks", "prefix", "segments")}
    rules = AttentionRules(**{key: value for key, value in fields.items() if key not in given})
    found, d_sinks = whole(rules, order, backend, **given)
    sizes = {"heads": HEADS, "kv_heads": KV_HEADS, "head_dim": DIM, "value_dim": VALUE_DIM, "dtype": "float32"}
    call = make_call(batch=BATCH, seq_q=SEQ, seq_k=SEQ, **sizes, **fields)
    optional = {"sinks": SINKS if given["sinks"] else None, "prefix": PREFIX if given["prefix"] else None}
    optional.update(dict.fromkeys(("segment_ids", "kv_segment_ids"), IDS if given["segments"] else None))
    exact, low = (
        side(call, QUERY, KEY, VALUE, d_output=D_OUTPUT, **optional) for side in (reference.truth, reference.baseline)
    )
    # The logsumexp of a row that sees nothing is a finite number that stands for minus infinity.
    found["logsumexp"] = np.where(np.isneginf(exact.logsumexp), -np.inf, found["logsumexp"])
    actual = reference.Attention(**found, d_sinks=d_sinks if given["sinks"] else None)
    assert [str(error) for error in reference.compare(actual, exact, low) if not error.ok] == []


def test_alibi_between_parts_is_refused_by_name():
    own = process_call(dtype="float16", value_dim=DIM, rules=AttentionRules(causal=True, alibi=True))
    with pytest.raises(RuntimeError, match="alibi: between parts of a sequence it is a bias in float32; backend 'emul"):
        Process(1, SequenceSplit(WORLD), own, "emulator")


def test_a_prefix_brings_the_keys_of_later_processes():
    split, rules = SequenceSplit(4, "contiguous"), AttentionRules(causal=True)
    assert pieces(split, rules, 16, 1, 3) == ()
    (piece,) = pieces(split, rules, 16, 1, 3, True)
    assert piece.only_prefix and piece.position == 48 and not piece.unlimited


@pytest.mark.parametrize(
    ("optional", "rules", "message"),
    [
        (((3,), None, None), {}, r"sinks: got shape \(3,\), allowed is \(heads,\), here \(4,\)"),
        ((None, (2,), None), {}, "prefix: given without causal=True"),
        ((None, (2,), None), {"causal": True, "window_left": 4}, "prefix, window_size: got a prefix together with"),
        ((None, None, (2, 32)), {}, r"segment_ids: got shape \(2, 32\), allowed is \(batch, seq_q\), here \(2, 64\)"),
    ],
)
def test_inputs_are_those_of_the_whole_sequence(optional, rules, message):
    shapes = (BATCH, HEADS, 32, DIM), (BATCH, KV_HEADS, 32, DIM), (BATCH, KV_HEADS, 32, VALUE_DIM)
    specs = tuple(TensorSpec(shape, "float32") for shape in shapes)
    dtypes = "float32", "int32", "int32"
    optional = tuple(None if shape is None else (shape, dtype) for shape, dtype in zip(optional, dtypes))
    with pytest.raises(ValueError, match=message):
        read_call(specs, optional, SequenceSplit(2), AttentionRules(**rules), DIM, None)
