"""Random legal calls of element-wise instructions."""

from __future__ import annotations

from typing import Any

import numpy as np
from tikemu.isa import registry

from tests.emulator.support.bench import Bench
from tests.emulator.support.vector_inputs import extent, random_mask, sample

FLOATS = ("float16", "float32")


class Setting:
    """A random legal call: strides, mask, repeats, operands with noise around them."""

    def __init__(self, rng: np.random.Generator, dtypes: tuple[str, ...], legacy: bool) -> None:
        self.legacy = legacy
        sizes = [np.dtype(dtype).itemsize for dtype in dtypes]
        self.mask = random_mask(rng, 256 // max(sizes))
        self.repeats = int(rng.integers(1, 6))
        self.rep = [int(rng.choice([0, 1, 5, 8, 8, 11])) for _ in dtypes]
        self.blk = [int(rng.choice([0, 1, 1, 2, 7])) if legacy else 1 for _ in dtypes]
        self.blk[0] = self.blk[0] or 1  # a destination block written several times has no documented order
        self.rep[0] = 8 * self.blk[0] + int(rng.integers(0, 3))
        self.bench = Bench()
        self.tensors = []
        for dtype, size, rep, blk in zip(dtypes, sizes, self.rep, self.blk):
            count = -(-extent(self.mask, size, self.repeats, rep, blk) // size)
            self.bench.ub(rng.integers(0, 256, 32, dtype=np.uint8))
            self.tensors.append(self.bench.ub(sample(rng, dtype, count)))
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
