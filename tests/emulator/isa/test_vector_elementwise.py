"""Element-wise vector instructions against one-line statements of their formulas."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from tikemu.isa import registry

from tests.emulator.support.elementwise_settings import FLOATS, TWO_SOURCES, half_exact, once, settings
from tests.emulator.support.vector_statement import element_wise, saturated

pytestmark = pytest.mark.filterwarnings("ignore::tikemu.errors.TikWarning")


def table_value(x: float, entries: int, function: Callable[[float], float]) -> float:
    """Look-up value of an approximation unit: the function at the middle of the interval, to 9 significant bits."""
    mantissa, exponent = math.frexp(function(math.floor(x * entries) / entries + 0.5 / entries))
    return math.ldexp(round(mantissa * 512), exponent - 9)


def reciprocal(x: float) -> float:
    """vec_rec: the table's value for the mantissa."""
    if math.isnan(x) or x == 0 or math.isinf(x):
        return math.nan if math.isnan(x) else math.copysign(math.inf if x == 0 else 0.0, x)
    mantissa, exponent = math.frexp(abs(x))  # abs(x) = (2 * mantissa) * 2^(exponent - 1)
    return math.copysign(math.ldexp(table_value(2 * mantissa, 256, lambda f: 1 / f), 1 - exponent), x)


