"""Element-wise vector instructions against one-line statements of their formulas."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tikemu.errors import TikWarning
from tikemu.isa import registry

from tests.emulator.bench import Bench
from tests.emulator.vector_statement import element_wise, extent, random_mask, sample, saturated

pytestmark = pytest.mark.filterwarnings("ignore::tikemu.errors.TikWarning")
FLOATS = ("float16", "float32")


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64) if x.dtype.kind == "f" else x


def once(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """The float64 result, rounded once: exact for sums and products of float16 and products of float32."""
    return lambda *operands: function(*map(wide, operands))


def table_value(x: float, entries: int, function: Callable[[float], float]) -> float:
    """Look-up value of an approximation unit: the function at the middle of the interval, to 9 significant bits."""
    mantissa, exponent = math.frexp(function(math.floor(x * entries) / entries + 0.5 / entries))
    return math.ldexp(round(mantissa * 512), exponent - 9)


def reciprocal(x: float) -> float:
    if math.isnan(x) or x == 0 or math.isinf(x):
        return math.nan if math.isnan(x) else math.copysign(math.inf if x == 0 else 0.0, x)
    mantissa, exponent = math.frexp(abs(x))  # abs(x) = (2 * mantissa) * 2^(exponent - 1)
    return math.copysign(math.ldexp(table_value(2 * mantissa, 256, lambda f: 1 / f), 1 - exponent), x)


def rsqrt(x: float) -> float:
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
TWO_SOURCES: dict[str, tuple[tuple[str, ...], Callable[[np.ndarray, np.ndarray], np.ndarray]]] = {
    "add": ((*FLOATS, "int32"), np.add),
    "sub": ((*FLOATS, "int32"), np.subtract),
    "mul": ((*FLOATS, "int32"), np.multiply),
    "max": (
        (*FLOATS, "int32"),
        lambda x, y: (
            np.where(np.isnan(x) | np.isnan(y), np.nan, np.where(y > x, y, x))
            if x.dtype.kind == "f"
            else np.where(y > x, y, x)
        ),
    ),
    "min": (
        (*FLOATS, "int32"),
        lambda x, y: (
            np.where(np.isnan(x) | np.isnan(y), np.nan, np.where(y < x, y, x))
            if x.dtype.kind == "f"
            else np.where(y < x, y, x)
        ),
    ),
    "and": (("int16", "uint16"), np.bitwise_and),
    "or": (("int16", "uint16"), np.bitwise_or),
    "div": (FLOATS, np.divide),
}


def half_exact(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """float16 operations in float64: sums and products are exact there and rounded once on the way back; quotients have
    enough bits. float32 operations are NumPy's."""
    return lambda *operands: function(*(x.astype(np.float64) if x.dtype == np.float16 else x for x in operands))


