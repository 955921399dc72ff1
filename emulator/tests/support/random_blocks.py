"""Random programs with blocks that meet, or nearly meet, in global memory."""

import random

import numpy as np
from tikemu import tik

#: Numbers of elements: of a block of 32 bytes, of a piece that moves, and of a global tensor.
BLOCK, PIECE, SIZE = 8, 64, 1024


class BlockProgram:
    """A kernel with a multi-core loop.

    Args:
        seed: decides everything.

    Attributes:
        tik: the built kernel.
    """

    def __init__(self, seed):
        self._random = random.Random(seed)
        self._seed = seed
        self.blocks = self._random.choice((2, 3, 5, 9, 17, 40))
        self.tik = tik.Tik(disable_debug=False)
        self._gm = [
            self.tik.Tensor("float32", (SIZE + PIECE,), tik.scope_gm, name, is_atomic_add=self._random.random() < 0.5)
            for name in ("x", "y", "z")
        ]
        # How far the places of two blocks are apart: without overlap, by a piece or less, or not at all.
        self._stride = self._random.choice((SIZE // self.blocks // BLOCK * BLOCK, PIECE, PIECE // 2, 8, 0))
        self._faults = self._random.random() < 0.15
        with self.tik.for_range(0, self.blocks, block_num=self.blocks) as self._block:
            self._ub = self.tik.Tensor("float32", (PIECE,), tik.scope_ubuf, "ub")
            self.tik.vec_dup(PIECE, self._ub, self._random.choice((0.1, 1.0, 3e38)), 1, 8)
            for _ in range(self._random.randint(1, 6)):
                self._random.choice((self._load, self._store, self._add, self._compute, self._element, self._branch))()
            self._store()
        self.tik.BuildCCE(f"blocks{seed}", [self._gm[0]], self._gm[1:])

    def feeds(self):
        """Return the contents of all tensors."""
        generator = np.random.default_rng(self._seed)
        return {tensor.name: generator.standard_normal(SIZE + PIECE).astype(np.float32) for tensor in self._gm}

    def _tensor(self):
        """Return a tensor, most often not the input. Then some programs have blocks that do not meet."""
        return self._random.choice((*self._gm, *self._gm[1:], *self._gm[1:]))

    def _place(self):
        """Return an offset, most often the block's own."""
        kind = self._random.random()
        offset = self._block * self._stride
        if kind < 0.2:
            offset = self._random.randrange(0, SIZE, BLOCK)
        elif kind < 0.3:
            offset = (self._block + self._random.choice((0, 1))) % self.blocks * self._stride
        if not self._faults:
            return offset % (SIZE + 1)
        # Some places are behind the tensor, which is an error, or end in its padding.
        return offset if self._random.random() < 0.8 else offset % 3 + SIZE + PIECE - 5

    def _length(self):
        return self._random.choice((1, 3, 8))

    def _move(self, dst, src):
        count, gap = self._length(), self._random.choice((0, 0, 1))
        bursts = self._random.choice((1, 2)) if count < 4 else 1
        self.tik.data_move(dst, src, 0, bursts, count, gap, gap)

    def _load(self):
        # A copy of the input is what most kernels begin with; the others may read what a block has written.
        source = self._gm[0] if self._random.random() < 0.7 else self._tensor()
        self._move(self._ub, source[self._place()])

    def _store(self):
        self._move(self._gm[self._random.choice((1, 2))][self._place()], self._ub)

    def _add(self):
        self.tik.set_atomic_add(1)
        for _ in range(self._random.choice((1, 1, 3))):
            self._move(self._tensor()[self._place()], self._ub)
        self.tik.set_atomic_add(0)

    def _compute(self):
        value = self._random.choice((1.0, 0.3, 1e30))
        self.tik.vec_muls(PIECE, self._ub, self._ub, value, 1, 8, 8)

    def _element(self):
        """Let what follows depend on data."""
        with self.tik.if_scope(self._ub[self._random.randrange(PIECE)] > self._random.choice((0.0, 0.5))):
            self._random.choice((self._load, self._store, self._add))()

    def _branch(self):
        """Let some blocks do more, in a loop."""
        condition = self._block % self._random.choice((2, 3)) == 1
        with self.tik.if_scope(condition), self.tik.for_range(0, self._random.choice((1, 4))):
            self._random.choice((self._load, self._store, self._add, self._compute))()