def rsqrt(x: float) -> float:
    """vec_rsqrt: the table's value for the mantissa and the parity of the exponent."""
    if math.isnan(x) or x < 0:
        return math.nan
    if x == 0 or math.isinf(x):
        return math.copysign(math.inf, x) if x == 0 else 0.0
    mantissa, exponent = math.frexp(x)
    fraction, exponent = 2 * mantissa, exponent - 1
    parity = exponent % 2
    value = table_value(fraction, 128, lambda f: 1 / math.sqrt(2**parity * f))
    return math.ldexp(value, -(exponent - parity) // 2)


def each(function: Callable[[float], float]) -> Callable[[np.ndarray], np.ndarray]:
    """A function of a number as function of an array."""
    return lambda x: np.array([function(float(value)) for value in x])


ONE_SOURCE: dict[str, tuple[tuple[str, ...], Callable[[np.ndarray], np.ndarray]]] = {
    "abs": (FLOATS, np.abs),
    "relu": (("float16", "float32", "int32"), lambda x: np.where(x < 0, x.dtype.type(0), x)),
    "exp": (FLOATS, once(np.exp)),
    "ln": (FLOATS, once(np.log)),
    "sqrt": (FLOATS, once(np.sqrt)),
    "rec": (FLOATS, each(reciprocal)),
    "rsqrt": (FLOATS, each(rsqrt)),
    "not": (("int16", "uint16"), lambda x: ~x),
}


@pytest.mark.parametrize("legacy", [False, True], ids=["vec", "legacy"])
@pytest.mark.parametrize(("name", "dtype"), [(n, d) for n, (dtypes, _) in ONE_SOURCE.items() for d in dtypes])
def test_one_source(arithmetic: str, name: str, dtype: str, legacy: bool) -> None:
    for setting in settings(name, (dtype, dtype), legacy):
        setting.call(name)
        setting.expect(ONE_SOURCE[name][1])


@pytest.mark.parametrize("legacy", [False, True], ids=["vec", "legacy"])
@pytest.mark.parametrize(("name", "dtype"), [(n, d) for n, (dtypes, _) in TWO_SOURCES.items() for d in dtypes])
def test_two_sources(arithmetic: str, name: str, dtype: str, legacy: bool) -> None:
    if name == "div" and not legacy:
        assert "vec_div" not in registry.specs()
        return
    for setting in settings(name, (dtype,) * 3, legacy):
        setting.call(name)
        setting.expect(half_exact(TWO_SOURCES[name][1]))


@pytest.mark.parametrize("legacy", [False, True], ids=["vec", "legacy"])
@pytest.mark.parametrize("dtype", [*FLOATS, "int32"])
@pytest.mark.parametrize(("name", "function"), [("adds", np.add), ("muls", np.multiply)])
def test_with_scalar(arithmetic: str, name: str, function: Callable[..., np.ndarray], dtype: str, legacy: bool) -> None:
    scalars = [0, -3, 12345] if dtype == "int32" else [0.0, -1.1, 3e-5, 60000.0]
    for setting, value in zip(settings(name, (dtype, dtype), legacy), scalars):
        setting.call(name, value)
        rounded = np.dtype(dtype).type(value)  # an immediate is converted to the tensor's type first
        setting.expect(lambda x, s=rounded: half_exact(function)(x, np.full_like(x, s)))


@pytest.mark.parametrize("legacy", [False, True], ids=["vec", "legacy"])
@pytest.mark.parametrize(("dst", "src"), [("float16", "float16"), ("float32", "float32"), ("float32", "float16")])
def test_axpy(arithmetic: str, dst: str, src: str, legacy: bool) -> None:
    for setting, value in zip(settings("axpy", (dst, src), legacy), [0.0, -1.1, 3e-3, 600.0]):
        setting.call("axpy", value)
        factor = np.float64(np.dtype(src).type(value))
        setting.expect(
            lambda x, d, s=factor: wide_sum(saturated(x.astype(np.float64) * s, d.dtype.name), d), reads_dst=True
        )


def wide_sum(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The sum before it is rounded to float16."""
    return x.astype(np.float64) + y.astype(np.float64) if x.dtype == np.float16 else x + y


@pytest.mark.parametrize(
    ("name", "dtypes"),
    [
        *(("mla", (d,) * 3) for d in FLOATS),
        ("mla", ("float32", "float16", "float16")),
        *(("madd", (d,) * 3) for d in FLOATS),
    ],
)
def test_multiply_add(arithmetic: str, name: str, dtypes: tuple[str, ...]) -> None:
    for setting in settings(name, dtypes, True):
        setting.call(name)

        def mla(x: np.ndarray, y: np.ndarray, d: np.ndarray) -> np.ndarray:
            return wide_sum(saturated(x.astype(np.float64) * y.astype(np.float64), d.dtype.name), d)

        setting.expect(mla if name == "mla" else lambda x, y, d: mla(x, d, y), reads_dst=True)


@pytest.mark.parametrize("dtype", ["uint16", "int16", "float16", "uint32", "int32", "float32"])
def test_dup(arithmetic: str, dtype: str) -> None:
    values = {"f": [0.1, -65504.0, math.inf, -0.0], "i": [0, -1, 12, 32767], "u": [0, 1, 65535, 7]}[
        np.dtype(dtype).kind
    ]
    for legacy in (False, True):
        for setting, value in zip(settings("dup", (dtype,), legacy), values):
            setting.call("vector_dup" if legacy else "vec_dup", value)
            expected = setting.before.copy()
            filled = np.array([value]).astype(dtype)
            element_wise(expected, lambda v=filled: v, setting.mask, setting.repeats, *setting.operands())
            assert (expected == setting.data).all()


@pytest.mark.parametrize("dtype", ["int16", "uint16", "int32", "uint32"])
@pytest.mark.parametrize("amount", [0, 1, 7, 15, 16])
def test_shift(arithmetic: str, dtype: str, amount: int) -> None:
    """Bits shifted out are lost; a right shift of a signed number keeps the sign."""
    bits = 8 * np.dtype(dtype).itemsize

    def left(x: np.ndarray) -> np.ndarray:
        return np.array([(int(value) << amount) & ((1 << bits) - 1) for value in x]).astype(f"uint{bits}").view(dtype)

    for setting in settings("shl", (dtype, dtype), True, count=2):
        setting.call("shl", amount)
        setting.expect(left)
    for setting in settings("shr", (dtype, dtype), True, count=2):
        setting.call("shr", amount)
        setting.expect(lambda x: np.array([int(value) >> amount for value in x]))
