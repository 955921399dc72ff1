"""Conversions against the naive interpreter, and the documented and measured examples bit for bit."""

import numpy as np
import pytest
from tikemu.errors import TikUnsupportedArgumentError

from emulator.tests.support.bench import Bench
from emulator.tests.support.naive_values import stored
from emulator.tests.support.vector_inputs import settings

pytestmark = pytest.mark.filterwarnings("ignore::tikemu.errors.TikWarning")


MODES = ("round", "floor", "ceil", "ceiling", "away-zero", "to-zero")
CASES = [
    *((("float32", "float16"), mode) for mode in ("", "none")),
    *((("float16", "float32"), mode) for mode in ("", "none", "odd")),
    *((("int32", src), mode) for src in ("float16", "float32") for mode in MODES),
    *((("float32", "int32"), mode) for mode in ("", "none")),
    *(((dst, "float16"), mode) for dst in ("int8", "uint8") for mode in ("", "none")),
    *((("float16", src), mode) for src in ("int8", "uint8") for mode in ("", "none")),
]


@pytest.mark.parametrize("legacy", [False, True], ids=["vec", "legacy"])
@pytest.mark.parametrize(("pair", "mode"), CASES, ids=[f"{s}-{d}-{m or 'default'}" for (d, s), m in CASES])
def test_conversion(arithmetic, pair, mode, legacy):
    for setting in settings(f"conv{mode}", pair, legacy, count=3):
        setting.agree("conv", mode=mode)


@pytest.mark.parametrize("deqscale", [1.0, 0.1, 3e-8, -65504.0])
def test_dequantisation(arithmetic, deqscale):
    """int32 becomes float16 by a float64 product that is rounded once."""
    for setting in settings("deq", ("float16", "int32"), False, count=2):
        setting.agree("conv", mode="none", deqscale=deqscale)


def convert(values, mode, dst="float16", src="float32"):
    """Return the results of vec_conv."""
    bench = Bench()
    x = bench.ub(np.array(values, src))
    y = bench.ub(np.zeros(len(values), dst))
    bench.call("vec_conv", len(values), mode, y, x, 1, 8, 8)
    return y.values.tolist()


def test_documented_example_of_the_round_modes(arithmetic):
    """0.5 + 2^-12 is a tie in float16."""
    x = 0.5 + 2.0**-12
    assert convert([x], "none") == [0.5]
    assert convert([x], "odd") == [0.5 + 2.0**-11]
    y = 2.0**22 + 0.5
    whole = {
        mode: convert([y], mode, "int32")[0] - 2**22 for mode in ("round", "floor", "ceil", "away-zero", "to-zero")
    }
    assert whole == {"round": 0, "floor": 0, "ceil": 1, "away-zero": 1, "to-zero": 0}


def test_measured_float32_to_float16(arithmetic):
    """On silicon ties go to even, the smallest normal and subnormal numbers stay, and 2^-25 becomes zero."""
    inputs = [0.0, -0.0, 0.5 + 2.0**-12, 0.5 + 3 * 2.0**-12, 1 + 2.0**-11, 1 + 3 * 2.0**-11]
    bits = [0x0000, 0x8000, 0x3800, 0x3802, 0x3C00, 0x3C02]
    inputs += [65504.0, 2.0**-14, 2.0**-24, 2.0**-25]
    bits += [0x7BFF, 0x0400, 0x0001, 0x0000]
    assert np.array(convert(inputs, "none"), np.float16).view(np.uint16).tolist() == bits


def test_all_half_values_widen_exactly(bench, arithmetic):
    halves = np.arange(1 << 15, dtype=np.uint16).view(np.float16)
    for part in halves.reshape(-1, 8192):
        x, y = bench.ub(part), bench.ub(np.zeros(8192, np.float32))
        bench.call("vec_conv", 64, "", y, x, 128, 8, 4)
        assert (y.values == [stored(float(value), "float32") for value in part]).all()
        bench.top["UB"] = 0


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("floor", [-3, -3, 2, 2]),
        ("ceil", [-2, -2, 3, 3]),
        ("ceiling", [-2, -2, 3, 3]),
        ("away-zero", [-3, -2, 3, 2]),
        ("to-zero", [-2, -2, 2, 2]),
    ],
)
@pytest.mark.parametrize("api", ["vec_conv", "vconv"])
def test_round_modes_to_8_bits_that_no_page_lists(api, mode, expected):
    """AKG's table has them for this chip, no page of TIK has: a warning, and strict mode refuses them (D15a)."""
    strides = (1, 1, 8, 8) if api == "vconv" else (8, 8)
    for dst in ("int8", "uint8"):
        b = Bench()
        y, x = b.ub(np.zeros(32, dst)), b.ub(np.array([-2.5, -2.25, 2.5, 2.25] * 8, np.float16))
        b.warns("no page lists round_mode", api, 4, mode, y, x, 1, *strides)
        assert y.values[:4].tolist() == [max(number, 0) if dst == "uint8" else number for number in expected]
        strict = Bench(strict=True)
        y, x = strict.ub(np.zeros(32, dst)), strict.ub(np.zeros(32, np.float16))
        strict.refuses(TikUnsupportedArgumentError, "no page lists round_mode", api, 4, mode, y, x, 1, *strides)
