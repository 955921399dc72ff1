"""Test block masks: their constructors, their lists, what they refuse."""

import copy
import pickle
import sys
import threading

import numpy as np
import pytest
from flash_attention import BlockMask
from flash_attention.call.block_mask import known

S = BlockMask.strided(512, stride=2, window=0)


def shown(mask, head=0):
    """Return the visible tiles of a head as rows of text."""
    return ["".join(".#"[tile] for tile in row) for row in mask.tiles[0, head]]


@pytest.mark.parametrize(
    ("mask", "rows"),
    [
        (BlockMask.local_global(640, window=1, global_tiles=1), ["#####", "###..", "####.", "#.###", "#..##"]),
        (BlockMask.local_global(600, 200, window=0, global_tiles=0), ["#.", ".#", "..", "..", ".."]),
        (BlockMask.strided(640, stride=2, window=0), ["##.#.", ".#.#.", ".###.", ".#.#.", ".#.##"]),
        (BlockMask.sink_window(640, sink_tiles=1, window=1), ["#....", "##...", "###..", "#.##.", "#..##"]),
        # Queries 0 to 127 stand at keys 312 to 439, in tiles 2 and 3; the last 72 at keys 440 to 511, in tile 3.
        (BlockMask.sink_window(200, 512, sink_tiles=1, window=0), ["#.##", "#..#"]),
        (BlockMask.documents([256, 128, 100]), ["##..", "##..", "..#.", "...#"]),
        (BlockMask.documents([64, 128], tile=64), ["#..", ".##", ".##"]),
        (BlockMask.from_rule(lambda b, h, row, column: (row + column) % 2 == 0, 300), ["#.#", ".#.", "#.#"]),
        (S & BlockMask.local_global(512, window=0, global_tiles=1), ["##.#", ".#..", "..#.", "...#"]),
        (S | BlockMask.documents([256, 256]), ["##.#", "##.#", ".###", ".###"]),
    ],
)
def test_constructors(mask, rows):
    assert shown(mask) == rows
    assert mask.density() == np.mean([tile == "#" for row in rows for tile in row])


def test_bigbird_adds_as_many_random_tiles_as_there_are():
    regular = BlockMask.local_global(2048, window=1, global_tiles=1)
    mask = BlockMask.bigbird(2048, seed=3, random_tiles=3, heads=4)
    added = mask.tiles.astype(int) - regular.tiles
    assert added.min() == 0
    hidden = (regular.tiles == 0).sum(-1)
    np.testing.assert_array_equal(added.sum(-1), np.broadcast_to(np.minimum(hidden, 3), (1, 4, 16)))
    assert len({head.tobytes() for head in mask.tiles[0]}) == 4
    assert mask == BlockMask.bigbird(2048, seed=3, random_tiles=3, heads=4) != BlockMask.bigbird(2048, seed=4)


def test_lists_are_those_of_flex_attention():
    partial, nothing, counts, indices = BlockMask(np.array([[0, 1, 1], [0, 0, 0]])).to_lists()
    assert not partial.any() and counts.tolist() == [[[2, 0]]]
    assert indices.tolist() == [[[[1, 2, 0], [0, 1, 2]]]] and indices.dtype == np.int32
    mask = BlockMask(np.random.default_rng(0).random((2, 3, 5, 7)) < 0.4, 64)
    assert BlockMask.from_lists(*mask.to_lists(), tile=64) == mask
    # A partial tile is visible too. What stands behind a list does not count.
    assert shown(BlockMask.from_lists([[[1, 1]]], [[[[1, 0], [0, 1]]]], [[[0, 1]]], [[[[0, 0], [1, 0]]]])) == [
        ".#",
        "##",
    ]


def test_dense_is_what_each_token_sees():
    mask = BlockMask(np.array([[1, 0, 1], [0, 1, 1]]), 64)
    np.testing.assert_array_equal(mask.dense(100, 190)[0, 0, [0, 63, 64, 99]][:, [0, 63, 64, 127, 128, 189]], [
        [1, 1, 0, 0, 1, 1], [1, 1, 0, 0, 1, 1], [0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1],
    ])  # fmt: skip


def test_a_mask_is_a_frozen_value():
    mask = BlockMask(np.array([[2, 0], [1, 7]]), 256)
    assert mask == BlockMask(np.array([[True, False], [True, True]]), 256) != BlockMask(np.eye(2, dtype=int), 256)
    assert hash(mask) == hash(copy.deepcopy(mask)) == hash(pickle.loads(pickle.dumps(mask)))
    assert mask != "mask" and mask != BlockMask(mask.tiles, 128)
    with pytest.raises(AttributeError, match="frozen"):
        mask.tile = 64
    with pytest.raises(ValueError, match="read-only"):
        mask.tiles[0] = 0
    assert repr(mask) == "BlockMask(tiles of shape (1, 1, 2, 2), tile=256, density=0.75)"


