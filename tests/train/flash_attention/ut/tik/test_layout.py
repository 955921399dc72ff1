"""Packing to and from the layouts of the kernels."""

import numpy as np
import pytest
from flash_attention.kernels.tik.backward import items as backward
from flash_attention.kernels.tik.forward import items as forward
from flash_attention.kernels.tik.layout import from_nz, nz_shape, store_keep_bits, to_nz
from flash_attention.kernels.tik.row_layout import RowLayout
from flash_attention.kernels.tik.varlen import Sequences

from tests.train.flash_attention.support.calls import make_kernel_problem


@pytest.mark.parametrize("shape", ((1, 1), (16, 16), (2, 17, 33), (2, 3, 40, 20)))
def test_fractal_nz_follows_its_index_formula(shape):
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float16)
    packed = to_nz(array)
    assert packed.shape == nz_shape(*shape)
    for row in range(shape[-2]):
        for column in range(shape[-1]):
            expected = array[..., row, column]
            assert np.array_equal(packed[..., column // 16, row // 16, row % 16, column % 16], expected)
    assert np.count_nonzero(packed) == np.count_nonzero(array)  # the padding is zero
    assert np.array_equal(from_nz(packed, *shape[-2:]), array)


def test_from_nz_refuses_more_than_there_is():
    with pytest.raises(ValueError, match="array"):
        from_nz(np.zeros((1, 1, 16, 16)), 17, 16)


def test_keep_bits_of_one_query_stand_beside_those_of_the_next():
    problem = make_kernel_problem(2, 1, 18, 37, 16, dropout_rate=1 / 65536)
    bits = np.random.default_rng(0).integers(0, 256, (2, 1, 18, 5)).astype(np.uint8)
    packed = store_keep_bits(bits, problem)
    words = packed[:-32].reshape(2, 1, 3, 32, 2)
    for query in range(18):
        for byte in range(5):
            assert np.array_equal(words[:, :, byte // 2, query, byte % 2], bits[:, :, query, byte])
    with pytest.raises(ValueError, match="bits"):
        store_keep_bits(bits[:, :, :, :4], problem)


INNER = RowLayout({"low": 1, "pair": 2})
OUTER = RowLayout({"first": 1, "inner": (INNER, 2), "one": INNER, "last": 1})


def test_words_are_the_places_of_what_was_written() -> None:
    records = OUTER.zeros(2, 3)
    records["first"], records["last"] = 1, 2
    records["inner"]["low"][..., 1] = 3
    records["inner"]["pair"][..., 0, :] = 4, 5
    records["one"]["pair"] = 6, 7
    words = OUTER.words(records)
    assert words.shape == (2, 3, OUTER.size) and words.dtype == np.int32
    assert words[1, 2].tolist() == [1, 0, 4, 5, 3, 0, 0, 0, 6, 7, 2]
    assert [OUTER.word("last"), OUTER.word("one", "pair")] == [10, 8]
    assert [OUTER.word("inner", number, "pair") for number in range(2)] == [2, 5]
    assert OUTER.single() == {"first": 0, "last": 10} and OUTER.single("inner", 1) == {"low": 4}


def test_packed_items_have_the_same_words_beside_their_sequence() -> None:
    """Both items fill whole blocks of memory and have one size, because kernels have one buffer for either."""
    for module, inside in ((forward, ("row_blocks", 0)), (backward, ())):
        plain, packed = module.ITEM, module.VARLEN_ITEM
        assert plain.size == packed.size and plain.size % 8 == 0
        assert plain.single() == packed.single() and plain.single(*inside) == packed.single(*inside)
        assert tuple(packed.single(*inside, "sequence")) == Sequences._fields