class Setting:
    """A random legal call: strides, mask, repeats, operands with sentinels around them."""

    def __init__(
        self,
        rng: np.random.Generator,
        dtypes: tuple[str, ...],
        legacy: bool,
        dst_apart: bool = True,
        strict: bool = False,
    ) -> None:
        self.rng, self.dtypes, self.legacy = rng, dtypes, legacy
        sizes = [np.dtype(dtype).itemsize for dtype in dtypes]
        self.mask = random_mask(rng, 256 // max(sizes))
        self.repeats = int(rng.integers(1, 6))
        self.rep = [int(rng.choice([0, 1, 5, 8, 8, 11])) for _ in dtypes]
        self.blk = [int(rng.choice([0, 1, 1, 2, 7])) if legacy else 1 for _ in dtypes]
        self.blk[0] = self.blk[0] or 1  # a destination block written several times has no documented order
        if dst_apart:
            self.rep[0] = 8 * self.blk[0] + int(rng.integers(0, 3))
        self.bench = Bench(strict=strict)
        self.tensors = []
        for dtype, size, rep, blk in zip(dtypes, sizes, self.rep, self.blk):
            count = -(-extent(self.mask, size, self.repeats, rep, blk) // size)
            self.bench.tensor(rng.integers(0, 256, 32, dtype=np.uint8))
            self.tensors.append(self.bench.tensor(sample(rng, dtype, count)))
        self.bench.tensor(rng.integers(0, 256, 512, dtype=np.uint8))
        self.before = self.data.copy()

    @property
    def data(self) -> np.ndarray:
        return self.bench.memories["UB"].data

    def strides(self) -> list[int]:
        return (self.blk if self.legacy else []) + self.rep

    def operands(self) -> list[tuple[int, str, int, int]]:
        return [
            (tensor.base, dtype, rep, blk)
            for tensor, dtype, rep, blk in zip(self.tensors, self.dtypes, self.rep, self.blk)
        ]

    def expect(self, function: Callable[..., np.ndarray], reads_dst: bool = False) -> None:
        """Compare all of the memory, bit for bit."""
        expected = self.before.copy()
        element_wise(
            expected,
            lambda *x: saturated(function(*x), self.dtypes[0]),
            self.mask,
            self.repeats,
            *self.operands(),
            reads_dst=reads_dst,
        )
        wrong = np.flatnonzero(expected != self.data)
        assert wrong.size == 0, f"{wrong.size} bytes differ, first at {wrong[0]}"


def settings(name: str, dtypes: tuple[str, ...], legacy: bool, count: int = 4, **options: Any) -> list[Setting]:
    return [
        Setting(np.random.default_rng([seed, *name.encode(), *dtypes[0].encode(), legacy]), dtypes, legacy, **options)
        for seed in range(count)
    ]


@pytest.mark.parametrize("legacy", [False, True], ids=["vec", "legacy"])
@pytest.mark.parametrize(("name", "dtype"), [(n, d) for n, (dtypes, _) in ONE_SOURCE.items() for d in dtypes])
def test_one_source(arithmetic: str, name: str, dtype: str, legacy: bool) -> None:
    for setting in settings(name, (dtype, dtype), legacy):
        setting.bench.call(
            ("v" if legacy else "vec_") + name, setting.mask, *setting.tensors, setting.repeats, *setting.strides()
        )
        setting.expect(ONE_SOURCE[name][1])


@pytest.mark.parametrize("legacy", [False, True], ids=["vec", "legacy"])
@pytest.mark.parametrize(("name", "dtype"), [(n, d) for n, (dtypes, _) in TWO_SOURCES.items() for d in dtypes])
def test_two_sources(arithmetic: str, name: str, dtype: str, legacy: bool) -> None:
    if name == "div" and not legacy:
        assert "vec_div" not in registry.specs()
        return
    for setting in settings(name, (dtype,) * 3, legacy):
        setting.bench.call(
            ("v" if legacy else "vec_") + name, setting.mask, *setting.tensors, setting.repeats, *setting.strides()
        )
        setting.expect(half_exact(TWO_SOURCES[name][1]))


@pytest.mark.parametrize("legacy", [False, True], ids=["vec", "legacy"])
@pytest.mark.parametrize("dtype", [*FLOATS, "int32"])
@pytest.mark.parametrize(("name", "function"), [("adds", np.add), ("muls", np.multiply)])
def test_with_scalar(arithmetic: str, name: str, function: Callable[..., np.ndarray], dtype: str, legacy: bool) -> None:
    scalars = [0, -3, 12345] if dtype == "int32" else [0.0, -1.1, 3e-5, 60000.0]
    for setting, value in zip(settings(name, (dtype, dtype), legacy), scalars):
        setting.bench.call(
            ("v" if legacy else "vec_") + name,
            setting.mask,
            *setting.tensors,
            value,
            setting.repeats,
            *setting.strides(),
        )
        rounded = np.dtype(dtype).type(value)  # an immediate is converted to the tensor's type first
        setting.expect(lambda x, s=rounded: half_exact(function)(x, np.full_like(x, s)))


@pytest.mark.parametrize("legacy", [False, True], ids=["vec", "legacy"])
@pytest.mark.parametrize(("dst", "src"), [("float16", "float16"), ("float32", "float32"), ("float32", "float16")])
def test_axpy(arithmetic: str, dst: str, src: str, legacy: bool) -> None:
    for setting, value in zip(settings("axpy", (dst, src), legacy), [0.0, -1.1, 3e-3, 600.0]):
        setting.bench.call(
            "vaxpy" if legacy else "vec_axpy",
            setting.mask,
            *setting.tensors,
            value,
            setting.repeats,
            *setting.strides(),
        )
        factor = np.float64(np.dtype(src).type(value))
        setting.expect(
            lambda x, d, s=factor: wide_sum(saturated(x.astype(np.float64) * s, d.dtype.name), d), reads_dst=True
        )


def wide_sum(x: np.ndarray, y: np.ndarray) -> np.ndarray:
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
        setting.bench.call(f"v{name}", setting.mask, *setting.tensors, setting.repeats, *setting.strides())

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
            setting.bench.call(
                "vector_dup" if legacy else "vec_dup",
                setting.mask,
                *setting.tensors,
                value,
                setting.repeats,
                *setting.strides(),
            )
            expected = setting.before.copy()
            element_wise(
                expected,
                lambda v=value: np.array([v]).astype(dtype),
                setting.mask,
                setting.repeats,
                *setting.operands(),
            )
            assert (expected == setting.data).all()


@pytest.mark.parametrize("dtype", ["int16", "uint16", "int32", "uint32"])
@pytest.mark.parametrize("amount", [0, 1, 7, 15, 16])
def test_shift(arithmetic: str, dtype: str, amount: int) -> None:
    """Bits shifted out are lost; a right shift of a signed number keeps the sign."""
    bits = 8 * np.dtype(dtype).itemsize

    def left(x: np.ndarray) -> np.ndarray:
        return np.array([(int(value) << amount) & ((1 << bits) - 1) for value in x]).astype(f"uint{bits}").view(dtype)

    for setting in settings("shl", (dtype, dtype), True, count=2):
        setting.bench.call("vshl", setting.mask, *setting.tensors, amount, setting.repeats, *setting.strides())
        setting.expect(left)
    for setting in settings("shr", (dtype, dtype), True, count=2):
        setting.bench.call("vshr", setting.mask, *setting.tensors, amount, setting.repeats, *setting.strides())
        setting.expect(lambda x: np.array([int(value) >> amount for value in x]))


# ------------------------------------------------------------------------------------------- high precision
HIGH = {
    "rec": (FLOATS, lambda x: 1.0 / x, "float32", {"float16": 4, "float32": 2}),
    "rsqrt": (FLOATS, lambda x: 1.0 / np.sqrt(x), "float32", {"float16": 6, "float32": 4}),
    "ln": (("float16",), np.log, "float16", {"float16": 10}),
    "expm1": (("float16",), np.expm1, "float16", {"float16": 11}),
}


def scratch(name: str, dtype: str, setting: Setting) -> int:
    """Elements of work_tensor by the documented formula."""
    block = 16 if dtype == "float16" else 8
    lanes = setting.mask if isinstance(setting.mask, int) else (setting.mask[0] << 64 | setting.mask[1]).bit_length()
    pitch = setting.rep[1]
    if name == "expm1":
        lanes, pitch = 128, 8 if 0 < pitch <= 8 else pitch
    span = (setting.repeats - 1) * pitch * block + lanes
    return HIGH[name][3][dtype] * (math.ceil(span / block) * block)


@pytest.mark.parametrize(("name", "dtype"), [(n, d) for n, row in HIGH.items() for d in row[0]])
def test_high_precision(arithmetic: str, name: str, dtype: str) -> None:
    for setting in settings(f"{name}_high_preci", (dtype, dtype), False):
        work = setting.bench.tensor(np.zeros(scratch(name, dtype, setting), HIGH[name][2]))
        setting.before = setting.data.copy()
        (operation,) = setting.bench.call(
            f"vec_{name}_high_preci", setting.mask, *setting.tensors, work, setting.repeats, *setting.strides()
        )
        setting.expect(once(HIGH[name][1]))
        assert [access.operand.name for access in operation.undefined] == [work.info.name]


# ------------------------------------------------------------------------------------------- order of repeats
@pytest.mark.parametrize("dtype", [*FLOATS, "int32"])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "max", "min"])
def test_accumulation_over_repeats_is_legal(
    arithmetic: str, name: str, dtype: str, recwarn: pytest.WarningsRecorder
) -> None:
    """dst overlaps src1 with both strides 0: every repeat sees the previous result."""
    rng = np.random.default_rng(5)
    bench = Bench(strict=True)
    width = 256 // np.dtype(dtype).itemsize
    terms = bench.tensor((rng.standard_normal(6 * width) * 3).astype(dtype))
    total = bench.tensor(np.ones(width, dtype))
    bench.call(f"vec_{name}", width, total, terms, total, 6, 0, 8, 0)
    expected = np.ones(width, dtype)
    for term in terms.values.reshape(6, width):
        expected = saturated(half_exact(TWO_SOURCES[name][1])(term, expected), dtype)
    assert (total.values == expected).all()
    assert not recwarn.list


