"""Sums of query gradients that stay on chip between steps, under a known block mask.

A step adds its part of a query tile's gradient to the accumulator in global memory, in float32. If key tiles are narrow
that is most of the traffic. So L0C, where the Cube adds, has places for some sums, and the Unified Buffer for some
more, where Vector adds. The entries of the lists say which part starts a sum, which is added to it, and which is the
last one, after which the sum goes to the accumulator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from flash_attention.kernels.tik.backward.tiling import BackwardPlan
from flash_attention.kernels.tik.hardware import HALF_ROUND
from flash_attention.kernels.tik.recorder import Core
from flash_attention.kernels.tik.tik_types import Scalar

MOST_PLACES = 8  # of each memory
STARTS, ADDS, ENDS = range(3)
APART = 2  # steps in which a sum leaves before another one takes its place


class Sum(NamedTuple):
    """Run-time place of a step's part.

    Attributes:
        product: place in L0C, 0 if the part has none there.
        at: first element of its place in the Unified Buffer, 0 if it has none there.
        kind: one of STARTS, ADDS, ENDS. A part without a place is an end.
    """

    product: Scalar
    at: Scalar
    kind: Scalar

    @staticmethod
    def of(core: Core, slot: int) -> Sum:
        """Return new scalars."""
        names = {"product": 0, "sum": 0, "sum_kind": ENDS}
        return Sum(*(core.scalar("int32", f"{name}_{slot}", value) for name, value in names.items()))

    def split(self, core: Core, plan: BackwardPlan, word: Scalar) -> None:
        """Take the code of a sum off the scalar `word`."""
        size = plan.row_elements("query")
        self.kind.set_as(word % codes(plan.sums) + ENDS)
        word.set_as(word // codes(plan.sums))
        self.product.set_as(self.kind // 3)
        self.kind.set_as(self.kind % 3)
        self.at.set_as(0)
        with core.tik.if_scope(self.product > plan.product_sums):
            self.at.set_as((self.product - plan.product_sums) * size + HALF_ROUND)
            self.product.set_as(0)


def codes(places: int) -> int:
    """Return how many codes entries have for so many places."""
    return 1 + 3 * places


def plan(tiles: Sequence[int], places: int) -> np.ndarray:
    """Return int (steps,): the code of each step, for as many parts as possible that are added on chip.

    Args:
        tiles: number of each step's query tile. Equal numbers share an accumulator.
        places: sums on chip at a time.
    """
    before: dict[int, int] = {}
    of: dict[int, int] = {}
    pairs = []  # steps that visit the same tile one after the other, the later one first
    for step, tile in enumerate(tiles):
        if tile in before:
            pairs.append((step, before[tile]))
        before[tile] = step
    result, free = np.zeros(len(tiles), np.int64), [0] * places
    for later, step in sorted(pairs):  # the earliest end first, which leaves most room
        if step in of:
            choices = [of[step]] if free[of[step]] == step + APART else []
        else:
            choices = [place for place in range(places) if free[place] <= step]
        if choices:
            place = max(choices, key=free.__getitem__)
            result[step] = 1 + 3 * place + (ADDS if step in of else STARTS)
            result[later] = 1 + 3 * place + ENDS
            of[later], free[place] = place, later + APART
    return result
