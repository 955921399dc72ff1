"""Dividing work, as forward and backward share it: dealing to cores, numbered tiles."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from flash_attention.kernels.tik.hardware import Buffer
from flash_attention.kernels.tik.problem import KernelProblem
from flash_attention.kernels.tik.tik_types import Plan, TilePlan

Split = TypeVar("Split", covariant=True)


@dataclass(frozen=True)
class Choice(Generic[Plan, Split]):
    """A kernel's way to compute a problem: tile shapes, work of the cores, buffers in the order of allocation."""

    plan: Plan
    split: Split
    buffers: tuple[Buffer, ...]


@dataclass(frozen=True)
class TableOfWork:
    """The work of a kernel as a table.

    Attributes:
        table: rows of work items (cores, items).
        tiles, distances: tiles that the items name by number.
        units: tile steps of each core, the measure of balance.
    """

    table: np.ndarray
    tiles: np.ndarray
    distances: np.ndarray
    units: tuple[int, ...]

    @property
    def cores(self) -> int:
        """Return cores that have work."""
        return self.table.shape[0]

    @property
    def items(self) -> int:
        """Return work items of the busiest core."""
        return self.table.shape[1]

    @property
    def words(self) -> np.ndarray:
        """Return the table as kernels read it: int32 (cores, items, words of a row)."""
        return self.table.view(np.int32).reshape(*self.table.shape, -1)


@dataclass
class Registry:
    """Distinct tiles, numbered from 1 in the order they were first asked for."""

    numbers: dict = field(default_factory=dict)

    def number(self, content: Hashable) -> int:
        return self.numbers.setdefault(content, len(self.numbers) + 1)


def deal(costs: list[int], hands: int) -> tuple[list[list[int]], list[int]]:
    """Deal costs, largest first, each to the hand with the least load. Return (indices, load) per hand."""
    hands = min(hands, len(costs))
    heap = [(0, hand) for hand in range(hands)]
    shares: list[list[int]] = [[] for _ in range(hands)]
    loads = [0] * hands
    for index in sorted(range(len(costs)), key=lambda index: (-costs[index], index)):
        _, hand = heapq.heappop(heap)
        shares[hand].append(index)
        loads[hand] += costs[index]
        heapq.heappush(heap, (loads[hand], hand))
    return shares, loads


