"""Test that the kernel's positional visibility equals `visibility.Band`."""

import ctypes

from flash_attention.backends.cpu import library
from flash_attention.call.visibility import Band
from hypothesis import example, given, settings
from hypothesis import strategies as st

sides = st.one_of(st.just(-1), st.integers(0, 400))
blocks = st.one_of(st.integers(0, 6), st.just(65536))
BANDS = st.builds(
    Band,
    seq_q=st.integers(1, 600),
    seq_k=st.one_of(st.integers(1, 600), st.just(1 << 25)),
    offset=st.one_of(st.just(0), st.integers(-600, 600), st.integers(0, 1 << 25)),
    causal=st.booleans(),
    left=sides,
    right=sides,
    prev_blocks=blocks,
    next_blocks=blocks,
    block=st.sampled_from((1, 3, 16, 64, 128, 256)),
    prefix=st.sampled_from((0, 0, 1, 130)),
)


@settings(max_examples=300, deadline=None)
@given(BANDS, st.integers(0, 599))
@example(Band(10, 600, offset=-100, next_blocks=3, block=64), 0)  # blocks before key 0 round down
@example(Band(10, 600, offset=-128, next_blocks=3, block=64), 0)
@example(Band(1, 1 << 25, offset=(1 << 25) - 1, prev_blocks=65536, block=64), 0)  # all of them
def test_same_interval(band, row):
    handle = library.load().handle
    fields = (band.seq_k, band.offset, band.causal, band.left, band.right, band.prev_blocks, band.next_blocks)
    fields = (ctypes.c_int64 * 9)(*map(int, fields), band.block, band.prefix)
    interval = (ctypes.c_int64 * 2)()
    handle.flash_attention_band(fields, ctypes.c_int64(row), interval)
    lo, hi = interval
    assert (lo, max(lo, hi)) == band.keys(row)
