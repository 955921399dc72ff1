"""Random legal programs."""

from __future__ import annotations

from typing import Any

import numpy as np
from tikemu import tik

from tests.emulator.support.random_moves import MoveStatements
from tests.emulator.support.random_scalars import ScalarStatements
from tests.emulator.support.random_values import DTYPES, Values
from tests.emulator.support.random_vectors import VectorStatements


class Generator:
    """Records a random legal program: statements, and the loops, branches and scopes around them.

    The same seed gives the same program and the same feeds. Every random choice comes from one stream, so the order of
    the choices is part of that.
    """

    def __init__(self, seed: int) -> None:
        self.values = values = Values(seed)
        self.tik = values.tik
        self.vectors, self.moves, self.scalars = (
            VectorStatements(values),
            MoveStatements(values),
            ScalarStatements(values),
        )
        self.depth = 0
        self.budget = 60
        with self.tik.for_range(0, values.blocks, block_num=values.blocks) as block:
            values.block = block
            self._body()
        self.tik.BuildCCE("fuzz", [*values.inputs.values(), values.n], [*values.outputs.values()])

    def _body(self) -> None:
        values = self.values
        if self.depth == 0:
            for dtype in DTYPES:
                for _ in range(2):
                    self.moves.define(dtype)
        for _ in range(values.upto(12, 20) if self.depth == 0 else values.upto(3, 8)):
            self.budget -= 1
            if self.budget > 0:
                self._statement()
        if self.depth == 0:
            self.moves.finish()

    def _statement(self) -> None:
        kinds = [
            *[self.vectors.two_source] * 4,
            *[self.vectors.legacy] * 2,
            *[self.vectors.with_scalar] * 2,
            self.vectors.one_source,
            self.vectors.convert,
            self.vectors.fill,
            self.vectors.reduce,
            *[self.moves.move] * 2,
            self.scalars.element,
            self.scalars.arithmetic,
            self.scalars.signed,
            self.vectors.compare,
            self.vectors.transpose,
            self.moves.through_l1,
        ]
        if self.depth < 3:
            kinds += [*[self._loop] * 3, *[self._branch] * 2, self._scope]
        self.values.pick(kinds)()

    def _nested(self) -> None:
        self.depth += 1
        with self.values.inside():
            self._body()
        self.depth -= 1

    def _loop(self) -> None:
        values = self.values
        begin, count = values.upto(0, 2), values.upto(1, 4)
        end = values.n + begin if values.chance(0.3) else begin + count
        with self.tik.for_range(begin, end, thread_num=values.pick([1, 1, 2])) as i, values.inside():
            values.integers.append(i)
            if values.chance(0.5):
                self.moves.define()
            self._nested()
            if values.chance(0.3):
                with self.tik.if_scope(i == values.upto(0, 4)):
                    values.pick((self.tik.tik_break, self.tik.tik_continue))()
            self.vectors.two_source()

    def _branch(self) -> None:
        values = self.values
        value, bound = values.integer(), values.upto(0, 20)
        with self.tik.if_scope(tik.all(value > bound, values.n > 0) if not isinstance(value, int) else value > bound):
            self._nested()
        if values.chance(0.4):
            with self.tik.elif_scope(value == bound):
                self._nested()
        if values.chance(0.6):
            with self.tik.else_scope():
                self._nested()

    def _scope(self) -> None:
        with self.tik.new_stmt_scope(), self.values.inside():
            self.moves.define()
            self._nested()

    def feeds(self) -> dict[str, Any]:
        """Arrays for the inputs, and a number for ``n``."""
        values = self.values
        feeds: dict[str, Any] = {"n": values.upto(0, 3)}
        for dtype, tensor in values.inputs.items():
            count = int(np.prod(tensor.shape))
            if dtype.startswith("float"):
                feeds[tensor.name] = (values.rng.standard_normal(count) * values.pick([1, 30])).astype(dtype)
            else:
                feeds[tensor.name] = values.rng.integers(-99, 99, count, dtype)
        return feeds
