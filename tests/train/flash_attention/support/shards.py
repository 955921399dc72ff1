"""Parts of arrays that devices hold."""

from __future__ import annotations


def take(plan, array, axes: tuple, rank: int):
    """Return device `rank`'s part of a NumPy array. For the axes see `ShardPlan.strategy`."""
    index = []
    for size, axis in zip(array.shape, axes):
        parts, place = {"dp": (plan.dp, rank // plan.mp), "mp": (plan.mp, rank % plan.mp), None: (1, 0)}[axis]
        index.append(slice(place * size // parts, (place + 1) * size // parts))
    return array[tuple(index)]
