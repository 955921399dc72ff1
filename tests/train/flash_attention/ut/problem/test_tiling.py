"""Tiling strategies by name."""

import pytest
from flash_attention.problem import AttentionRules
from flash_attention.problem.tiling import DEFAULT_STRATEGY, get_strategy


def test_the_default_is_sparse_with_tiles_of_128():
    assert DEFAULT_STRATEGY == "sparse"
    assert get_strategy("sparse").tile == 128
    assert AttentionRules().tile == 128


def test_the_others_are_half_and_twice_as_long():
    for name, tile in (("sparse_64", 64), ("sparse_256", 256)):
        assert (get_strategy(name).name, get_strategy(name).tile) == (name, tile)


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="no strategy is called 'Sparse'; known are sparse, "):
        get_strategy("Sparse")
    with pytest.raises(TypeError, match="tiling_stgy_name: expected a string, got NoneType"):
        get_strategy(None)
