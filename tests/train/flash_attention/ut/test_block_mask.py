"""Test block masks as arguments of the functions and the layer. The shared cases have their values."""

import copy

import mindspore as ms
import numpy as np
import pytest
from flash_attention import BlockMask, FlashAttention, flash_attention, scaled_dot_product_attention
from mindspore import Tensor

MASKS = [BlockMask(np.random.default_rng(seed).random((1, 2, 3, 3)) < 0.5) for seed in range(3)]


def tensors(seq=300, dtype=np.float32):
    random = np.random.default_rng(0)
    return [Tensor(random.standard_normal((1, 2, seq, 16)).astype(dtype)) for _ in range(3)]


def expected(mask, **rules):
    """Return attention under a mask that says the same for every score."""
    hidden = Tensor(~mask.dense(300, 300))
    return flash_attention(*tensors(), hidden, backend="math", **rules).asnumpy()


def check(actual, mask, **rules):
    np.testing.assert_allclose(actual.asnumpy(), expected(mask, **rules), atol=2e-6)


def test_every_entry_point_takes_it(mode):
    mask = MASKS[0]
    check(flash_attention(*tensors(), block_mask=mask, causal=True), mask, causal=True)
    check(flash_attention(*tensors(), block_mask=Tensor(mask.tiles != 0)), mask)
    check(scaled_dot_product_attention(*tensors(), block_mask=mask, is_causal=True), mask, causal=True)
    layer = FlashAttention(16, block_mask=mask, causal=True)
    check(layer(*tensors()), mask, causal=True)
    check(copy.deepcopy(layer)(*tensors()), mask, causal=True)
    check(layer(*tensors(), block_mask=Tensor(MASKS[1].tiles)), MASKS[1], causal=True)


def test_a_graph_takes_other_tiles_in_each_call():
    @ms.jit
    def run(query, key, value, tiles):
        return flash_attention(query, key, value, block_mask=tiles)

    for mask in MASKS:
        check(run(*tensors(), Tensor(mask.tiles)), mask)


@pytest.mark.parametrize("tile", [64, 128, 256])
def test_the_shape_says_how_large_a_tile_is(tile):
    count = -(-300 // tile)
    mask = BlockMask(np.eye(count, dtype=int), tile)
    check(flash_attention(*tensors(), block_mask=mask), mask)


@pytest.mark.parametrize(
    ("tiles", "message"),
    [
        (
            np.ones((1, 1, 4, 4), np.uint8),
            r"got shape \(1, 1, 4, 4\), allowed is \(batch or 1, heads or 1, query tiles, key tiles\), here "
            r"\(1, 2 or 1\) and \(5, 5\) for tiles of 64 or \(3, 3\) for tiles of 128 or \(2, 2\) for tiles of 256",
        ),
        (np.ones((1, 3, 3, 3), np.uint8), r"got shape \(1, 3, 3, 3\)"),
        (np.ones((3, 3), np.uint8), r"got shape \(3, 3\)"),
        (np.ones((1, 1, 3, 3), np.float32), "block_mask: got dtype float32, allowed are uint8, bool"),
    ],
)
def test_refusals_at_the_call(tiles, message):
    with pytest.raises((TypeError, ValueError), match=message):
        flash_attention(*tensors(), block_mask=Tensor(tiles))


def test_the_layer_takes_no_tensor_as_its_own():
    with pytest.raises(TypeError, match="block_mask: got Tensor, allowed is a BlockMask; a Tensor is an input"):
        FlashAttention(16, block_mask=Tensor(MASKS[0].tiles))
