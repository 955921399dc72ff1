"""Byte footprints against sets of bytes."""

import numpy as np
import pytest
from tikemu.isa.region import Memory, Region

SIZE = 400


def random_pieces(rng):
    """Return pieces that stay inside the memory; strides may be 0, touch or overlap."""
    pieces = []
    for _ in range(int(rng.integers(1, 4))):
        n0, n1, width = (int(n) for n in rng.integers(1, [5, 5, 9]))
        s0, s1 = int(rng.integers(0, 30)), int(rng.integers(0, 12))
        pieces.append((int(rng.integers(0, 150)), n0, s0, n1, s1, width))
    return tuple(pieces)


def bytes_of(pieces):
    """Return the byte addresses that pieces of a region cover."""
    return {
        base + i * s0 + j * s1 + k
        for base, n0, s0, n1, s1, width in pieces
        for i in range(n0)
        for j in range(n1)
        for k in range(width)
    }


@pytest.mark.parametrize("seed", range(5))
def test_regions_are_sets_of_bytes(seed):
    rng = np.random.default_rng(seed)
    memory = Memory("UB", "UB", SIZE, track=True)
    for _ in range(200):
        first, second = random_pieces(rng), random_pieces(rng)
        a, b = Region(memory, first), Region(memory, second)
        inside = bytes_of(first)
        assert set(np.flatnonzero(a.bitmap(0, SIZE)).tolist()) == inside
        assert (a.start, a.end) == (min(inside), max(inside) + 1)
        assert a.contiguous is False or inside == set(range(a.start, a.end))
        assert a.overlaps(b) is bool(inside & bytes_of(second))
        for view in a.views(memory.defined):
            view[...] = 1
        assert set(np.flatnonzero(memory.defined).tolist()) == inside
        memory.defined[:] = 0


def test_regions_of_two_memories_never_overlap():
    a, b = Memory("GM", "a", 64, track=False), Memory("GM", "b", 64, track=False)
    assert Region.span(a, 0, 32).overlaps(Region.span(a, 31, 1))
    assert not Region.span(a, 0, 32).overlaps(Region.span(b, 0, 32))
    assert a.defined is None


def test_equal_spans_have_equal_pieces():
    """All ways to write a contiguous walk give the same region."""
    memory = Memory("UB", "UB", 4096, track=False)
    forms = {
        Region(memory, pieces).pieces
        for pieces in (
            ((0, 1, 0, 1, 0, 512),),
            ((0, 2, 256, 1, 0, 256),),
            ((0, 2, 256, 8, 32, 32),),
            ((0, 1, 0, 16, 32, 32),),
        )
    }
    assert len(forms) == 1
    assert Region.strided(memory, 0, 2, 256, 256).pieces in forms
    assert Region.strided(memory, 0, 2, 256, 255).pieces not in forms


def test_views_outside_the_memory_are_refused():
    memory = Memory("UB", "UB", 64, track=False)
    assert memory.view("float16", 32, (2, 8), (16, 2)).shape == (2, 8)
    with pytest.raises((ValueError, TypeError)):
        memory.view("float16", 34, (2, 8), (16, 2))
