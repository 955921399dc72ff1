"""Compare the estimate by lanes with an estimate that has a footprint for each mask."""

import numpy as np
import pytest
import tikemu
from tikemu.isa.region import Memory, Region
from tikemu.isa.vector_mask import Lanes
from tikemu.timing import clock as clocks
from tikemu.timing.footprints import FootprintTable
from tikemu.timing.lanes import _KEPT, Frame, decisive, latest

MASKS = 6


def masked_program(seed, iterations=12):
    """Record instructions whose masks are data, with moves, scalar accesses and whole instructions between them."""
    rng = np.random.default_rng(seed)
    from tbe import tik

    t = tik.Tik()
    masks = t.Tensor("uint64", (iterations * MASKS,), tik.scope_gm, "masks")
    source, out = (t.Tensor("float32", (2048,), tik.scope_gm, name) for name in ("source", "out"))
    held = t.Tensor("uint64", (iterations * MASKS,), tik.scope_ubuf, "held")
    big = t.Tensor("float32", (2048,), tik.scope_ubuf, "big")
    half = t.Tensor("float16", (2048,), tik.scope_ubuf, "half")
    other = big.reinterpret_cast_to("int32")
    t.data_move(held, masks, 0, 1, iterations * MASKS // 4, 0, 0)
    t.vec_dup(64, big, 1.0, 32, 8)
    t.vec_dup(128, half, 1.0, 16, 8)
    kinds = rng.choice(["dup", "add", "conv", "whole", "move", "load", "read", "write", "strided", "int", "alone"], 10)
    choices = [tuple(int(n) for n in rng.integers(0, 9, 4)) for _ in kinds]
    word = t.Scalar("uint64", "word")
    number = t.Scalar("float32", "number", 1.0)
    with t.for_range(0, iterations) as i:
        for position, (kind, (a, b, c, d)) in enumerate(zip(kinds, choices)):
            if position < MASKS:
                word.set_as(held[i * MASKS + position])
            mask, repeats, pitch = [0, word], 1 + a % 3, (8, 0, 4, 16)[d % 4]
            if kind == "dup":
                t.vec_dup(mask, big[8 * b], 2.0, repeats, pitch)
            elif kind == "add":
                t.vec_add(mask, big[64 * b], big[64 * c], big[64 * d + 16], repeats, pitch, 8, 0)
            elif kind == "conv":
                t.vec_conv(mask, "", half[128 * b], big[64 * c], repeats, 4, 8)
            elif kind == "strided":
                t.vadds(mask, big[8 * b], big[64 * c], 0.5, repeats, 1 + a % 2, b % 3, pitch, 8)
            elif kind == "int":
                t.vector_dup(mask, other[8 * c], i, repeats, 1 + b % 2, 8)
            elif kind == "whole":
                t.vec_muls(64, big[64 * b], big[64 * c], 1.0, repeats, 8, 8)
            elif kind == "move":
                t.data_move(out[64 * b], big[8 * c], 0, 1 + a, 1 + d, 0, 0)
            elif kind == "load":
                t.data_move(big[16 * c], source[64 * b], 0, 1 + a % 2, 1 + d, 0, 0)
            elif kind == "read":
                number.set_as(big[16 * a + b])
            elif kind == "write":
                big[16 * c + d].set_as(number)
            else:
                with t.new_stmt_scope(disable_sync=True):
                    t.vec_dup(mask, big[64 * b], 3.0, 1, 8)
                    t.vec_dup([a, word], half[128 * c], 3.0, 1, 8)
    t.data_move(out, big, 0, 1, 256, 0, 0)
    t.BuildCCE("masked", [masks, source], [out])
    # Sparse and dense masks, and few enough different ones that iterations repeat.
    drawn = rng.integers(1, 1 << 63, (iterations, MASKS)) & rng.integers(0, 1 << 63, (iterations, MASKS))
    if seed % 2:
        drawn &= rng.integers(0, 1 << 63, drawn.shape) & rng.integers(0, 1 << 63, drawn.shape)
    if seed % 3 == 0:
        drawn[:] = drawn[:2].repeat(iterations // 2, 0)
    return t, {"masks": (drawn | 1).astype(np.uint64).ravel(), "source": np.ones(2048, np.float32)}


@pytest.mark.filterwarnings("ignore::tikemu.TikWarning")
@pytest.mark.spread
@pytest.mark.parametrize("sync", ["auto", "optimistic"])
@pytest.mark.parametrize("seed", range(20, 30))
def test_times_are_those_of_a_footprint_a_mask(seed, sync, monkeypatch):
    tikemu.install(soc="Ascend910A")
    monkeypatch.setattr(clocks, "FIRST_BACKOFF", 3)
    monkeypatch.setattr("tikemu.timing.lanes._KEPT", 8)
    program, feed = masked_program(seed)
    reports = []
    for reuse in (True, False):
        for by_lanes in (True, False):
            with monkeypatch.context() as patch:
                if not by_lanes:
                    patch.setattr(Lanes, "scattered", False)
                options = tikemu.Options(sync=sync, reuse=reuse, trace=False)
                result = tikemu.run(program, feed, options=options)
            reports.append((result.cycles, result.report()))
    assert reports.count(reports[0]) == len(reports)


def whole_bytes(frame, lanes):
    """Return the bytes of lanes, relative to the start of the frame."""
    return {int(at) for lane, row in enumerate(frame._bytes()) if lanes >> lane & 1 for at in row}


@pytest.mark.parametrize("seed", range(20))
def test_lanes_that_share_bytes(seed):
    """Which lanes of two frames, and which lanes and a region, share a byte, is decided byte by byte."""
    rng = np.random.default_rng(seed)
    memory = Memory("UB", "UB", 8192, False)
    frames = [
        Frame(
            memory,
            32 * int(rng.integers(0, 12)),
            int(rng.integers(1, 4)),
            32 * int(rng.choice([0, 1, 4, 8, 16])),
            32 * int(rng.choice([0, 1, 1, 2])),
            int(rng.choice([1, 2, 4])),
        )
        for _ in range(2)
    ]
    one, other = frames
    one.others[other] = None
    lanes = int(rng.integers(1, 1 << 62))
    touched = {byte + one.start for byte in whole_bytes(one, lanes)}
    expected = sum(
        1 << lane
        for lane in range(len(other._bytes()))
        if touched & {byte + other.start for byte in whole_bytes(other, 1 << lane)}
    )
    assert one.lanes_of(other, lanes) == expected
    start, length = int(rng.integers(0, 700)), int(rng.integers(1, 300))
    region = set(range(start, start + length))
    inside = sum(
        1 << lane
        for lane in range(len(one._bytes()))
        if region & {byte + one.start for byte in whole_bytes(one, 1 << lane)}
    )
    assert one.lanes_in(Region.span(memory, start, length)) == inside


def test_what_a_frame_drops_decides_nothing():
    rng = np.random.default_rng(0)
    frame = Frame(Memory("UB", "UB", 4096, False), 0, 1, 0, 32, 4)
    entries = []
    for time in range(3 * _KEPT):
        lanes = int(rng.integers(1, 1 << 63)) & int(rng.integers(1, 1 << 63)) & int(rng.integers(1, 1 << 63))
        entries.append((float(time // 2), lanes))
        frame.record(lanes, float(time // 2), True)
    assert len(frame.writes) <= _KEPT
    for lane in range(64):
        assert latest(frame.writes, 1 << lane, -1.0) == latest(entries, 1 << lane, -1.0)
    assert sum(lanes for _, lanes in decisive(entries)) == sum(1 << lane for lane in range(63))


def test_dropped_footprints_and_frames():
    """Whatever is still under way is found again; all else is dropped."""
    table, memory = FootprintTable(), Memory("UB", "UB", 4096, False)
    lanes = table.lanes(memory, (0, 1, 0, 32, 4), 0b101)
    table.lanes(memory, (1024, 1, 0, 32, 4), 0b101)
    whole = table.span(memory, 0, 4)
    whole.write_done = 50.0
    lanes.record(100.0, True)
    table.prune(20.0)
    assert len(table) == 2
    assert table.span(memory, 0, 4) is whole
    assert whole.latest(0.0, False) == 100.0
    assert table.lanes(memory, (0, 1, 0, 32, 4), 0b100).conflicts == []
    assert table.lanes(memory, (0, 1, 0, 32, 4), 0b001).conflicts == [whole]
