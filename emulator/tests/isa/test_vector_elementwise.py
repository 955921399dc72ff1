"""Element-wise vector instructions of random strides and masks against the naive interpreter."""

import math

import numpy as np
import pytest
from tikemu.isa import registry

from emulator.tests.support.vector_inputs import FLOATS, settings

pytestmark = pytest.mark.filterwarnings("ignore::tikemu.errors.TikWarning")

BITS, NUMBERS = ("int16", "uint16"), (*FLOATS, "int32")
both_families = pytest.mark.parametrize("legacy", [False, True], ids=["vec", "legacy"])

#: Name, dtypes, sources.
INSTRUCTIONS = [
    *((name, FLOATS, 1) for name in ("abs", "exp", "ln", "sqrt", "rec", "rsqrt")),
    ("relu", NUMBERS, 1),
    ("not", BITS, 1),
    *((name, NUMBERS, 2) for name in ("add", "sub", "mul", "max", "min")),
    *((name, BITS, 2) for name in ("and", "or")),
    ("div", FLOATS, 2),
]


@both_families
@pytest.mark.parametrize(
    ("name", "dtype", "sources"), [(name, dtype, sources) for name, dtypes, sources in INSTRUCTIONS for dtype in dtypes]
)
def test_sources(arithmetic, name, dtype, sources, legacy):
    if name == "div" and not legacy:
        assert "vec_div" not in registry.specs()
        return
    for setting in settings(name, (dtype,) * (sources + 1), legacy):
        setting.agree(name)


@both_families
@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("name", ["adds", "muls"])
def test_with_scalar(arithmetic, name, dtype, legacy):
    scalars = [0, -3, 12345] if dtype == "int32" else [0.0, -1.1, 3e-5, 60000.0]
    for setting, value in zip(settings(name, (dtype, dtype), legacy), scalars):
        setting.agree(name, value)


@both_families
@pytest.mark.parametrize(("dst", "src"), [("float16", "float16"), ("float32", "float32"), ("float32", "float16")])
def test_axpy(arithmetic, dst, src, legacy):
    for setting, value in zip(settings("axpy", (dst, src), legacy), [0.0, -1.1, 3e-3, 600.0]):
        setting.agree("axpy", value)


@pytest.mark.parametrize(
    ("name", "dtypes"),
    [*((name, (d,) * 3) for name in ("mla", "madd") for d in FLOATS), ("mla", ("float32", "float16", "float16"))],
)
def test_multiply_add(arithmetic, name, dtypes):
    for setting in settings(name, dtypes, True):
        setting.agree(name)


@pytest.mark.parametrize("dtype", ["uint16", "int16", "float16", "uint32", "int32", "float32"])
@pytest.mark.parametrize(("name", "legacy"), [("vec_dup", False), ("vector_dup", True)])
def test_dup(arithmetic, dtype, name, legacy):
    values = {"f": [0.1, -65504.0, math.inf, -0.0], "i": [0, -1, 12, 32767], "u": [0, 1, 65535, 7]}
    for setting, value in zip(settings("dup", (dtype,), legacy), values[np.dtype(dtype).kind]):
        setting.agree(name, value)


@pytest.mark.parametrize("dtype", ["int16", "uint16", "int32", "uint32"])
@pytest.mark.parametrize("amount", [0, 1, 7, 15, 16])
def test_shift(arithmetic, dtype, amount):
    """Bits that leave the number are lost; a right shift of a signed number keeps the sign."""
    for name in ("shl", "shr"):
        for setting in settings(name, (dtype, dtype), True, count=2):
            setting.agree(name, amount)
