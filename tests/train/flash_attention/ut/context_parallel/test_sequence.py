"""Test the splitting of a sequence over processes."""

import numpy as np
import pytest
from flash_attention.call import AttentionRules
from flash_attention.context_parallel.sequence import SequenceSplit


@pytest.mark.parametrize("world", [2, 4, 8])
def test_zigzag_balances_causal_work(world):
    def work(split, rank):
        tokens, seq = 256 // world, 256
        chunk = tokens // split.chunks_per_process
        rules = [AttentionRules(causal=True, first_query=one * chunk) for one in split.chunks(rank)]
        return sum(one.band(chunk, seq).pairs() for one in rules)

    balanced = [work(SequenceSplit(world), rank) for rank in range(world)]
    assert len(set(balanced)) == 1
    assert work(SequenceSplit(world, "contiguous"), 0) * world < sum(balanced)


@pytest.mark.parametrize("order", ["zigzag", "contiguous"])
@pytest.mark.parametrize("axis", [0, 1])
def test_split_and_join(order, axis):
    split = SequenceSplit(3, order)
    whole = np.arange(36).reshape((12, 3) if axis == 0 else (3, 12))
    parts = [split.split(whole, rank, axis) for rank in range(3)]
    np.testing.assert_array_equal(split.join(parts, axis), whole)
    for rank, part in enumerate(parts):
        np.testing.assert_array_equal(part, np.take(whole, split.positions(rank, 12), axis))


def test_uneven_splits_are_refused_with_the_allowed_lengths():
    with pytest.raises(ValueError, match=r"got 1001 for 4 processes in zigzag order.*multiples of 8.*1000, 1008"):
        SequenceSplit(4).split(np.zeros((1, 1001)), 0, 1)
    with pytest.raises(ValueError, match=r"allowed are multiples of 4 \(the nearest: 4\)"):
        SequenceSplit(4, "contiguous").chunk_length(3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((0,), "world: got 0"), ((2, "spiral"), "order: got 'spiral'.*zigzag, contiguous"), ((2.0,), "world: got float")],
)
def test_bad_splits(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        SequenceSplit(*arguments)
    with pytest.raises(ValueError, match="rank: got 2"):
        SequenceSplit(2).chunks(2)
