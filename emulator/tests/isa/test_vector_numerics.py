"""Arithmetic of the vector unit: facts of the documents and of measured silicon, bit for bit; NumPy and compiled."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest
from tikemu import build_native, native
from tikemu.errors import TikWarning
from tikemu.isa import numerics

from emulator.tests.support.bench import Bench
from emulator.tests.support.naive_values import stored
from emulator.tests.support.vector_inputs import EDGES32

ALL_HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16)


def apply(api, values, *scalars):
    """Run a one-source instruction over any number of elements. Each piece fits the Unified Buffer."""
    width, result = 256 // values.itemsize, []
    bench = Bench()
    for start in range(0, values.size, 128 * width):
        bench.top["UB"] = 0
        part = np.resize(values[start : start + 128 * width], 128 * width)
        x, y = bench.ub(part), bench.ub(np.zeros_like(part))
        bench.call(api, width, y, x, *scalars, 128, 8, 8)
        result.append(y.values)
    return np.concatenate(result)[: values.size]


# ------------------------------------------------------------------------------------------- documents
def test_documented_exponentials(arithmetic):
    """exp(12) saturates in float16; e is the nearest float16, 2.71875."""
    assert apply("vec_exp", np.array([12.0, 1.0, -20.0], np.float16)).tolist() == [65504, 2.71875, np.float16(2e-9)]
    assert apply("vec_exp", np.array([89.0, -104.0], np.float32)).tolist() == [np.finfo(np.float32).max, 0]


def test_equal_operands_give_the_first(bench, arithmetic):
    x, y = bench.ub(np.array([0.0, -0.0], np.float32)), bench.ub(np.array([-0.0, 0.0], np.float32))
    z = bench.ub(np.zeros(2, np.float32))
    for api in ("vec_max", "vec_min"):
        bench.call(api, 2, z, x, y, 1, 8, 8, 8)
        assert np.signbit(z.values).tolist() == [False, True]


# ------------------------------------------------------------------------------------------- silicon
def test_no_fused_multiply_add(bench, arithmetic):
    """(1 + 2^-12)^2 - 1 loses the last bit of the product if the product is rounded before the sum."""
    a = np.float32(1 + 2.0**-12)
    x, d = bench.ub(np.full(64, a)), bench.ub(np.full(64, -1, np.float32))
    bench.call("vec_axpy", 64, d, x, float(a), 1, 8, 8)
    assert (d.values == np.float32(a * a) - np.float32(1)).all()
    assert d.values[0] != np.float32(float(a) * float(a) - 1)
    d = bench.ub(np.full(64, -1, np.float32))
    bench.call("vmla", 64, d, x, x, 1, 1, 1, 1, 8, 8, 8)
    assert d.values[0] == np.float32(a * a) - np.float32(1)


def test_multiply_add_of_mixed_types_rounds_once(bench, arithmetic):
    """The product of two float16 is exact in float32."""
    a = np.float16(1 + 2.0**-10)
    x, d = bench.ub(np.full(64, a)), bench.ub(np.full(64, -1, np.float32))
    bench.call("vec_axpy", 64, d, x, float(a), 1, 8, 4)
    assert (d.values == float(a) * float(a) - 1).all()


def test_subnormals_are_kept(arithmetic):
    tiny = np.array([1, 2, 3, 0x3FF, 0x8001], np.uint16).view(np.float16)
    assert (apply("vec_adds", tiny, 0.0) == tiny).all()
    halved = apply("vec_muls", np.array([2.0**-14, 1.5 * 2.0**-15], np.float16), 0.5)
    assert halved.tolist() == [2.0**-15, 1.5 * 2.0**-16]
    small = np.array([1, 0x7FFFFF, 0x80000001], np.uint32).view(np.float32)
    assert (apply("vec_adds", small, 0.0) == small).all()
    assert apply("vec_muls", np.array([2.0**-126], np.float32), 0.5)[0] == 2.0**-127


def test_reciprocal_square_root_table(arithmetic):
    """256 steps depend on exponent parity and 7 mantissa bits, with 9 significant bits and a worst error near 2^-8."""
    mantissas = (1 + np.arange(1 << 10) / (1 << 10)).astype(np.float32)
    x = np.concatenate([mantissas, 2 * mantissas])
    result = apply("vec_rsqrt", x)
    assert (result.view(np.uint32) & 0x7FFF == 0).all()  # 8 stored mantissa bits
    steps = result.reshape(256, 8)
    assert (steps == steps[:, :1]).all()
    middles = np.concatenate([1 + (np.arange(128) + 0.5) / 128, 2 + (np.arange(128) + 0.5) / 64])
    assert (abs(steps[:, 0] - 1 / np.sqrt(middles)) <= 2.0**-10).all()
    error = abs(result.astype(np.float64) * np.sqrt(x.astype(np.float64)) - 1).max()
    assert 2.0**-9 < error < 1.1 * 2.0**-8
    # Scaling by 4 halves the result, also for subnormal inputs.
    for exponent in range(-148, 126):
        if exponent % 2 == 0:
            value = np.float32(math.ldexp(1.0, exponent))
            assert apply("vec_rsqrt", value[None])[0] == math.ldexp(result[0], -exponent // 2)


def test_reciprocal_table(arithmetic):
    """The table has 256 steps by 8 mantissa bits, 9 significant bits, and a worst error between 1e-3 and 2^-8."""
    x = (1 + np.arange(1 << 11) / (1 << 11)).astype(np.float32)
    result = apply("vec_rec", x)
    assert (result.view(np.uint32) & 0x7FFF == 0).all()
    steps = result.reshape(256, 8)
    assert (steps == steps[:, :1]).all()
    assert (abs(steps[:, 0] - 1 / (1 + (np.arange(256) + 0.5) / 256)) <= 2.0**-10).all()
    error = abs(result.astype(np.float64) * x - 1).max()
    assert 1e-3 < error < 2.0**-8
    assert (apply("vec_rec", -x) == -result).all()
    assert apply("vec_rec", np.array([2.0**-149, 2.0**-130], np.float32)).tolist() == [np.finfo(np.float32).max] * 2
    assert apply("vec_rec", np.array([2.0**127], np.float32))[0] == math.ldexp(result[0], -127)


def test_half_of_the_tables(arithmetic):
    """float16 uses the same tables on the widened value."""
    halves = ALL_HALVES[np.isfinite(ALL_HALVES)]
    for api in ("vec_rec", "vec_rsqrt"):
        wide = apply(api, halves.astype(np.float32))
        expected = np.array([stored(float(value), "float16") for value in wide], np.float16)
        assert (apply(api, halves).view(np.uint16) == expected.view(np.uint16)).all()


# ------------------------------------------------------------------------------------------- NumPy against compiled
FUNCTIONS = [
    ("vec_abs", ()),
    ("vec_relu", ()),
    ("vec_exp", ()),
    ("vec_ln", ()),
    ("vec_sqrt", ()),
    ("vec_rec", ()),
    ("vec_rsqrt", ()),
    ("vec_adds", (1e-3,)),
    ("vec_muls", (-3.7,)),
]


def check_implementations(monkeypatch, result):
    """Check that all implementations give the same bits."""
    results = []
    for mode in ("0", "", "generic"):
        monkeypatch.setenv("TIKEMU_NATIVE", mode)
        results.append(result().tobytes())
    assert results[0] == results[1] == results[2]


@pytest.mark.usefixtures("native_library")
@pytest.mark.filterwarnings("ignore::tikemu.errors.TikWarning")
@pytest.mark.parametrize(("api", "scalars"), FUNCTIONS)
def test_native_equals_numpy(api, scalars, monkeypatch):
    """All implementations agree for every float16, and for float32 of every exponent."""
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 1 << 32, 1 << 16, dtype=np.uint64).astype(np.uint32)
    for values in (ALL_HALVES, np.concatenate([EDGES32, patterns]).view(np.float32)):
        check_implementations(monkeypatch, lambda given=values: apply(api, given, *scalars))


def test_float16_conversion_is_exact():
    """The table widens every pattern; narrowing rounds to nearest even, checked against the neighbours."""
    finite = ALL_HALVES[np.isfinite(ALL_HALVES)]
    assert (numerics.widen(finite.view(np.uint16)) == finite.astype(np.float64)).all()
    positive = np.sort(finite[finite >= 0].astype(np.float64))
    positive = np.unique(positive)
    ties = ((positive[:-1] + positive[1:]) / 2).astype(np.float32)
    lower_even = positive[:-1].astype(np.float16).view(np.uint16) % 2 == 0
    assert (numerics.narrow(ties.copy()).view(np.float16) == np.where(lower_even, positive[:-1], positive[1:])).all()
    above = np.nextafter(ties, np.float32(np.inf))
    assert (numerics.narrow(above).view(np.float16) == positive[1:]).all()


# ------------------------------------------------------------------------------------------- the library itself
@pytest.mark.parametrize("home", [True, False])
def test_without_the_library(monkeypatch, tmp_path, home):
    """A container may run as a user that the system does not know, and who has no home."""

    def folder():
        if not home:
            raise RuntimeError("no home")
        return tmp_path

    monkeypatch.setattr(native, "library_folder", folder)
    monkeypatch.setenv("TIKEMU_NATIVE", "")
    native._load.cache_clear()
    try:
        assert not native.available()
        assert apply("vec_adds", np.array([1.0], np.float16), 1.0)[0] == 2
    finally:
        native._load.cache_clear()


@pytest.mark.usefixtures("native_library")
@pytest.mark.parametrize("damage", ["empty", "half", "byte", "longer", "text", "no library"])
def test_a_damaged_library_is_not_loaded(monkeypatch, tmp_path, damage):
    """It would end the process. NumPy computes, with a warning, and building it again repairs it."""
    good = (native.library_folder() / native.library_name()).read_bytes()
    half = len(good) // 2
    target = tmp_path / native.library_name()
    content = {
        "empty": b"",
        "half": good[:half],
        "byte": good[:half] + bytes([good[half] ^ 1]) + good[half + 1 :],
        "longer": good + b"x",
        "text": b"no library",
        "no library": native.sealed(b"no library"),
    }
    target.write_bytes(content[damage])
    monkeypatch.setattr(native, "library_folder", lambda: tmp_path)
    monkeypatch.setenv("TIKEMU_NATIVE", "")
    native._load.cache_clear()
    try:
        with pytest.warns(TikWarning, match="python -m tikemu.build_native compiles it anew"):
            assert not native.available()
        assert apply("vec_adds", np.array([1.0], np.float16), 1.0)[0] == 2
        assert native.intact(target) == (damage == "no library")
        if damage == "half":  # compiling takes its time
            assert build_native.build() == target
            native._load.cache_clear()
            assert native.available() and native.intact(target)
    finally:
        native._load.cache_clear()


def test_a_cache_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "file"), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-m", "tikemu.build_native"], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 1 and "set XDG_CACHE_HOME" in done.stderr and "Traceback" not in done.stderr


def test_a_library_of_other_sources_is_not_loaded(monkeypatch):
    """The file name carries a digest of the sources."""
    name = native.library_name()
    monkeypatch.setattr(native, "SOURCES", ("vector.c",))
    assert native.library_name() != name


@pytest.mark.usefixtures("native_library")
def test_building_reports_what_the_compiler_says(monkeypatch, tmp_path):
    monkeypatch.setenv("CC", "cc --no-such-option")
    with pytest.raises(RuntimeError, match="failed:"):
        build_native.build(tmp_path)
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RuntimeError, match="no C compiler found"):
        build_native.build(tmp_path)
