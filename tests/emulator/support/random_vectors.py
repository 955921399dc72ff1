"""Random vector instructions."""

from __future__ import annotations

from typing import Any

from tests.emulator.support.random_values import BLOCKS, DTYPES, Values

TWO = {
    "float16": ("add", "sub", "mul", "max", "min", "div"),
    "float32": ("add", "sub", "mul", "max", "min", "div"),
    "int32": ("add", "sub", "mul", "max", "min"),
    "int16": ("and", "or"),
}
ONE = {"float16": ("abs", "relu", "sqrt"), "float32": ("abs", "sqrt"), "int32": (), "int16": ("not",)}
#: dst, src, round modes, blocks per repeat of dst and src
CONVERSIONS = (
    ("float32", "float16", ("", "none"), 8, 4),
    ("float16", "float32", ("", "none"), 4, 8),
    ("int32", "float32", ("round", "floor", "ceil", "to-zero", "away-zero"), 8, 8),
    ("float32", "int32", ("",), 8, 8),
    ("int32", "float16", ("round", "floor", "ceil"), 8, 4),
)
LANES = {"float16": 128, "int16": 128, "float32": 64, "int32": 64}


class VectorStatements:
    """One method for each kind of vector instruction. Repeats and strides keep all accesses inside the tensors."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self.tik = values.tik

    def mask(self, lanes: int) -> Any:
        """In bit mode or as a count."""
        values = self.values
        choice = values.upto(0, 3)
        if choice == 0:
            return [int(values.rng.integers(1, 2**63)) if lanes == 128 else 0, int(values.rng.integers(1, 2**63))]
        return lanes if choice == 1 else values.upto(1, lanes)

    def strided(self, count: int, block_stride: int = 1) -> tuple[list[int], int, list[int]]:
        """Repeat strides of ``count`` operands, repeats, and the blocks that each operand spans."""
        repeats = self.values.upto(1, 5)
        strides = [self.values.pick([8, 8, 8, 0, 1, 4, 9]) for _ in range(count)]
        if repeats > 1 and strides[0] < 8 * block_stride:
            strides[0] = 8 * block_stride  # a destination that repeats do not overwrite
        spans = [(repeats - 1) * stride + 7 * block_stride + 1 for stride in strides]
        return strides, repeats, spans

    def repeats(self, repeats: int) -> Any:
        """The count as a number, or a run-time value of at most that."""
        if self.values.chance(0.8) or not self.values.integers:
            return repeats
        return self.values.pick(self.values.integers) % (repeats + 1)

    def two_source(self) -> None:
        values = self.values
        dtype = values.pick(DTYPES)
        strides, repeats, spans = self.strided(3)
        dst = values.operand(dtype, spans[0])
        sources = [values.operand(dtype, span, values.whole(dst)) for span in spans[1:]]
        if None not in sources:
            getattr(self.tik, f"vec_{values.pick(TWO[dtype][:5])}")(
                self.mask(LANES[dtype]), dst, *sources, self.repeats(repeats), *strides
            )

    def legacy(self) -> None:
        values = self.values
        dtype = values.pick(DTYPES)
        block_stride = values.pick([1, 1, 2])
        strides, repeats, spans = self.strided(3, block_stride)
        dst = values.operand(dtype, min(BLOCKS, spans[0]))
        sources = [values.operand(dtype, min(BLOCKS, span), values.whole(dst)) for span in spans[1:]]
        if None not in sources and max(spans) <= BLOCKS:
            getattr(self.tik, f"v{values.pick(TWO[dtype])}")(
                self.mask(LANES[dtype]), dst, *sources, repeats, *[block_stride] * 3, *strides
            )

    def with_scalar(self) -> None:
        values = self.values
        dtype = values.pick(("float16", "float32"))
        strides, repeats, spans = self.strided(2)
        dst = values.operand(dtype, spans[0])
        in_place = values.chance(0.5)
        src = dst if in_place else values.operand(dtype, spans[1], values.whole(dst))
        scalars = [value for kind, value in values.floats if kind == dtype]
        scalar = values.pick(scalars) if scalars and values.chance(0.5) else float(values.rng.standard_normal())
        name = values.pick(("vec_adds", "vec_muls", "vec_axpy") if not in_place else ("vec_adds", "vec_muls"))
        getattr(self.tik, name)(
            self.mask(LANES[dtype]),
            dst,
            src,
            scalar,
            self.repeats(repeats),
            strides[0],
            strides[0] if in_place else strides[1],
        )

    def one_source(self) -> None:
        values = self.values
        dtype = values.pick(DTYPES)
        if ONE[dtype]:
            strides, repeats, spans = self.strided(2)
            dst = values.operand(dtype, spans[0])
            getattr(self.tik, f"vec_{values.pick(ONE[dtype])}")(
                self.mask(LANES[dtype]), dst, values.operand(dtype, spans[1], values.whole(dst)), repeats, *strides
            )

    def convert(self) -> None:
        values = self.values
        to, source, modes, to_blocks, source_blocks = values.pick(CONVERSIONS)
        repeats = values.upto(1, 5)
        self.tik.vec_conv(
            self.mask(64),
            values.pick(modes),
            values.operand(to, repeats * to_blocks),
            values.operand(source, repeats * source_blocks),
            repeats,
            to_blocks,
            source_blocks,
        )

    def fill(self) -> None:
        values = self.values
        dtype = values.pick(DTYPES)
        repeats = values.upto(1, 5)
        value = values.upto(-9, 9)
        self.tik.vec_dup(self.mask(LANES[dtype]), values.operand(dtype, 8 * repeats), value, self.repeats(repeats), 8)

    def reduce(self) -> None:
        values = self.values
        dtype = values.pick(("float16", "float32"))
        names = ("vcadd", "vcmax", "vcmin", "vcgmax", "vcgadd") if dtype == "float16" else ("vcadd",)
        repeats = values.upto(1, 4)
        dst = values.operand(dtype, 8)
        src = values.operand(dtype, 8 * repeats, values.whole(dst))
        getattr(self.tik, values.pick(names))(self.mask(LANES[dtype]), dst, src, repeats, 1, 1, 8)

    def compare(self) -> None:
        values = self.values
        bits = values.operand("int16", 2).reinterpret_cast_to("uint16")
        dst = values.operand("float16", 8)
        one, other = (values.operand("float16", 8, values.whole(dst)) for _ in range(2))
        self.tik.vec_cmpv_lt(bits, one, other, 1, 8, 8)
        self.tik.vec_sel(128, 0, dst, bits, dst, one, 1, 8, 8, 8)

    def transpose(self) -> None:
        values = self.values
        dst = values.operand("float16", 16)
        self.tik.vec_trans(dst, values.operand("float16", 16, values.whole(dst)), 1, 1, 1)
