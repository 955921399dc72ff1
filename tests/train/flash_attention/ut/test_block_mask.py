"""Test block masks as arguments of the functions and the layer. The shared cases have their values."""

import copy
import functools

import mindspore as ms
import numpy as np
import pytest
from flash_attention import BlockMask, FlashAttention, flash_attention, prepare, scaled_dot_product_attention
from flash_attention.bridge.versions import OLD
from flash_attention.kernels.tik import operators
from mindspore import Tensor, nn, ops

from tests.train.flash_attention.support.modes import GRAPHS_ARE_SLOW

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


class Several(nn.Cell):
    """Two layers with patterns of their own, and two that share one boolean Tensor."""

    def __init__(self, backend, masks=MASKS):
        super().__init__()
        self.own = nn.CellList([FlashAttention(16, backend=backend, block_mask=mask) for mask in masks[:2]])
        self.given = nn.CellList([FlashAttention(16, backend=backend, causal=causal) for causal in (False, True)])

    def construct(self, x, tiles):
        first = self.own[0](x, x, x) + 2 * self.own[1](x, x, x)
        shared = self.given[0](x, x, x, block_mask=tiles) + 3 * self.given[1](x, x, x, block_mask=tiles)
        return ((first + shared) * x).sum()


def test_layers_in_one_network_keep_their_own_tiles(mode):
    x, tiles = tensors()[0], Tensor(MASKS[2].tiles != 0)
    ours, truth = (ops.grad(Several(backend))(x, tiles).asnumpy() for backend in ("cpu", "math"))
    np.testing.assert_allclose(ours, truth, atol=2e-4)


@GRAPHS_ARE_SLOW
def test_the_tik_operators_keep_them_too(mode, monkeypatch):
    """The lists of a layer's mask are made once, the lists of other masks in each call.

    The error is at most twice the error of composed operations.
    """
    made, known = [], operators.known_table
    monkeypatch.setattr(operators, "known_table", lambda *given: made.append(given[1:]) or known(*given))
    prepare._dense.cache_clear()
    half, masks = tensors(150, np.float16)[0][:, :1], [BlockMask(mask.tiles[:, :1], 64) for mask in MASKS]
    own, composed = (ops.grad(Several(backend, masks)) for backend in ("emulator", "math"))
    for mask in masks[1:]:
        tiles = Tensor(mask.tiles != 0)
        truth = composed(ops.cast(half, ms.float32), tiles).asnumpy()
        errors = [np.abs(gradient(half, tiles).asnumpy() - truth).max() for gradient in (own, composed)]
        assert errors[0] <= 2 * errors[1]
    for stage in ("forward", "grad"):
        listed = sorted(tiles.tobytes() for name, tiles in made if name == stage)
        assert listed == sorted(mask.tiles.tobytes() for mask in masks[:2])


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


@pytest.mark.parametrize("run", [flash_attention, scaled_dot_product_attention, None])
def test_a_block_mask_keeps_its_tile(run):
    """Five tiles of 128 would cover 600 tokens too, but the mask has tiles of 64."""
    mask = BlockMask(np.eye(5, dtype=int), 64)
    run = FlashAttention(16, block_mask=mask) if run is None else functools.partial(run, block_mask=mask)
    with pytest.raises(ValueError, match=r"got shape \(1, 1, 5, 5\), allowed .* and \(10, 10\) for tiles of 64$"):
        run(*tensors(600))


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
    ],
)
def test_refusals_at_the_call(tiles, message):
    with pytest.raises((TypeError, ValueError), match=message):
        flash_attention(*tensors(), block_mask=Tensor(tiles))


def test_arrays_are_no_tensors():
    with pytest.raises(TypeError, match="block_mask: got ndarray, allowed is a Tensor or a BlockMask"):
        flash_attention(*tensors(), block_mask=MASKS[0].tiles)
    with pytest.raises(TypeError, match="prefix: got ndarray, allowed is a Tensor or a tuple of integers"):
        flash_attention(*tensors(), causal=True, prefix=np.array([1]))


def test_a_compiled_function_takes_it_or_says_what_it_takes():
    mask = MASKS[0]

    @ms.jit
    def attend(query, key, value):
        return flash_attention(query, key, value, block_mask=mask)

    if OLD:
        with pytest.raises(TypeError, match=r"block_mask: got an object, .* functions take Tensor\(mask.tiles\)"):
            attend(*tensors())
    else:
        check(attend(*tensors()), mask)


def test_the_layer_takes_no_tensor_as_its_own():
    with pytest.raises(TypeError, match="block_mask: got Tensor, allowed is a BlockMask; a Tensor is an input"):
        FlashAttention(16, block_mask=Tensor(MASKS[0].tiles))
