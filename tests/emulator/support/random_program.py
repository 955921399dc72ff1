"""Random legal programs."""

from __future__ import annotations

from typing import Any

import numpy as np
from tikemu import tik

from tests.emulator.support.random_moves import MoveStatements
from tests.emulator.support.random_scalars import ScalarStatements
from tests.emulator.support.random_values import DTYPES
from tests.emulator.support.random_vectors import VectorStatements


class Generator(VectorStatements, MoveStatements, ScalarStatements):
    """Record a random legal program: statements, and the loops, branches and scopes around them.

    The same seed gives the same program and the same feeds. Every random choice comes from one stream, so the order of
    the choices is part of that.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.depth = 0
        self.budget = 60
        with self.tik.for_range(0, self.blocks, block_num=self.blocks) as self.block:
            self._body()
        self.tik.BuildCCE("fuzz", [*self.inputs.values(), self.n], [*self.outputs.values()])

    def _body(self) -> None:
        if self.depth == 0:
            for dtype in DTYPES:
                for _ in range(2):
                    self.define(dtype)
        for _ in range(self.upto(12, 20) if self.depth == 0 else self.upto(3, 8)):
            self.budget -= 1
            if self.budget > 0:
                self._statement()
        if self.depth == 0:
            self.finish()

    def _statement(self) -> None:
        kinds = [
            *[self.two_source] * 4,
            *[self.legacy] * 2,
            *[self.with_scalar] * 2,
            self.one_source,
            self.convert,
            self.fill,
            self.reduce,
            *[self.move] * 2,
            self.element,
            self.arithmetic,
            self.signed,
            self.compare,
            self.transpose,
            self.through_l1,
        ]
        if self.depth < 3:
            kinds += [*[self._loop] * 3, *[self._branch] * 2, self._scope]
        self.pick(kinds)()

    def _nested(self) -> None:
        self.depth += 1
        with self.inside():
            self._body()
        self.depth -= 1

    def _loop(self) -> None:
        begin, count = self.upto(0, 2), self.upto(1, 4)
        end = self.n + begin if self.chance(0.3) else begin + count
        with self.tik.for_range(begin, end, thread_num=self.pick([1, 1, 2])) as i, self.inside():
            self.integers.append(i)
            if self.chance(0.5):
                self.define()
            self._nested()
            if self.chance(0.3):
                with self.tik.if_scope(i == self.upto(0, 4)):
                    self.pick((self.tik.tik_break, self.tik.tik_continue))()
            self.two_source()

    def _branch(self) -> None:
        value, bound = self.integer(), self.upto(0, 20)
        with self.tik.if_scope(tik.all(value > bound, self.n > 0) if not isinstance(value, int) else value > bound):
            self._nested()
        if self.chance(0.4):
            with self.tik.elif_scope(value == bound):
                self._nested()
        if self.chance(0.6):
            with self.tik.else_scope():
                self._nested()

    def _scope(self) -> None:
        with self.tik.new_stmt_scope(), self.inside():
            self.define()
            self._nested()

    def feeds(self) -> dict[str, Any]:
        """Return the arrays for the inputs, and a number for ``n``."""
        feeds: dict[str, Any] = {"n": self.upto(0, 3)}
        for dtype, tensor in self.inputs.items():
            count = int(np.prod(tensor.shape))
            if dtype.startswith("float"):
                feeds[tensor.name] = (self.rng.standard_normal(count) * self.pick([1, 30])).astype(dtype)
            else:
                feeds[tensor.name] = self.rng.integers(-99, 99, count, dtype)
        return feeds
