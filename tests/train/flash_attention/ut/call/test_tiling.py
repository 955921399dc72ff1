"""Tiling strategies by name."""

import pytest
from flash_attention.call import AttentionRules
from flash_attention.call.tiling import DEFAULT_STRATEGY, tile_of


def test_the_default_is_sparse_with_tiles_of_128():
    assert DEFAULT_STRATEGY == "sparse"
    assert tile_of("sparse") == 128
    assert AttentionRules().tile == 128


def test_the_others_are_half_and_twice_as_long():
    assert (tile_of("sparse_64"), tile_of("sparse_256")) == (64, 256)


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="no strategy is called 'Sparse'; known are sparse, "):
        tile_of("Sparse")
    with pytest.raises(TypeError, match="tiling_stgy_name: expected a string, got NoneType"):
        tile_of(None)
