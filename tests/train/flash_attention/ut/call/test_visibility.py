"""Visibility against a brute-force statement of its rules."""

import numpy as np
import pytest
from flash_attention.call.visibility import Band, query_offset
from hypothesis import given, settings
from hypothesis import strategies as st


@st.composite
def bands(draw):
    """Return a band of any kind."""
    seq_q, seq_k = draw(st.integers(1, 90)), draw(st.integers(1, 90))
    side = st.one_of(st.just(-1), st.integers(0, 100))
    blocks = st.one_of(st.just(65536), st.integers(0, 5))
    return Band(
        seq_q=seq_q,
        seq_k=seq_k,
        offset=draw(st.sampled_from((0, seq_k - seq_q))),
        causal=draw(st.booleans()),
        left=draw(side),
        right=draw(side),
        prev_blocks=draw(blocks),
        next_blocks=draw(blocks),
        block=draw(st.sampled_from((1, 7, 16, 64, 128))),
    )


def brute(band: Band) -> np.ndarray:
    """Return the visible pairs (query, key), with every rule as a condition on a pair."""
    position = np.arange(band.seq_q)[:, None] + band.offset
    key = np.arange(band.seq_k)[None, :]
    seen = np.ones((band.seq_q, band.seq_k), bool)
    if band.causal:
        seen &= key <= position
    if band.left >= 0:
        seen &= position - key <= band.left
    if band.right >= 0:
        seen &= key - position <= band.right
    tiles = np.floor_divide(key, band.block) - np.floor_divide(position, band.block)
    return seen & (-band.prev_blocks <= tiles) & (tiles <= band.next_blocks)


def test_alignment_says_where_row_0_stands():
    assert query_offset("top_left", 3, 7) == 0
    assert query_offset("bottom_right", 3, 7) == 4
    assert query_offset("bottom_right", 7, 3) == -4


@settings(max_examples=300, deadline=None)
@given(bands())
def test_intervals_are_the_rules(band):
    dense = brute(band)
    np.testing.assert_array_equal(band.dense(), dense)
    assert band.pairs() == dense.sum()
    assert band.unlimited() == dense.all()


def test_one_hidden_pair_is_a_limit():
    """The last row and the first key, or the first row and the last key, are the pairs at the limit."""
    assert Band(5, 5, left=4, right=4).unlimited()
    assert not Band(5, 5, left=3).unlimited()
    assert not Band(5, 5, right=3).unlimited()


@settings(max_examples=300, deadline=None)
@given(bands(), st.integers(0, 89), st.integers(1, 40))
def test_rows_that_see_keys_are_an_interval(band, start, keys):
    stop = min(start + keys, band.seq_k)
    first, end = band.rows_that_see(start, stop)
    np.testing.assert_array_equal(np.flatnonzero(brute(band)[:, start:stop].any(axis=1)), np.arange(first, end))


@settings(max_examples=300, deadline=None)
@given(bands(), st.integers(1, 40), st.integers(1, 40))
def test_tiles_visited_are_those_with_something_visible(band, tile_q, tile_k):
    dense = brute(band)
    visits = {}
    for query_tile in range(-(-band.seq_q // tile_q)):
        for key_tile in range(-(-band.seq_k // tile_k)):
            pair = dense[query_tile * tile_q : (query_tile + 1) * tile_q, key_tile * tile_k : (key_tile + 1) * tile_k]
            if pair.any():
                visits[query_tile, key_tile] = not pair.all()
    by_query = {
        (tile, visit.index): visit.partial
        for tile in range(-(-band.seq_q // tile_q))
        for visit in band.key_tiles(tile, tile_q, tile_k)
    }
    assert by_query == visits


@pytest.mark.parametrize("block", (1, 64, 128))
def test_all_blocks_are_all_at_any_length(block):
    """65536 blocks mean all blocks; counted, they would end after 8.4 million tokens of 128-token blocks."""
    length = 1 << 25
    band = Band(length, length, prev_blocks=65536, next_blocks=65536, block=block)
    assert band.unlimited()
    assert band.keys(length - 1) == (0, length)
    assert Band(length, length, prev_blocks=65535, block=block).keys(length - 1)[0] > 0


def test_long_sequences_cost_no_more_than_their_window():
    band = Band(1 << 20, 1 << 20, causal=True, prev_blocks=2)
    assert [visit.index for visit in band.key_tiles(4000, 128, 128)] == [3998, 3999, 4000]
    assert [visit.partial for visit in band.key_tiles(4000, 128, 128)] == [False, False, True]
