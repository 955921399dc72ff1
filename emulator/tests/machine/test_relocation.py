"""Prepared operations that are used again at other addresses do what freshly prepared ones do."""

import numpy as np
import pytest
import tikemu
from tikemu import Options, TikBoundsError, TikUndefinedError, TikWarning, tik
from tikemu.machine.calls import relocation, site

from emulator.tests.support.random_program import Generator

pytestmark = pytest.mark.usefixtures("soc", "quiet")
EVERY, NONE = 0, 1 << 30


def _both(monkeypatch, build, feeds, **options):
    """Run with every call moved and with none, and compare everything; returns the result."""
    results = []
    for kept in (EVERY, NONE):
        monkeypatch.setattr(site, "KEPT", kept)
        results.append(tikemu.run(build(), feeds, options=Options(**options)))
    moved, fresh = results
    for name, array in fresh.outputs.items():
        np.testing.assert_array_equal(moved.outputs[name].view(np.uint8), array.view(np.uint8))
    assert moved.cycles == fresh.cycles
    assert moved.instructions.keys() == fresh.instructions.keys()
    for name, use in fresh.instructions.items():
        assert moved.instructions[name].count == use.count
        assert moved.instructions[name].cycles == pytest.approx(use.cycles, rel=1e-12)
    assert (moved.gm_read_bytes, moved.gm_written_bytes) == (fresh.gm_read_bytes, fresh.gm_written_bytes)
    return moved


@pytest.fixture
def moves(monkeypatch):
    """Count the operations that were moved."""
    count = [0]
    original = relocation.Relocator._move

    def counted(self, *arguments):
        count[0] += 1
        return original(self, *arguments)

    monkeypatch.setattr(relocation.Relocator, "_move", counted)
    return count


@pytest.mark.parametrize("seed", range(100, 112))
def test_random_programs(monkeypatch, seed):
    generator = Generator(seed)
    _both(monkeypatch, lambda: generator.tik, generator.feeds())


def _kernel(body, *arguments):
    """Return a built kernel between two GM tensors; ``body`` writes its statements."""
    instance = tik.Tik()
    source, target = (instance.Tensor("float32", (4096,), tik.scope_gm, name) for name in ("source", "target"))
    body(instance, source, target, *arguments)
    instance.BuildCCE("moving", [source], [target])
    return instance


FEEDS = {"source": np.random.default_rng(3).standard_normal(4096).astype(np.float32)}


@pytest.mark.parametrize("strict", [False, True])
def test_loop_over_rows(monkeypatch, moves, strict):
    """The program has moves, scalars from memory, reductions, fills, conversions and in-place instructions."""

    def body(instance, source, target):
        x = instance.Tensor("float32", (64, 64), tik.scope_ubuf, "x")
        sums = instance.Tensor("float32", (64,), tik.scope_ubuf, "sums")
        half = instance.Tensor("float16", (64, 64), tik.scope_ubuf, "half")
        factor = instance.Scalar("float32")
        with instance.for_range(0, 64) as i:
            instance.data_move(x[i * 64], source[i * 64], 0, 1, 8, 0, 0)
            factor.set_as(x[i * 64 + 1])
            instance.vmuls(64, x[i * 64], x[i * 64], factor, 1, 1, 1, 8, 8)
            instance.vcadd(64, sums[i], x[i * 64], 1, 1, 1, 8)
            instance.vector_dup(8, x[i, 32], factor, 1, 1, 8)
            instance.vaxpy(64, x[i * 64], x[i * 64], factor, 1, 1, 1, 8, 8)
            instance.vconv(64, "", half[i * 64], x[i * 64], 1, 1, 1, 4, 8)
            instance.vconv(64, "", x[i * 64], half[i * 64], 1, 1, 1, 8, 4)
            instance.vadd(64, x[i * 64], x[i * 64], sums, 1, 1, 1, 1, 8, 8, 8)
            instance.data_move(target[i * 64], x[i * 64], 0, 1, 8, 0, 0)

    if strict:  # sums is read before it is complete
        with pytest.raises(TikUndefinedError, match="sums"):
            _both(monkeypatch, lambda: _kernel(body), FEEDS, strict=True)
        return
    _both(monkeypatch, lambda: _kernel(body), FEEDS)
    assert moves[0] >= 9 * 64


