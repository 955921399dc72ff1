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


class VectorStatements(Values):
    """One method for each kind of vector instruction. Repeats and strides keep all accesses inside the tensors."""

    def mask(self, lanes: int) -> Any:
        """Set the mask in bit mode or as a count."""
        choice = self.upto(0, 3)
        if choice == 0:
            return [int(self.rng.integers(1, 2**63)) if lanes == 128 else 0, int(self.rng.integers(1, 2**63))]
        return lanes if choice == 1 else self.upto(1, lanes)

    def strided(self, count: int, block_stride: int = 1) -> tuple[list[int], int, list[int]]:
        """Repeat strides of ``count`` operands, repeats, and the blocks that each operand spans."""
        repeats = self.upto(1, 5)
        strides = [self.pick([8, 8, 8, 0, 1, 4, 9]) for _ in range(count)]
        if repeats > 1 and strides[0] < 8 * block_stride:
            strides[0] = 8 * block_stride  # a destination that repeats do not overwrite
        spans = [(repeats - 1) * stride + 7 * block_stride + 1 for stride in strides]
        return strides, repeats, spans

    def repeats(self, repeats: int) -> Any:
        """Return the count as a number, or a run-time value of at most that."""
        if self.chance(0.8) or not self.integers:
            return repeats
        return self.pick(self.integers) % (repeats + 1)

    def two_source(self) -> None:
        dtype = self.pick(DTYPES)
        strides, repeats, spans = self.strided(3)
        dst = self.operand(dtype, spans[0])
        sources = [self.operand(dtype, span, self.whole(dst)) for span in spans[1:]]
        if None not in sources:
            getattr(self.tik, f"vec_{self.pick(TWO[dtype][:5])}")(
                self.mask(LANES[dtype]), dst, *sources, self.repeats(repeats), *strides
            )

    def legacy(self) -> None:
        dtype = self.pick(DTYPES)
        block_stride = self.pick([1, 1, 2])
        strides, repeats, spans = self.strided(3, block_stride)
        dst = self.operand(dtype, min(BLOCKS, spans[0]))
        sources = [self.operand(dtype, min(BLOCKS, span), self.whole(dst)) for span in spans[1:]]
        if None not in sources and max(spans) <= BLOCKS:
            getattr(self.tik, f"v{self.pick(TWO[dtype])}")(
                self.mask(LANES[dtype]), dst, *sources, repeats, *[block_stride] * 3, *strides
            )

    def with_scalar(self) -> None:
        dtype = self.pick(("float16", "float32"))
        strides, repeats, spans = self.strided(2)
        dst = self.operand(dtype, spans[0])
        in_place = self.chance(0.5)
        src = dst if in_place else self.operand(dtype, spans[1], self.whole(dst))
        scalars = [value for kind, value in self.floats if kind == dtype]
        scalar = self.pick(scalars) if scalars and self.chance(0.5) else float(self.rng.standard_normal())
        name = self.pick(("vec_adds", "vec_muls", "vec_axpy") if not in_place else ("vec_adds", "vec_muls"))
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
        dtype = self.pick(DTYPES)
        if ONE[dtype]:
            strides, repeats, spans = self.strided(2)
            dst = self.operand(dtype, spans[0])
            getattr(self.tik, f"vec_{self.pick(ONE[dtype])}")(
                self.mask(LANES[dtype]), dst, self.operand(dtype, spans[1], self.whole(dst)), repeats, *strides
            )

    def convert(self) -> None:
        to, source, modes, to_blocks, source_blocks = self.pick(CONVERSIONS)
        repeats = self.upto(1, 5)
        self.tik.vec_conv(
            self.mask(64),
            self.pick(modes),
            self.operand(to, repeats * to_blocks),
            self.operand(source, repeats * source_blocks),
            repeats,
            to_blocks,
            source_blocks,
        )

    def fill(self) -> None:
        dtype = self.pick(DTYPES)
        repeats = self.upto(1, 5)
        value = self.upto(-9, 9)
        self.tik.vec_dup(self.mask(LANES[dtype]), self.operand(dtype, 8 * repeats), value, self.repeats(repeats), 8)

    def reduce(self) -> None:
        dtype = self.pick(("float16", "float32"))
        names = ("vcadd", "vcmax", "vcmin", "vcgmax", "vcgadd") if dtype == "float16" else ("vcadd",)
        repeats = self.upto(1, 4)
        dst = self.operand(dtype, 8)
        src = self.operand(dtype, 8 * repeats, self.whole(dst))
        getattr(self.tik, self.pick(names))(self.mask(LANES[dtype]), dst, src, repeats, 1, 1, 8)

    def compare(self) -> None:
        bits = self.operand("int16", 2).reinterpret_cast_to("uint16")
        dst = self.operand("float16", 8)
        one, other = (self.operand("float16", 8, self.whole(dst)) for _ in range(2))
        self.tik.vec_cmpv_lt(bits, one, other, 1, 8, 8)
        self.tik.vec_sel(128, 0, dst, bits, dst, one, 1, 8, 8, 8)

    def transpose(self) -> None:
        dst = self.operand("float16", 16)
        self.tik.vec_trans(dst, self.operand("float16", 16, self.whole(dst)), 1, 1, 1)
