"""Visited tiles, against the visible pairs of a small call one by one."""

from dataclasses import replace

import numpy as np
import pytest
from flash_attention import BlockMask, Call, explain
from flash_attention.call import AttentionRules
from flash_attention.call.tiling import PATTERNS
from flash_attention.call.visits import pattern, visits
from hypothesis import given, settings
from hypothesis import strategies as st

CALL = Call(batch=2, heads=4, seq_q=300, seq_k=200, head_dim=16)


@st.composite
def calls(draw):
    """Return a call and a block mask, or None."""
    seq_q, seq_k, tile = draw(st.integers(1, 300)), draw(st.integers(1, 300)), draw(st.sampled_from((64, 128)))
    rules = AttentionRules(
        causal=draw(st.booleans()),
        causal_alignment=draw(st.sampled_from(("top_left", "bottom_right"))),
        window_left=draw(st.sampled_from((-1, 0, 70))),
        tile=tile,
    )
    call = replace(CALL, seq_q=seq_q, seq_k=seq_k, rules=rules)
    shape = draw(st.sampled_from((1, 2))), draw(st.sampled_from((1, 4))), -(-seq_q // tile), -(-seq_k // tile)
    random = np.random.default_rng(draw(st.integers(0, 9)))
    return call, draw(st.sampled_from((None, BlockMask(random.integers(0, 2, shape), tile))))


@settings(max_examples=100, deadline=None)
@given(calls())
def test_tiles_are_full_partial_or_not_visited(given):
    call, mask = given
    seen = np.broadcast_to(call.band.dense(), (2, 4, call.seq_q, call.seq_k))
    if mask is not None:
        seen = seen & mask.dense(call.seq_q, call.seq_k)
    tile = call.rules.tile
    tiles = [
        seen[item, head, row : row + tile, column : column + tile]
        for item in range(2)
        for head in range(4)
        for row in range(0, call.seq_q, tile)
        for column in range(0, call.seq_k, tile)
    ]
    found = visits(call, mask)
    assert found.tiles == len(tiles) and found.row_blocks == 8 * -(-call.seq_q // tile) and found.tile == tile
    assert found.full == sum(one.all() for one in tiles)
    assert found.partial == sum(one.any() and not one.all() for one in tiles)
    assert found.pairs == seen.sum() and found.density == sum(one.any() for one in tiles) / len(tiles)


@pytest.mark.parametrize("tile", (64, 128))
@pytest.mark.parametrize("name", PATTERNS)
def test_patterns_are_block_masks_of_a_length(name, tile):
    mask = pattern(name, 1000, tile)
    assert mask.tile == tile and mask.tiles.shape[2:] == (-(-1000 // tile),) * 2 and 0 < mask.density() < 1


@pytest.mark.parametrize(
    ("backend", "tile", "last"),
    [
        ("cpu", 64, "; a hidden tile is skipped"),
        ("emulator", 64, "; a hidden tile is skipped if its neighbour is hidden too"),
        ("emulator", 128, "; a hidden tile is skipped"),
        ("math", 128, "; a hidden tile is computed and then hidden"),
    ],
)
def test_explain_counts_tiles(backend, tile, last):
    call = replace(CALL, seq_q=512, seq_k=512, rules=AttentionRules(causal=True))
    said = explain(call, BlockMask.local_global(512, window=0, tile=tile))[backend]
    rows, every, diagonal, below = {64: (64, 512, 64, 56), 128: (32, 128, 32, 24)}[tile]
    visited = f"visit {diagonal + below} of {every} tiles of {tile} x {tile} ({below} full, {diagonal} partial)"
    assert said == f"ok: {rows} row blocks {visited}, {(diagonal + below) / every:.1%}{last}"


def test_explain_names_a_mask_that_does_not_fit():
    assert explain(CALL, BlockMask.local_global(300, 200))["fused"] != "ok"
    with pytest.raises(ValueError, match=r"block_mask_shape: got \(1, 1, 8, 8\), allowed is \(2, 4, 3, 2\)"):
        explain(CALL, BlockMask.local_global(1024))
    with pytest.raises(TypeError, match="block_mask: got ndarray, allowed is a BlockMask"):
        explain(CALL, BlockMask.local_global(1024).tiles)
