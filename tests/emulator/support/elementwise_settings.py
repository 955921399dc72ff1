"""Settings of the element-wise instructions, and their references."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tikemu.isa import registry

from tests.emulator.support.bench import Bench
from tests.emulator.support.vector_statement import element_wise, extent, random_mask, sample, saturated

FLOATS = ("float16", "float32")


def wide(x: np.ndarray) -> np.ndarray:
    """The elements in a type in which sums and products of them are exact."""
    return x.astype(np.float64) if x.dtype.kind == "f" else x


def once(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """The float64 result, rounded once: exact for sums and products of float16 and products of float32."""
    return lambda *operands: function(*map(wide, operands))


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
            self.bench.ub(rng.integers(0, 256, 32, dtype=np.uint8))
            self.tensors.append(self.bench.ub(sample(rng, dtype, count)))
        self.bench.ub(rng.integers(0, 256, 512, dtype=np.uint8))
        self.before = self.data.copy()

    @property
    def data(self) -> np.ndarray:
        return self.bench.memories["UB"].data

    def call(self, name: str, *scalars: Any, mode: str | None = None, **more: Any) -> Any:
        """The instruction ``name`` of the family."""
        strides = (self.blk if self.legacy else []) + self.rep
        modes = () if mode is None else (mode,)
        api = name if name in registry.specs() else ("v" if self.legacy else "vec_") + name
        return self.bench.call(api, self.mask, *modes, *self.tensors, *scalars, self.repeats, *strides, **more)

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
    """Settings from fixed seeds, other ones for every instruction and dtype."""
    return [
        Setting(np.random.default_rng([seed, *name.encode(), *dtypes[0].encode(), legacy]), dtypes, legacy, **options)
        for seed in range(count)
    ]