def test_strict_marks_move_too(monkeypatch, moves):
    """Copies at run-time offsets carry the marks of undefined bytes; the third row is never written."""

    def body(instance, source, target, rows):
        x = instance.Tensor("float32", (64, 64), tik.scope_ubuf, "x")
        y = instance.Tensor("float32", (64, 64), tik.scope_ubuf, "y")
        with instance.for_range(0, 64) as i, instance.if_scope(tik.any(i < 2, i > 1 + rows)):
            instance.data_move(x[i, 0], source[i * 64], 0, 1, 8, 0, 0)
        with instance.for_range(0, 64) as i:
            instance.data_move(y[i, 0], x[i, 0], 0, 1, 8, 0, 0)
        with instance.for_range(0, 64) as i:
            instance.vadds(64, y[i, 0], y[i, 0], 1.0, 1, 1, 1, 8, 8)
        instance.data_move(target, y, 0, 1, 512, 0, 0)

    result = _both(monkeypatch, lambda: _kernel(body, 0), FEEDS, strict=True)
    np.testing.assert_array_equal(result.outputs["target"], FEEDS["source"] + np.float32(1))
    assert moves[0] > 64
    monkeypatch.setattr(site, "KEPT", EVERY)
    with pytest.raises(TikUndefinedError, match=r"undefined bytes of tensor 'y' \(element 128"):
        tikemu.run(_kernel(body, 1), FEEDS, options=Options(strict=True))


@pytest.mark.parametrize("kept", [EVERY, NONE])
def test_bounds_are_checked_at_every_address(monkeypatch, kept):
    def body(instance, source, target, last):
        x = instance.Tensor("float32", (64 * 64,), tik.scope_ubuf, "x")
        with instance.for_range(0, last) as i:
            instance.vadds(64, x[i * 64], x[i * 64], 1.0, 1, 1, 1, 8, 8)
        instance.data_move(target, x, 0, 1, 512, 0, 0)

    monkeypatch.setattr(site, "KEPT", kept)
    tikemu.run(_kernel(body, 64), FEEDS)
    with pytest.raises(TikBoundsError, match="test_relocation.py"):
        tikemu.run(_kernel(body, 65), FEEDS)


@pytest.mark.parametrize("source_of", [lambda i: (13 - i) * 128, lambda i: 0 * i], ids=["apart", "in place"])
def test_overlap_is_found_at_every_address(monkeypatch, source_of):
    """Operands are disjoint or equal at first; later, a repeat writes bytes that a following repeat reads."""

    def body(instance, source, target):
        x = instance.Tensor("float32", (4096,), tik.scope_ubuf, "x")
        instance.data_move(x, source, 0, 1, 512, 0, 0)
        with instance.for_range(0, 14) as i:
            instance.vadds(64, x[i * 128], x[source_of(i)], 1.0, 3, 1, 1, 8, 8)
        instance.data_move(target, x, 0, 1, 512, 0, 0)

    _both(monkeypatch, lambda: _kernel(body), FEEDS)
    monkeypatch.setattr(site, "KEPT", EVERY)
    with pytest.warns(TikWarning, match="a later repeat reads"):
        tikemu.run(_kernel(body), FEEDS)


def test_cost_depends_on_the_layer_of_the_banks(monkeypatch, moves):
    """Operands 64 KiB apart lie in different banks; a walk may cross from one layer to the next."""

    def body(instance, source, target):
        x = instance.Tensor("float32", (40960,), tik.scope_ubuf, "x")
        with instance.for_range(0, 35) as i:
            instance.vadd(64, x[i * 1024], x[i * 1024 + 4096], x[16384], 16, 1, 1, 1, 8, 8, 8)
            instance.vadds(64, x[i * 1024 + 512], x[512 + 17408 - 32 * 512 + i * 512], 1.0, 16, 1, 1, 8, 8)
        instance.data_move(target, x, 0, 1, 512, 0, 0)

    _both(monkeypatch, lambda: _kernel(body), FEEDS)
    assert moves[0] > 20


def test_cube_operands_move(monkeypatch, moves):
    def body(instance, source, target):
        half = instance.Tensor("float16", (4096,), tik.scope_ubuf, "half")
        x = instance.Tensor("float32", (4096,), tik.scope_ubuf, "x")
        l1 = instance.Tensor("float16", (4096,), tik.scope_cbuf, "l1")
        a = instance.Tensor("float16", (4096,), tik.scope_ca, "a")
        b = instance.Tensor("float16", (4096,), tik.scope_cb, "b")
        c = instance.Tensor("float32", (4096,), tik.scope_cc, "c")
        instance.data_move(x, source, 0, 1, 512, 0, 0)
        instance.vconv(64, "", half, x, 64, 1, 1, 4, 8)
        with instance.for_range(0, 16) as i:
            instance.data_move(l1[i * 256], half[i * 256], 0, 1, 16, 0, 0)
        with instance.for_range(0, 4) as i:
            instance.load2dv1(a[i * 1024], l1[i * 256], 0, 4, 4, 0, False)
            instance.load2dv1(b[i * 1024], l1[i * 256], 0, 4, 4, 0, True)
        instance.mmad(c, a, b, 64, 64, 64, 0)
        instance.data_move(x, c, 0, 1, 16, 0, 0)
        instance.data_move(target, x, 0, 1, 512, 0, 0)

    for strict in (False, True):
        _both(monkeypatch, lambda: _kernel(body), FEEDS, strict=strict)
    assert moves[0] >= 2 * (16 + 8) - 6