def in_turns(items: int, cores: int) -> tuple[np.ndarray, np.ndarray]:
    """Deal items to cores in turns that change direction.

    Returns:
        The number of the item in every place, (cores, items of a core), and whether there is one.
    """
    cores = min(cores, items)
    turn, core = np.arange(-(-items // cores))[None, :], np.arange(cores)[:, None]
    number = turn * cores + np.where(turn % 2 == 0, core, cores - 1 - core)
    return number, number < items


def neighbours(shares: list[list[int]], costs: list[int]) -> list[list[int]]:
    """Exchange indices of equal cost, so that the indices of a hand are neighbours."""
    left: dict[int, list[int]] = {}
    for index in sorted((index for share in shares for index in share), reverse=True):
        left.setdefault(costs[index], []).append(index)
    return [[left[costs[index]].pop() for index in share] for share in shares]


def name_head(item: np.void, problem: KernelProblem, batch: int, head: int) -> None:
    """Fill the fields of a row for its first query head and its planes."""
    call = problem.call
    item["head"] = batch * call.heads + head
    item["kv_head"] = batch * call.kv_heads + head // call.group
    item["mask_plane"] = plane(*problem.mask_planes, batch, head)
    item["bias_plane"] = plane(*problem.bias_planes, batch, head)
    item["slope"], item["batch"] = batch * problem.slope_stride + head, batch


def plane(batches: int, heads: int, batch: int, head: int) -> int:
    """Return the plane of an input. All batches or all heads may share it."""
    return (batch if batches > 1 else 0) * heads + (head if heads > 1 else 0)


def clip(bounds: tuple[int, int], start: int, keys: int) -> tuple[int, int]:
    """Return bounds relative to a tile of `keys` keys from `start` on. They are (0, 0) if the tile holds none."""
    low, high = (min(max(bound - start, 0), keys) for bound in bounds)
    return (low, high) if low < high else (0, 0)


def visibility_tiles(plan: TilePlan, tiles: Registry) -> np.ndarray:
    """Return numbered tiles of ones and zeros: float16 (n, keys / 16, rows, 16)."""
    column = np.arange(plan.keys)
    result = np.ones((len(tiles.numbers), plan.rows, plan.keys), np.float16)
    for bounds, number in tiles.numbers.items():
        pairs = np.asarray(bounds)
        result[number - 1] = (column >= pairs[:, :1]) & (column < pairs[:, 1:])
    return _columns_first(plan, result)


def overlapped(tiles: list[tuple[int, ...]]) -> tuple[list[int], list[int]]:
    """Return one sequence that holds every tile, given by numbers of its columns: (the sequence, where each tile
    starts).

    Neighbouring tiles of a band show the same columns further on, so that they share most of them.
    """
    strip: list[int] = []
    left = list(dict.fromkeys(tiles))
    while left:
        lapped = [(max(_overlap(strip, tile), _overlap(tile, strip)), -index) for index, tile in enumerate(left)]
        tile = left.pop(-max(lapped)[1])
        if _find(strip, tile) is not None:
            continue
        behind, before = _overlap(strip, tile), _overlap(tile, strip)
        strip = strip + list(tile[behind:]) if behind >= before else list(tile[: len(tile) - before]) + strip
    starts = [_find(strip, tile) for tile in tiles]
    return strip, [start for start in starts if start is not None]


def _overlap(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the most columns that are the end of `first` and the start of `second`."""
    most = min(len(first), len(second))
    return next(n for n in range(most, -1, -1) if list(first[len(first) - n :]) == list(second[:n]))


def _find(strip: list[int], tile: tuple[int, ...]) -> int | None:
    """Return the start of `tile` in the strip, None if it is not there."""
    return next((at for at in range(len(strip) - len(tile) + 1) if tuple(strip[at : at + len(tile)]) == tile), None)


def visibility_strip(plan: TilePlan, tiles: Registry) -> tuple[np.ndarray, list[int]]:
    """Return numbered tiles of ones and zeros in one array: (float16 (columns, rows, 16), first column of each tile).

    A tile is keys / 16 columns of it.
    """
    columns = Registry()
    split = []
    for bounds in tiles.numbers:
        parts = [tuple(clip(pair, first, 16) for pair in bounds) for first in range(0, plan.keys, 16)]
        split.append(tuple(columns.number(part) for part in parts))  # the bounds of its rows inside each column
    strip, starts = overlapped(split)
    key = np.arange(16)
    patterns = [
        [(key >= low) & (key < high) for low, high in content]  # of a row each
        for content in columns.numbers
    ]
    shaped = np.array([patterns[number - 1] for number in strip], np.float16)
    return shaped.reshape(len(strip), plan.rows, 16), starts


def distance_tiles(plan: TilePlan, distances: Registry) -> np.ndarray:
    """Return numbered tiles of distances of keys after their queries: float16 (n, keys / 16, rows, 16)."""
    result = np.zeros((len(distances.numbers), plan.rows, plan.keys), np.float16)
    for shift, number in distances.numbers.items():
        after = np.arange(plan.keys)[None, :] + shift - np.arange(plan.rows)[:, None]
        result[number - 1] = np.maximum(after, 0)
    return _columns_first(plan, result)


def _columns_first(plan: TilePlan, tiles: np.ndarray) -> np.ndarray:
    shaped = tiles.reshape(-1, plan.rows, plan.keys // 16, 16)
    return np.ascontiguousarray(shaped.transpose(0, 2, 1, 3))
