"""The compact mask of the FlashAttention cell: a (1, 128, 128) triangle that stands for the causal rule."""

import mindspore as ms
import numpy as np
import pytest
from flash_attention import FlashAttention
from mindspore import Parameter, Tensor, ops

from tests.train.flash_attention.support.layer_inputs import inputs, near, truth

BACKENDS = ("math", "cpu")
TRIANGLE = np.triu(np.ones((1, 128, 128), np.float16), 1)


@pytest.fixture(autouse=True, scope="module")
def pynative():
    """Set PYNATIVE: the contents of a mask are looked at only outside graphs. A test before may have left the other
    mode.
    """
    ms.set_context(mode=ms.PYNATIVE_MODE)


@pytest.mark.parametrize("backend", BACKENDS)
def test_compact_mask_means_causal_whatever_next_block_num_is(backend):
    query, key, value = inputs(seq_q=300, seq_k=300)
    expected = truth(query, key, value, causal=True).output
    for next_block_num in (0, 1, 65536):
        layer = FlashAttention(32, 0.0, 65536, next_block_num, backend=backend)
        near(layer(query, key, value, Tensor(TRIANGLE)), expected)
    windowed = truth(query, key, value, causal=True, prev_blocks=1).output
    near(FlashAttention(32, 0.0, 1, 0, backend=backend)(query, key, value, Tensor(TRIANGLE)), windowed)
    assert np.abs(windowed - expected).max() > 0.01


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_compact_shape_that_is_a_full_mask_gives_the_same_either_way(backend):
    query, key, value = inputs(seq_q=128, seq_k=128)
    layer = FlashAttention(32, backend=backend)
    near(layer(query, key, value, Tensor(TRIANGLE)), truth(query, key, value, causal=True).output)
    other = (np.random.default_rng(0).random((1, 128, 128)) < 0.5).astype(np.uint8)
    near(layer(query, key, value, Tensor(other)), truth(query, key, value, mask=other[None]).output)


def test_a_compact_mask_with_other_contents_is_refused_outside_graphs():
    query, key, value = inputs()
    layer = FlashAttention(32, backend="math")
    for contents in (1 - TRIANGLE, TRIANGLE.transpose(0, 2, 1), np.zeros_like(TRIANGLE)):
        with pytest.raises(ValueError, match="attention_mask: shape .* stands for the compact causal mask"):
            layer(query, key, value, Tensor(contents))


def set_one(mask):
    """Hide one key by assignment to an element."""
    mask[0, 5, 3] = 1


def set_one_of_the_array(mask):
    """Hide one key through the array that shares the tensor's memory."""
    mask.asnumpy()[0, 5, 3] = 1


def put_other_data(mask):
    """Give the tensor other data."""
    mask.assign_value(Tensor(TRIANGLE * 0))


@pytest.mark.parametrize("change", (set_one, set_one_of_the_array, put_other_data))
def test_a_compact_mask_that_changes_in_place_is_noticed(change):
    query, key, value = inputs()
    layer = FlashAttention(32, backend="math")
    mask = Tensor(TRIANGLE.copy())
    for _ in range(2):
        layer(query, key, value, mask)
    change(mask)
    for _ in range(2):
        with pytest.raises(ValueError, match="attention_mask: shape .* stands for the compact causal mask"):
            layer(query, key, value, mask)
    mask.assign_value(Tensor(TRIANGLE))
    near(layer(query, key, value, mask), truth(query, key, value, causal=True).output)


def test_a_compact_mask_that_an_operation_under_way_changes_is_noticed_at_the_next_call():
    query, key, value = inputs()
    layer = FlashAttention(32, backend="math")
    mask = Parameter(Tensor(TRIANGLE), requires_grad=False)
    layer(query, key, value, mask)
    ops.assign(mask, Tensor(TRIANGLE * 0))
    with pytest.raises(ValueError, match="attention_mask: shape .* stands for the compact causal mask"):
        for _ in range(2):
            layer(query, key, value, mask).asnumpy()