def test_plot_draws_the_tiles_of_a_head():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    mask = BlockMask.bigbird(1024, seed=0, heads=2)
    axes = mask.plot(pyplot.figure().gca(), head=1)
    np.testing.assert_array_equal(axes.images[0].get_array(), mask.tiles[0, 1])
    with pytest.raises(ValueError, match="head: got 2, allowed is an integer from 0 to 1"):
        mask.plot(axes, head=2)
    pyplot.close("all")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BlockMask(np.ones((2, 2))), "tiles: got dtype float64"),
        (lambda: BlockMask(np.ones((2, 2, 2), int)), r"tiles: got shape \(2, 2, 2\)"),
        (lambda: BlockMask(np.ones((0, 2), int)), r"tiles: got shape \(0, 2\)"),
        (lambda: BlockMask([[1]], 96), "tile: got 96, allowed are 64, 128, 256"),
        (lambda: BlockMask([[1]], 128.0), "tile: got float"),
        (lambda: BlockMask.local_global(0), "seq_q: got 0"),
        (lambda: BlockMask.local_global(64, 2.0), "seq_k: got float"),
        (lambda: BlockMask.local_global(64, window=-1), "window: got -1"),
        (lambda: BlockMask.strided(64, stride=0), "stride: got 0"),
        (lambda: BlockMask.bigbird(64, seed=0, random_tiles=-1), "random_tiles: got -1"),
        (lambda: BlockMask.sink_window(65, 64), "seq_k: got 64, allowed are at least as many as the 65 queries"),
        (lambda: BlockMask.documents([100, 128]), r"lengths\[0\]: got 100, allowed are multiples of 128"),
        (lambda: BlockMask.documents([]), "lengths: got none"),
        (lambda: BlockMask.documents(128), "lengths: got 128, allowed are integers"),
        (lambda: BlockMask.documents([128.0]), r"lengths: got \[128.0\], allowed are integers"),
        (lambda: BlockMask.bigbird(64, seed=None), "seed: got NoneType"),
        (lambda: BlockMask.bigbird(64, seed=-1), "seed: got -1, allowed is an integer >= 0"),
        (
            lambda: BlockMask.from_rule(lambda *_: np.ones((5, 7), bool), 300),
            r"rule: got shape \(5, 7\), allowed .*1, 3, 3",
        ),
        (lambda: BlockMask([[1]]).dense(100, 129), "seq_k: got 129, allowed is an integer from 0 to 128"),
        (lambda: BlockMask.from_lists([[[2]]], [[[[0]]]]), "kv_num_blocks: got 2 to 2, allowed are 0 to 1"),
        (lambda: BlockMask.from_lists([[[1]]], [[[[1]]]]), "kv_indices: got 1 to 1, allowed are 0 to 0"),
        (lambda: BlockMask.from_lists([[1]], [[[[1]]]]), r"kv_num_blocks: got shape \(1, 1\)"),
        (lambda: BlockMask.from_lists([[[1.0]]], [[[[1]]]]), "kv_num_blocks: got dtype float64"),
        (lambda: BlockMask.from_lists([[[1]]], [[[[0]]]], [[[1]]]), "got one of them"),
        (lambda: BlockMask([[1]]) | BlockMask([[1]], 64), "got tiles of 128 and 64 tokens"),
        (
            lambda: BlockMask(np.ones((2, 2), int)) & BlockMask(np.ones((3, 2), int)),
            "shapes that broadcast",
        ),
        (lambda: BlockMask([[1]]) & 3, "unsupported operand"),
    ],
)
def test_refusals(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def test_a_mask_is_found_while_another_thread_makes_masks():
    masks = [BlockMask(np.ones((1, keys + 1), np.uint8)) for keys in range(300)]
    over = threading.Event()

    def make():
        while not over.is_set():
            _ = [BlockMask(np.ones((1, 1), np.uint8)) for _ in range(500)]

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=make)
    try:
        sys.setswitchinterval(1e-6)
        thread.start()
        for _ in range(10_000):
            assert known(masks[-1].key) is masks[-1]
    finally:
        over.set()
        thread.join()
        sys.setswitchinterval(interval)