def test_repeats_run_in_order_where_a_result_is_read_again(arithmetic: str) -> None:
    """A prefix sum over blocks: illegal on the chip, executed repeat by repeat with a warning; strict mode refuses."""
    for strict in (False, True):
        bench = Bench(strict=strict)
        x = bench.tensor(np.ones(64 * 5, np.float32))
        ones = bench.tensor(np.ones(64, np.float32))
        call = ("vec_add", 64, x[64:], x, ones, 4, 8, 8, 0)
        if strict:
            with pytest.raises(Exception, match="a later repeat reads as src0"):
                bench.call(*call)
        else:
            with pytest.warns(TikWarning, match="a later repeat reads as src0"):
                bench.call(*call)
            assert (x.values.reshape(5, 64)[:, 0] == [1, 2, 3, 4, 5]).all()


def test_reading_what_a_later_repeat_overwrites_is_legal(arithmetic: str, recwarn: pytest.WarningsRecorder) -> None:
    """Shifting data towards lower addresses: the destination of a repeat was a source of an earlier one."""
    bench = Bench(strict=True)
    x = bench.tensor(np.arange(64 * 5, dtype=np.float32))
    bench.call("vec_adds", 64, x, x[64:], 0.0, 4, 8, 8)
    assert (x.values[:256] == np.arange(64, 320)).all()
    assert not recwarn.list


