"""Splitting a sequence, and what processes compute with each other's keys: arithmetic, without processes."""

import itertools

import numpy as np
import pytest
from flash_attention.call import ALL_BLOCKS, AttentionRules
from flash_attention.call.visibility import Band
from flash_attention.context_parallel.plan import AFTER, BEFORE, check_length, pieces, steps
from flash_attention.context_parallel.sequence import SequenceSplit

RULES = {
    "all": AttentionRules(),
    "causal": AttentionRules(causal=True),
    "left": AttentionRules(causal=True, window_left=5),
    "left-wide": AttentionRules(causal=True, window_left=30),
    "both": AttentionRules(window_left=9, window_right=4),
    "right": AttentionRules(window_right=11),
    "diagonal": AttentionRules(window_left=0, window_right=0),
    "blocks": AttentionRules(causal=True, prev_blocks=1, tile=4),
    "blocks-none": AttentionRules(prev_blocks=0, next_blocks=0, tile=4),
    "blocks-both": AttentionRules(prev_blocks=2, next_blocks=1, tile=8),
    "blocks-next": AttentionRules(next_blocks=3, tile=4),
    "alibi": AttentionRules(causal=True, alibi=True),
    "alibi-window": AttentionRules(window_left=10, window_right=7, alibi=True),
    "alibi-blocks": AttentionRules(causal=True, prev_blocks=3, tile=4, alibi=True),
}


def visible(rules: AttentionRules, seq: int) -> np.ndarray:
    """Return which query sees which key, as a matrix of booleans."""
    return rules.band(seq, seq).dense()


@pytest.mark.parametrize("order", ["zigzag", "contiguous"])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("name", RULES)
def test_pieces_make_up_the_whole_band_once(name, world, order):
    rules, split, length = RULES[name], SequenceSplit(world, order), 16
    seq = length * split.chunks_per_process * world
    seen = np.zeros((seq, seq), int)
    for rank, source in itertools.product(range(world), repeat=2):
        rows, keys = np.array(split.positions(rank, seq)), np.array(split.positions(source, seq))
        for piece in pieces(split, rules, length, rank, source):
            row, key = rows[piece.first_row : piece.end_row], keys[piece.first_key : piece.end_key]
            blocks = {"prev_blocks": piece.prev_blocks, "next_blocks": piece.next_blocks, "block": rules.tile}
            band = Band(len(row), len(key), left=piece.left, right=piece.right, **blocks).dense()
            assert band.any(), piece
            seen[np.ix_(row, key)] += band
            if rules.alibi:
                assert piece.distance == row[0] - key[0]
                if piece.side == BEFORE:
                    assert key[-1] < row[0]
                elif piece.side == AFTER:
                    assert row[-1] < key[0]
                else:
                    assert (row == key).all()
    np.testing.assert_array_equal(seen, visible(rules, seq))


@pytest.mark.parametrize("world", [2, 4, 8])
def test_zigzag_balances_causal_work(world):
    rules, length = AttentionRules(causal=True), 32

    def work(split, rank):
        found = [piece for source in range(world) for piece in pieces(split, rules, length, rank, source)]
        return sum(
            Band(p.end_row - p.first_row, p.end_key - p.first_key, left=p.left, right=p.right).pairs() for p in found
        )

    balanced = [work(SequenceSplit(world), rank) for rank in range(world)]
    assert len(set(balanced)) == 1
    assert work(SequenceSplit(world, "contiguous"), 0) * world < sum(balanced)


def test_unlimited_causal_step_is_one_call():
    split, rules = SequenceSplit(4), AttentionRules(causal=True)
    for rank, source in itertools.product(range(4), repeat=2):
        assert len(pieces(split, rules, 8, rank, source)) == (3 if rank == source else 1)


@pytest.mark.parametrize(
    ("order", "rules", "expected"),
    [
        ("contiguous", AttentionRules(causal=True), (0, 1, 2, 3, 4, 5, 6, 7)),
        ("contiguous", AttentionRules(causal=True, window_left=16), (0, 1)),
        ("contiguous", AttentionRules(causal=True, window_left=17), (0, 1, 2)),
        ("contiguous", AttentionRules(window_left=3, window_right=3), (0, 1, 7)),
        ("zigzag", AttentionRules(causal=True, window_left=3), (0, 1, 7)),
        ("contiguous", AttentionRules(prev_blocks=0, next_blocks=0, tile=16), (0,)),
        ("contiguous", AttentionRules(prev_blocks=1, next_blocks=0, tile=16), (0, 1)),
    ],
)
def test_windows_skip_steps(order, rules, expected):
    assert steps(SequenceSplit(8, order), rules, 16) == expected


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
    with pytest.raises(ValueError, match=r"got 5 tokens per process.*multiples of 2 in zigzag"):
        check_length(SequenceSplit(4), AttentionRules(), 5)
    with pytest.raises(ValueError, match=r"got 96 tokens per process.*multiples of 128.*512 tokens over 4"):
        check_length(SequenceSplit(4), AttentionRules(prev_blocks=1, tile=64), 96)
    assert check_length(SequenceSplit(4), AttentionRules(prev_blocks=1, next_blocks=ALL_BLOCKS, tile=64), 256) == 128


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((0,), "world: got 0"), ((2, "spiral"), "order: got 'spiral'.*zigzag, contiguous"), ((2.0,), "world: got float")],
)
def test_bad_splits(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        SequenceSplit(*arguments)
    with pytest.raises(ValueError, match="rank: got 2"):
        SequenceSplit(2).chunks(2)