WORDS = np.random.default_rng(5).integers(0, 2**63, 64).astype(np.uint64) * (np.arange(64) % 3 > 0).astype(np.uint64)


def _scalar_kernel(every):
    """Return a kernel with masks and scalars of run time. Some masks enable no lane."""
    instance = tik.Tik()
    source = instance.Tensor("uint64", (64,), tik.scope_gm, "source")
    words = instance.Tensor("uint64", (64,), tik.scope_ubuf, "words")
    dtypes = ("float32", "float16", "int32", "uint16")
    targets = [instance.Tensor(dtype, (512,), tik.scope_gm, f"to_{dtype}") for dtype in dtypes]
    places = [instance.Tensor(dtype, (512,), tik.scope_ubuf, dtype) for dtype in dtypes]
    for place in places:
        instance.vector_dup(64, place, 3, 4, 1, 8)
    instance.data_move(words, source, 0, 1, 16, 0, 0)
    word = instance.Scalar("uint64")
    with instance.for_range(0, 64) as i:
        word.set_as(words[i % every])
        for place in places:
            instance.vector_dup([0, word], place, i * 70001 - 3, 2, 1, 8)  # wraps in 16 bits
            instance.vector_dup([0, word], place[256], i - 3, 1, 2, 8)  # blocks apart
            instance.vector_dup([0, word], place[i % 2 * 32], i, 1, 1, 8)
        instance.vmuls([0, word], places[0], places[0], i - 2, 2, 1, 1, 8, 8)
        instance.vadds([0, word], places[1], places[1], i, 2, 1, 1, 8, 8)
        instance.vmuls([0, word], places[2], places[2], i * 7 - 9, 2, 1, 1, 8, 8)
    for place, target in zip(places, targets):
        instance.data_move(target, place, 0, 1, 512 * np.dtype(place.dtype).itemsize // 32, 0, 0)
    instance.BuildCCE("scalars", [source], targets)
    return instance


@pytest.mark.parametrize("sync", ["auto", "conservative"])
def test_scalars_and_masks_of_run_time(monkeypatch, moves, sync):
    _both(monkeypatch, lambda: _scalar_kernel(64), {"source": WORDS}, sync=sync)
    moves[0] = 0
    prepared = []
    original = site.CallSite.prepare
    monkeypatch.setattr(site.CallSite, "prepare", lambda self, key: prepared.append(key) or original(self, key))
    _both(monkeypatch, lambda: _scalar_kernel(8), {"source": WORDS}, sync=sync)
    assert moves[0] == 15 * 64
    # Without moves each execution of the 15 calls is prepared, else each mask once and once to learn.
    assert len(prepared) < (64 + 2 * 8 + 2) * 15


def test_masks_that_never_return_are_not_kept_to_be_moved(monkeypatch, moves):
    monkeypatch.setattr(relocation, "TRIAL", 8)
    _both(monkeypatch, lambda: _scalar_kernel(64), {"source": WORDS | (np.arange(64) + 1).astype(np.uint64)})
    assert moves[0] < 15 * 20


def test_a_number_is_an_offset_and_something_else(monkeypatch):
    """Addresses alike modulo the alignment do not make calls alike that move other lengths."""

    def body(instance, source, target):
        x = instance.Tensor("float32", (4096,), tik.scope_ubuf, "x")
        instance.vector_dup(64, x, 0, 64, 1, 8)
        number = instance.Scalar("int32")
        with instance.for_range(0, 6) as i:
            number.set_as(8 + 8 * i)
            instance.data_move(x[number], source, 0, 1, number, 0, 0)
            instance.vec_adds(64, x[number], x[number], 1.0, number, 8, 8)
        instance.data_move(target, x, 0, 1, 512, 0, 0)

    _both(monkeypatch, lambda: _kernel(body), FEEDS)
