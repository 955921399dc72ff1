"""Parts of arrays that devices hold."""

from __future__ import annotations


def take(plan, array, axes: tuple, rank: int):
    """The part of a NumPy array with these axes, see `ShardPlan.strategy`, that device `rank` holds."""
    index = []
    for size, axis in zip(array.shape, axes):
        parts, place = {"dp": (plan.dp, rank // plan.mp), "mp": (plan.mp, rank % plan.mp), None: (1, 0)}[axis]
        index.append(slice(place * size // parts, (place + 1) * size // parts))
    return array[tuple(index)]
