"""Tiles that stay on chip between items, under a known block mask.

Global memory is the limit of a kernel that visits few tiles: neighbouring items load tiles of which many are the same.
A slot of the ring of tiles in L1 has room for several tiles, its ways. The first slots may have one more. An entry of a
list names the way of its tile, and says whether the tile is there already. Its slot is its place in the list modulo the
slots, so that the loop over tiles knows the slots when it is recorded.

Items come in an order in which neighbours visit many tiles in common. Of the tiles in a slot the one goes whose next
visit is furthest away (Belady, "A study of replacement algorithms for a virtual-storage computer", 1966).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from flash_attention.kernels.tik.hardware import Buffer
from flash_attention.kernels.tik.recorder import Core
from flash_attention.kernels.tik.tik_types import Scalar

MOST_WAYS = 12
NEVER = 1 << 30
FADING, NEW = 0.6, 0.3  # measured, see `in_line`
FAR, CROWDED = 50, 20  # the same of `_slots`, in items


class Place(NamedTuple):
    """Run-time place of a tile: its way, and whether it is there already."""

    way: Scalar
    stays: Scalar

    @staticmethod
    def of(core: Core, slot: int) -> Place:
        """Return new scalars."""
        return Place(core.scalar("int32", f"way_{slot}", 0), core.scalar("int32", f"stays_{slot}", 0))


def split(word: Scalar, ways: int, place: Place | None) -> None:
    """Take the place of a tile, if entries have one, off the scalar `word`."""
    if ways == 1:
        return
    if place is not None:
        place.way.set_as(word % ways)
        place.stays.set_as(word // ways % 2)
    word.set_as(word // (2 * ways))


def most_ways(entries: int) -> int:
    """Return the most ways that lists can name. Without ways so many of their words differ."""
    return max(1, min(MOST_WAYS, 2**30 // entries))


def ways_of(tiles: int, slots: int) -> list[int]:
    """Return the ways of each slot of a ring with room for so many tiles."""
    return [(tiles + slots - 1 - slot) // slots for slot in range(slots)]


def buffers(name: str, size: int, tiles: int, slots: int, parts: int = 1) -> list[Buffer]:
    """Return the buffers of a ring with room for so many tiles.

    A tile has `parts` tensors of `size` float16 numbers each.
    """
    ways = ways_of(tiles, slots)
    return [Buffer(name, "L1", "float16", size * one, parts * ways.count(one)) for one in dict.fromkeys(ways)]


def bare(words: np.ndarray, codes: int, ways: int) -> np.ndarray:
    """Return entries without the places of their tiles. Codes are below `codes`."""
    return words // codes // (2 * ways) * codes + words % codes


def joined(words: np.ndarray, codes: int, visits: Sequence[Visit], ways: int) -> np.ndarray:
    """Return bare entries in the order of visits, with places as `split` takes them off."""
    words = words[[visit.entry for visit in visits]]
    places = np.array([visit.stays * ways + visit.way for visit in visits])
    return (words // codes * (2 * ways) + places) * codes + words % codes


class Visit(NamedTuple):
    """One visit: number of the entry in the list before, way of the tile, whether the tile is there already."""

    entry: int
    way: int
    stays: bool


Item = Sequence[Sequence[int]]  # tiles that each row block of an item visits


def in_line(items: Sequence[Item]) -> list[int]:
    """Return an order of items in which neighbours visit many tiles in common.

    A visit counts FADING times as much with each item that passes, and a tile of an item NEW less.
    """
    visited = [np.fromiter({tile for stream in item for tile in stream}, np.int64) for item in items]
    of, tiles = np.repeat(np.arange(len(items)), list(map(len, visited))), np.concatenate(visited)
    _, tiles = np.unique(tiles, return_inverse=True)
    seen = np.zeros((len(items), int(tiles.max()) + 1), np.float32)
    seen[of, tiles] = 1
    gains, recent, result = -NEW * seen.sum(1), np.zeros(seen.shape[1], np.float32), []
    for _ in items:
        result.append(int(np.argmax(gains + seen @ recent)))
        gains[result[-1]] = -np.inf
        recent = np.maximum(recent * np.float32(FADING), seen[result[-1]])
    return result


Firsts = Sequence[Sequence[int]]  # tiles of each row block that may come first


def plan(items: Sequence[Item], firsts: Sequence[Firsts], ways: Sequence[int]) -> list[list[list[Visit]]]:
    """Return the visits of each item and row block in their new order.

    Tiles that both row blocks of an item visit have the same place in both lists, so that they are loaded once.

    Args:
        items: one item after another. Equal numbers are one tile.
        firsts: of each item; none of a row block without tiles.
        ways: of each slot of the ring, no fewer than an item has row blocks.
    """
    following, ring = _next_visits(items, firsts), _Ring(ways)
    return [
        _ordered(item, number, following[number], [set(of) for of in firsts[number]], ring)
        for number, item in enumerate(items)
    ]


def _next_visits(items: Sequence[Item], firsts: Sequence[Firsts]) -> list[dict[int, tuple[int, bool]]]:
    """Return the next visit of each tile of each item: (its item, whether it comes first there)."""
    upcoming: dict[int, tuple[int, bool]] = {}
    result = []
    for number in reversed(range(len(items))):
        tiles = {tile for stream in items[number] for tile in stream}
        result.append({tile: upcoming.get(tile, (NEVER, False)) for tile in tiles})
        first = {of[0] for of in firsts[number] if len(of) == 1}
        upcoming.update({tile: (number, tile in first) for tile in tiles})
    return result[::-1]


class _Ring:
    """Tiles on chip.

    Attributes:
        slots: number of slots.
        due: of each slot and way, the item that visits its tile next.
        places: slot and way of each tile.
    """

    def __init__(self, ways: Sequence[int]) -> None:
        self.slots, self._held = len(ways), [[-1] * count for count in ways]
        self.due = [[NEVER] * count for count in ways]
        self.places: dict[int, tuple[int, int]] = {}

    def take(self, tile: int, slot: int, way: int, due: int) -> bool:
        """Put a tile into a way, and return whether it was there."""
        stays = self.places.get(tile) == (slot, way)
        if not stays:
            self._drop(*self.places.get(tile, (slot, way)))
            self._drop(slot, way)
        self._held[slot][way], self.places[tile] = tile, (slot, way)
        self.due[slot][way] = due
        return stays

    def _drop(self, slot: int, way: int) -> None:
        self.places.pop(self._held[slot][way], None)
        self._held[slot][way], self.due[slot][way] = -1, NEVER


def _ordered(
    item: Item, number: int, following: dict[int, tuple[int, bool]], firsts: Sequence[set[int]], ring: _Ring
) -> list[list[Visit]]:
    """Return the visits of an item, by row block."""
    entries = [{tile: entry for entry, tile in enumerate(stream)} for stream in item]
    shared = [tile for tile in item[0] if len(item) > 1 and tile in entries[1]]
    leads = _leads(item, shared, firsts, ring)
    if len(set(leads.values())) > 1:  # a tile that stands first in one list only is not shared
        shared = [tile for tile in shared if tile not in leads.values()]
    alone = [[tile for tile in stream if tile not in shared] for stream in item]
    result: list[list[Visit]] = [[] for _ in item]
    begin, end, spread = min(map(len, item)), max(map(len, item)), 0
    goes = _slots(item, shared, alone, following, leads, ring)
    for place in range(end):
        slot, active = place % ring.slots, [a for a, stream in enumerate(item) if place < len(stream)]
        taken: dict[int, int] = {}  # ways of tiles at this place

        def due(tile: int, slot: int = slot) -> int:
            return _due(following, tile, slot)

        def here(a: int, slot: int = slot) -> list[int]:
            return [tile for tile in alone[a] if goes[a][tile] == slot]

        def hit(tiles: list[int], slot: int = slot) -> int | None:
            return max((tile for tile in tiles if ring.places.get(tile, (-1,))[0] == slot), key=due, default=None)

        def chosen(tiles: list[int]) -> int:
            """Return the tile to load: of the ones that are not there the one whose next visit is furthest away.

            Later tiles then take its way.
            """
            return max([tile for tile in tiles if tile not in ring.places] or tiles, key=due)

        def visit(tile: int, slot: int = slot, taken: dict[int, int] = taken) -> tuple[int, bool]:
            at, way = ring.places.get(tile, (-1, 0))
            if at != slot:  # rather not in place of a tile that this item visits later
                free = [way for way in range(len(ring.due[slot])) if way not in taken.values()]
                way = max(free, key=lambda way: -1 if ring.due[slot][way] == number else ring.due[slot][way])
            taken[tile] = way
            return way, ring.take(tile, slot, way, due(tile))

        tiles: dict[int, int] = {}  # by row block
        if place == 0:
            tiles = dict(leads)
        elif shared and len(active) == len(item):
            mine = [tile for tile in shared if goes[0][tile] == slot]
            both, waits = hit(mine), len(range(place, begin, ring.slots)) > len(mine)
            if mine and both is None and not (waits and any(hit(here(a)) is not None for a in active)):
                both = chosen(mine)
            tiles = {} if both is None else dict.fromkeys(active, both)
        if not tiles:
            mine_of = {a: here(a) for a in active}
            found = {a: hit(mine_of[a]) for a in active}
            if place >= begin:  # one row block is left
                (rest,) = (alone[a] for a in active)
                there = sum(tile in ring.places for tile in rest)
                if place == begin and len(rest) - there > sum(map(len, ring.due)):  # next items find none of these
                    spread = there
                if _loads_first(rest, slot, ring, -(-spread * (end - 1 - place) // (end - begin))):
                    found = {}
            tiles = {a: tile for a, tile in found.items() if tile is not None}
            if len(tiles) > 1:
                later = len(range(place + ring.slots, begin, ring.slots))
                hits = [sum(ring.places.get(tile, (-1,))[0] == slot for tile in of) for of in mine_of.values()]
                misses = [any(tile not in ring.places for tile in of) for of in mine_of.values()]
                # A tile of one row block comes while the other one visits a tile that is there: two would be late.
                if sum(hits) - 1 <= later and any(misses):
                    del tiles[min((a for a in tiles if misses[a]), key=hits.__getitem__)]
        for tile in dict.fromkeys(sorted(tiles.values(), key=lambda tile: tile not in ring.places)):
            stays = {tile: visit(tile)}
            for a in active:
                if tiles.get(a) == tile:
                    result[a].append(Visit(entries[a][tile], *stays[tile]))
                    stays[tile] = stays[tile][0], True
        for a in active:
            if a not in tiles:
                tiles[a] = chosen(here(a))
                result[a].append(Visit(entries[a][tiles[a]], *visit(tiles[a])))
            for left in (shared, alone[a]):
                if tiles[a] in left:
                    left.remove(tiles[a])
    return result


def _leads(item: Item, shared: Sequence[int], firsts: Sequence[set[int]], ring: _Ring) -> dict[int, int]:
    """Return the tile that comes first, by row block: rather one that is there, and not in another slot."""

    def worth(tile: int) -> tuple[bool, bool]:
        slot = ring.places.get(tile, (-1, 0))[0]
        return slot <= 0, slot == 0

    active = [a for a, stream in enumerate(item) if stream]
    both = [tile for tile in shared if all(tile in of for of in firsts)]
    alone = {a: [tile for tile in item[a] if tile in firsts[a] and tile not in shared] for a in active}
    lead = max(both, key=worth, default=-1)
    if both and (worth(lead)[0] or not all(alone.values())):
        return dict.fromkeys(active, lead)
    return {a: max(alone[a] or [tile for tile in item[a] if tile in firsts[a]], key=worth) for a in active}


def _due(following: dict[int, tuple[int, bool]], tile: int, slot: int) -> int:
    """Return the item that next finds a tile in a slot."""
    then, first = following[tile]
    return NEVER if first and slot else then


def _slots(
    item: Item,
    shared: Sequence[int],
    alone: Sequence[Sequence[int]],
    following: dict[int, tuple[int, bool]],
    leads: dict[int, int],
    ring: _Ring,
) -> list[dict[int, int]]:
    """Return the slot of each tile of an item, by row block.

    A tile to load goes where a way becomes free for long. But few tiles of a slot should be due in the same item,
    because a slot has a share of its places.
    """
    streams, slots = range(len(item)), range(ring.slots)
    room = [[len(range(slot, len(stream), ring.slots)) for slot in slots] for stream in item]
    result: list[dict[int, int]] = [{} for _ in item]

    def goes(tile: int, members: Sequence[int], slot: int) -> None:
        for a in members:
            result[a][tile] = slot
            room[a][slot] -= 1

    for a, tile in leads.items():
        goes(tile, [a], 0)
    dues = [list(of) for of in ring.due]
    # Tiles of one row block that are there should find room beside the ones of both.
    there = [[sum(ring.places.get(tile, (-1,))[0] == slot for tile in tiles) for tiles in alone] for slot in slots]

    def worth(tile: int, both: bool, slot: int) -> tuple[bool, int, int]:
        due, most = _due(following, tile, slot), max(dues[slot])
        gain = min(most - due, FAR) - CROWDED * dues[slot].count(due) if due < NEVER else 0
        return not both or all(room[a][slot] > there[slot][a] for a in streams), gain, most

    for tiles, members in ((shared, streams), *((alone[a], [a]) for a in streams)):
        left = [tile for tile in tiles if tile not in result[members[0]]]
        soonest = sorted(left, key=lambda tile: following[tile][0])
        for tile in soonest:
            slot, way = ring.places.get(tile, (-1, 0))
            if slot >= 0 and all(room[a][slot] for a in members):
                goes(tile, members, slot)
                dues[slot][way] = _due(following, tile, slot)
        for tile in soonest:
            if tile not in result[members[0]]:
                free = [slot for slot in slots if all(room[a][slot] for a in members)]
                slot = max(free, key=functools.partial(worth, tile, members is streams))
                goes(tile, members, slot)
                furthest = dues[slot].index(max(dues[slot]))
                dues[slot][furthest] = min(dues[slot][furthest], _due(following, tile, slot))
    return result


def _loads_first(rest: list[int], slot: int, ring: _Ring, kept: int) -> bool:
    """Return if a load comes now, and visits of `kept` tiles on chip later.

    A tile takes longer to load than one row block takes to visit it. So visits of tiles on chip are spread over the
    list, and loads go on meanwhile.

    Args:
        rest: tiles that the only row block left has yet to visit.
        slot: of the ring, at this place of the list.
    """
    there = [tile for tile in rest if tile in ring.places]
    here = sum(ring.places[tile][0] == slot for tile in there)
    return len(there) <= kept and len(there) < len(rest) and here < len(ring.due[slot])