def test_partial_overlap_with_one_repeat(arithmetic: str, recwarn: pytest.WarningsRecorder) -> None:
    bench = Bench(strict=True)
    x = bench.tensor(np.arange(128, dtype=np.float32))
    bench.call("vec_adds", 64, x, x, 1.0, 1, 8, 8)  # in place
    assert not recwarn.list
    with pytest.raises(Exception, match="overlap partly"):
        bench.call("vec_adds", 64, x[8:], x, 1.0, 1, 8, 8)
    lenient = Bench()
    y = lenient.tensor(np.arange(128, dtype=np.float32))
    with pytest.warns(TikWarning, match="overlap partly"):
        lenient.call("vec_adds", 64, y[8:], y, 1.0, 1, 8, 8)
    assert (y.values[8:72] == np.arange(64) + 1).all()


def test_interleaved_operands_do_not_overlap(arithmetic: str, recwarn: pytest.WarningsRecorder) -> None:
    """Source and destination take turns block by block, or lane by lane, in one tensor."""
    bench = Bench(strict=True)
    x = bench.tensor(np.arange(512, dtype=np.float32))
    bench.call("vadds", 64, x[8:], x, 0.5, 1, 2, 2, 16, 16)
    bench.call("vadds", 64, x[8 + 128 :], x[128:], 0.5, 3, 2, 2, 16, 16)
    blocks = x.values.reshape(-1, 2, 8)
    assert (blocks[:32, 1] == blocks[:32, 0] + 0.5).all()
    assert not recwarn.list


def test_destination_written_by_every_repeat_keeps_the_last(arithmetic: str) -> None:
    bench = Bench()
    x = bench.tensor(np.arange(64 * 4, dtype=np.float32))
    y = bench.tensor(np.zeros(64, np.float32))
    bench.call("vec_muls", 64, y, x, 2.0, 4, 0, 8)
    assert (y.values == 2 * np.arange(192, 256)).all()


@pytest.mark.parametrize("dtype", ["float16", "float32", "int32"])
def test_any_overlap_runs_repeat_by_repeat(arithmetic: str, dtype: str) -> None:
    """Operands anywhere in one tensor: a repeat's sources are read before its destination is written, in order."""
    size = np.dtype(dtype).itemsize
    for seed in range(60):
        rng = np.random.default_rng([seed, size])
        mask, repeats = random_mask(rng, 256 // size), int(rng.integers(1, 7))
        rep = [int(n) for n in rng.choice([0, 1, 4, 8, 9], 3)]
        blk = [int(rng.choice([1, 1, 2, 8])), int(rng.integers(0, 3)), int(rng.integers(0, 3))]
        bench = Bench()
        x = bench.tensor(sample(rng, dtype, 8192 // size))
        operands = [x[int(rng.integers(0, 40)) * 32 // size :] for _ in rep]
        expected = bench.memories["UB"].data.copy()
        bench.call("vadd", mask, *operands, repeats, *blk, *rep)
        places = [(x.base + operand.offset * size, dtype, r, b) for operand, r, b in zip(operands, rep, blk)]
        element_wise(expected, lambda a, b: saturated(half_exact(np.add)(a, b), dtype), mask, repeats, *places)
        assert (expected == bench.memories["UB"].data).all(), seed
