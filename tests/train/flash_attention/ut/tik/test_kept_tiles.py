"""Tiles that stay on chip: the order of visits, and where each tile is."""

from __future__ import annotations

import numpy as np
import pytest
from flash_attention.kernels.tik.common import kept_tiles


def random_items(seed: int) -> list:
    """Return items whose row blocks, one or two, visit some of a few tiles."""
    random = np.random.default_rng(seed)
    row_blocks, tiles, share = random.integers(1, 3), random.integers(1, 20), random.random()

    def visited() -> list:
        return random.permutation(np.flatnonzero(random.random(tiles) < share)).tolist()

    return [[visited() or [0], *(visited() for _ in range(row_blocks - 1))] for _ in range(random.integers(1, 25))]


def loads(items: list, plans: list, slots: int) -> int:
    """Return the loads of a replay in which every visit has to find its tile."""
    held, count = {}, 0
    for item, plan in zip(items, plans):
        for tiles, visits in zip(item, plan):
            assert sorted(visit.entry for visit in visits) == list(range(len(tiles)))
        for place in range(max(map(len, plan))):
            now = []
            for tiles, visits in zip(item, plan):
                for visit in visits[place : place + 1]:
                    now.append(((place % slots, visit.way), tiles[visit.entry]))
                    if not visit.stays:
                        held[now[-1][0]] = tiles[visit.entry]
                        count += 1
            # All tiles of a place are in use at a time.
            assert all(held[at] == tile for at, tile in now)
    return count


@pytest.mark.parametrize("most", (1, 2, 20))
def test_every_visit_finds_its_tile(most):
    """At most so many tiles of a row block may come first."""
    for seed in range(300):
        items, random = random_items(seed), np.random.default_rng(seed)
        slots = int(random.integers(2, 5))
        ways = kept_tiles.ways_of(int(random.integers(len(items[0]) * slots, 6 * slots)), slots)
        firsts = [[random.permutation(of)[:most].tolist() for of in item] for item in items]
        plans = kept_tiles.plan(items, firsts, ways)
        loads(items, plans, slots)
        visits = [(place, visit) for plan in plans for of in plan for place, visit in enumerate(of)]
        assert all(visit.way < ways[place % slots] for place, visit in visits)
        for item, plan, allowed in zip(items, plans, firsts):
            assert all(tiles[of[0].entry] in first for tiles, of, first in zip(item, plan, allowed) if of)


def test_more_ways_load_less():
    """An eighth of 64 tiles each, as in the benchmark."""
    random = np.random.default_rng(0)
    items = [[np.flatnonzero(row).tolist() or [0]] for row in random.random((64, 64)) < 0.125]
    counts = [loads(items, kept_tiles.plan(items, items, [ways] * 4), 4) for ways in range(1, 6)]
    assert counts == sorted(counts, reverse=True) and counts[-1] < 0.66 * counts[0]
    assert counts[-1] < 1.2 * loads(items, kept_tiles.plan(items, items, [20]), 1)  # slots cost little
    again = [items[0]] * 9  # fits
    assert loads(again, kept_tiles.plan(again, again, [6] * 4), 4) == len(items[0][0])


def test_items_that_visit_the_same_tiles_come_together():
    """Five groups of items visit four tiles each, mixed as dealt."""
    items = [[[4 * (number % 5) + at for at in range(4)]] for number in range(40)]
    order = kept_tiles.in_line(items)
    assert sorted(order) == list(range(40))
    sorted_items = [items[at] for at in order]
    assert loads(sorted_items, kept_tiles.plan(sorted_items, sorted_items, [1] * 4), 4) == 20
    for seed in range(50):
        assert sorted(kept_tiles.in_line(random_items(seed))) == list(range(len(random_items(seed))))


@pytest.mark.parametrize("partner, at_once, spread", [([0, 20, 21], 1, 7), ([0], 3, 7)])
def test_a_long_list_spreads_the_tiles_that_stay(partner, at_once, spread):
    """Only in slots full of tiles that stay do some come at once."""
    items = [[[0, 1, 2, 3], [0, 4, 5, 6]], [[0, 7, 8], [0, 9, 10]], [list(range(64)), partner]]
    plans = kept_tiles.plan(items, [[of[:1] for of in item] for item in items], [4, 4, 3])
    loads(items, plans, 3)
    (stays,) = np.nonzero([visit.stays for visit in plans[-1][0]])
    assert stays[:at_once].tolist() == list(range(at_once))
    assert len(stays) == at_once + spread and np.diff([2, *stays[at_once:]]).min() >= 5


def test_a_short_list_visits_first_what_stays():
    """Tiles that next items visit find room earlier."""
    items = [[[0, 1, 2, 3], [0, 4, 5, 6]], [[0, *range(1, 14)], [0]]]
    stays = [
        visit.stays for visit in kept_tiles.plan(items, [[of[:1] for of in item] for item in items], [4, 4, 3])[-1][0]
    ]
    assert stays == sorted(stays, reverse=True) and sum(stays) == 7
