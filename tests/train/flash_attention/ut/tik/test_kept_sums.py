"""Sums of query gradients that stay on chip: each part reaches its accumulator once."""

from __future__ import annotations

import numpy as np
import pytest
from flash_attention.kernels.tik.backward import kept_sums
from flash_attention.kernels.tik.backward.kept_sums import ADDS, APART, ENDS, STARTS


def replay(tiles: list[int], codes: list[int], places: int) -> tuple[dict[int, list[int]], int]:
    """Return the steps that each accumulator gets, and the number of stores."""
    held, left, result, stores = {}, [-APART] * places, {}, 0
    for step, (tile, code) in enumerate(zip(tiles, codes)):
        place, kind = (code - 1) // 3, (code - 1) % 3
        parts = [(tile, step)]
        if code:
            assert place < places and (kind == STARTS) == (place not in held)
            assert kind != STARTS or step >= left[place] + APART
            held[place] = parts = held.get(place, []) + parts
        if not code or kind == ENDS:
            assert {tile for tile, _ in parts} == {tile}
            result[tile] = result.get(tile, []) + [step for _, step in parts]
            stores += 1
            if code:
                left[place] = step
                del held[place]
    assert not held
    return result, stores


@pytest.mark.parametrize("places", (0, 1, 4, 7))
def test_every_part_reaches_its_accumulator_in_order(places):
    kinds = set()
    for seed in range(200):
        random = np.random.default_rng(seed)
        tiles = random.integers(0, random.integers(1, 30), random.integers(0, 150)).tolist()
        codes = kept_sums.plan(tiles, places).tolist()
        result, _ = replay(tiles, codes, places)
        kinds |= {(code - 1) % 3 for code in codes if code}
        assert max(codes, default=0) < kept_sums.codes(places)
        for tile, steps in result.items():
            assert sorted(steps) == [step for step, one in enumerate(tiles) if one == tile]
    assert kinds == ({STARTS, ADDS, ENDS} if places else set())


def test_more_places_store_less():
    tiles = np.nonzero(np.random.default_rng(0).random((64, 64)) < 0.125)[1].tolist()
    stores = [replay(tiles, kept_sums.plan(tiles, places).tolist(), places)[1] for places in range(8)]
    assert stores[0] == len(tiles) and all(np.diff(stores) < 0) and stores[7] < 0.7 * len(tiles)
    assert replay([3] * 9, kept_sums.plan([3] * 9, 1).tolist(), 1)[1] == 1
