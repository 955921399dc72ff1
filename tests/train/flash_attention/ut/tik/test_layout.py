"""Packing to and from the layouts of the kernels."""

import numpy as np
import pytest
from flash_attention.kernels.tik.layout import HIDDEN_BY_BIAS, from_nz, nz_shape, pack_keep_bits, to_nz

from tests.train.flash_attention.support.problems import make_kernel_problem
from tests.train.flash_attention.ut.tik.support.stored_arrays import pack_bias, pack_keys


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
    packed = pack_keep_bits(bits, problem)
    words = packed[:-32].reshape(2, 1, 3, 32, 2)
    for query in range(18):
        for byte in range(5):
            assert np.array_equal(words[:, :, byte // 2, query, byte % 2], bits[:, :, query, byte])
    with pytest.raises(ValueError, match="bits"):
        pack_keep_bits(bits[:, :, :, :4], problem)


def test_values_per_key_are_padded():
    packed = pack_keys(np.ones((2, 3, 1, 20)))
    assert packed.shape == (6, 32) and packed.dtype == np.float16
    assert packed[:, :20].all() and not packed[:, 20:].any()


def test_keys_hidden_by_a_bias_have_planes_of_their_own():
    bias = np.full((2, 1, 1, 20), 0.5, np.float16)
    bias[1, ..., 3], bias[0, ..., 4] = -np.inf, -65504
    packed = pack_bias(bias)
    assert packed.shape == (4, 32) and np.isfinite(packed).all()
    assert list(zip(*np.nonzero(packed[2:]))) == [(0, 4), (1, 3)] and packed[3, 3] == HIDDEN_BY_BIAS
    assert packed[1, 3] == packed[0, 4] == 0 and (packed[:2, :20] == 0.5).sum() == 38
