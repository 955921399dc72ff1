"""Test that a row's words are at its NumPy fields, also in inner rows."""

import numpy as np
from flash_attention.kernels.tik.backward import schedule as backward
from flash_attention.kernels.tik.forward import schedule as forward
from flash_attention.kernels.tik.row_layout import RowLayout
from flash_attention.kernels.tik.varlen import Sequences

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
