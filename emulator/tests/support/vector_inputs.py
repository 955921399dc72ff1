"""Random operands and masks of vector instructions, and legal calls of the element-wise ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tikemu.isa import registry

from emulator.tests.support.bench import Bench
from emulator.tests.support.naive_instructions import lanes

FLOATS = ("float16", "float32")


def _patterns(words: str, dtype: type) -> np.ndarray:
    """Return the bit patterns, written in hexadecimal digits."""
    return np.array([int(word, 16) for word in words.split()], dtype)


EDGES16 = _patterns(
    "0000 8000 0001 8001 03FF 0400 3C00 BC00 3C01 7BFF FBFF 7C00 FC00 7E00 FE01 7C01 3555 5640 6400 7800", np.uint16
)
EDGES32 = _patterns(
    "00000000 80000000 00000001 80000001 007FFFFF 00800000 3F800000 BF800000 3F800001 7F7FFFFF FF7FFFFF 7F800000 "
    "FF800000 7FC00000 FFC00001 7F800001 3EAAAAAB 42C80000 4B000001 33000000 "
    "477FEFFF 477FF000 C77FF000 4F000000 CF000000",
    np.uint32,
)


def sample(rng: np.random.Generator, dtype: str, count: int) -> np.ndarray:
    """Return random elements: ordinary numbers, any bit pattern, and edge values."""
    kind = np.dtype(dtype)
    patterns = rng.integers(0, 256, count * kind.itemsize, dtype=np.uint8).view(kind).copy()
    if kind.kind != "f":
        small = rng.integers(-100 if kind.kind == "i" else 0, 100, count).astype(kind)
        return np.where(rng.random(count) < 0.5, patterns, small)
    edges = (EDGES16 if dtype == "float16" else EDGES32).view(kind)
    ordinary = (rng.standard_normal(count) * 10.0 ** rng.integers(-3, 4, count)).astype(kind)
    choice = rng.random(count)
    bits = f"uint{8 * kind.itemsize}"
    result = np.where(choice < 0.6, ordinary.view(bits), patterns.view(bits))
    return np.where(choice > 0.8, rng.choice(edges.view(bits), count), result).view(kind)


def random_mask(rng: np.random.Generator, width: int) -> int | list[int]:
    """Return a mask: full, leading lanes, or a list."""
    kind = rng.integers(4)
    if kind == 0:
        return width
    if kind == 1:
        return int(rng.integers(1, width + 1))
    bits = 0
    while not bits:
        bits = int.from_bytes(rng.bytes(width // 8), "little")
        if kind == 3:
            bits &= (1 << int(rng.integers(1, width + 1))) - 1
    return [bits >> 64, bits & (1 << 64) - 1]


def extent(mask: int | Sequence[int], size: int, repeats: int, rep: int, blk: int = 1) -> int:
    """Return the bytes from an operand's start to the end of its last element."""
    per_block = 32 // size
    last = max(lane // per_block * blk * 32 + lane % per_block * size for lane in lanes(mask, 256))
    return 32 * (repeats - 1) * rep + last + size


def tame(rng: np.random.Generator, dtype: str, count: int) -> np.ndarray:
    """Return numbers from 0.5 to 2, perhaps with one that is anything.

    Few lanes then decide the overflow status.
    """
    result = rng.uniform(0.5, 2, count).astype(dtype)
    if rng.random() < 0.5:
        result[rng.integers(count)] = sample(rng, dtype, 20)[0]
    return result


class Setting:
    """A random legal call: strides, mask, repeats, operands with noise around them."""

    def __init__(self, rng: np.random.Generator, dtypes: tuple[str, ...], legacy: bool) -> None:
        self.legacy = legacy
        sizes = [np.dtype(dtype).itemsize for dtype in dtypes]
        self.mask = random_mask(rng, 256 // max(sizes))
        self.repeats = int(rng.integers(1, 6))
        self.rep = [int(rng.choice([0, 1, 5, 8, 8, 11])) for _ in dtypes]
        self.blk = [int(rng.choice([0, 1, 1, 2, 7])) if legacy else 1 for _ in dtypes]
        wide = self.blk[0] or 1  # a stride of 0 between the destination's blocks is taken as 1 (D16g)
        self.rep[0] = 8 * wide + int(rng.integers(0, 3))
        self.bench = Bench()
        self.tensors = []
        draw = sample if rng.random() < 0.5 else tame
        for dtype, size, rep, blk in zip(dtypes, sizes, self.rep, (wide, *self.blk[1:])):
            count = -(-extent(self.mask, size, self.repeats, rep, blk) // size)
            self.bench.ub(rng.integers(0, 256, 32, dtype=np.uint8))
            self.tensors.append(self.bench.ub(draw(rng, dtype, count)))
        self.bench.ub(rng.integers(0, 256, 512, dtype=np.uint8))

    def agree(self, name: str, *scalars: Any, mode: str | None = None, **more: Any) -> Any:
        """Check that the instruction ``name`` of the family does what the naive interpreter does."""
        strides = (self.blk if self.legacy else []) + self.rep
        modes = () if mode is None else (mode,)
        api = name if name in registry.specs() else ("v" if self.legacy else "vec_") + name
        return self.bench.agree(api, self.mask, *modes, *self.tensors, *scalars, self.repeats, *strides, **more)


def settings(name: str, dtypes: tuple[str, ...], legacy: bool, count: int = 4) -> list[Setting]:
    """Return the settings from fixed seeds, other ones for every instruction and dtype."""
    return [
        Setting(np.random.default_rng([seed, *name.encode(), *dtypes[0].encode(), legacy]), dtypes, legacy)
        for seed in range(count)
    ]
