"""The dropout stream: published vectors, the statistics that dropout needs, and the kernel's copy of it."""

import numpy as np
import pytest
from flash_attention.call import Call
from flash_attention.dropout import philox

from tests.train.flash_attention.support.calls import make_call
from tests.train.flash_attention.ut.native.support.calls import run

# Known answers of Random123, file tests/kat_vectors, "philox4x32 10": counter, key, result.
KNOWN = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_known_answers(counter, key, expected):
    assert philox.philox4x32(np.array(counter), np.array(key)).tolist() == expected


def call_of(**more) -> Call:
    """Return a training call with dropout and odd sizes."""
    sizes = {"batch": 2, "heads": 3, "seq_q": 37, "seq_k": 203, "head_dim": 203, "dropout_rate": 0.3, **more}
    return make_call(dtype="float32", training=True, **sizes)


def drawn_by_kernel(call: Call, seed) -> np.ndarray:
    """Keep decisions of the kernel: with equal scores and unit vectors as values the output shows them."""
    query = np.zeros(call.shape_query(), np.float32)
    value = np.broadcast_to(np.eye(call.seq_k, dtype=np.float32), call.shape_key())
    key = np.zeros(call.shape_key(), np.float32)
    output = run(call, query, key, value, query, seed=np.array(seed, np.int64))[0]
    return output != 0


@pytest.mark.parametrize(
    ("seed", "more"),
    [
        ((1, 2), {}),
        ((-1, 2**40 + 17), {"dropout_rate": 0.9}),
        ((2**31, -(2**31)), {"batch_offset": 5, "head_offset": 2**20, "all_heads": 2**20 + 3}),
        ((0, 0), {"dropout_rate": 1e-9}),
        ((0, 0), {"dropout_rate": 0.99999999}),
    ],
)
def test_kernel_draws_the_same(isa, seed, more):
    call = call_of(**more)
    expected = np.unpackbits(philox.keep_bits(call, seed), axis=-1, count=call.seq_k, bitorder="little")
    np.testing.assert_array_equal(drawn_by_kernel(call, seed), expected.astype(bool))


def test_rate_and_independence_of_neighbours():
    """The share of kept keys is right within four standard deviations, and neighbours are uncorrelated."""
    call = call_of(batch=1, heads=4, seq_q=256, seq_k=1024, head_dim=1, dropout_rate=0.25)
    bits = np.unpackbits(philox.keep_bits(call, (3, 4)), axis=-1, bitorder="little").astype(np.float64)
    assert abs(bits.mean() - 0.75) < 4 * np.sqrt(0.25 * 0.75 / bits.size)
    centred = bits - bits.mean()
    for neighbour in (centred[..., 1:] * centred[..., :-1], centred[:, :, 1:] * centred[:, :, :-1],
                      centred[:, 1:] * centred[:, :-1]):  # fmt: skip
        assert abs(neighbour.mean()) < 4 * 0.25 * 0.75 / np.sqrt(neighbour.size)
