"""Whole tiles and row blocks, and the short last ones."""

from __future__ import annotations

import contextlib
from typing import Any

from flash_attention.kernels.tik.problem import padded
from flash_attention.kernels.tik.recorder import Core
from flash_attention.kernels.tik.tik_types import BlockPlan, Emit, Number, Scope, TilePlan


def segment_keys(core: Core[TilePlan], keys: Number, start: int, width: int) -> Number:
    """Return the keys of a tile in its segment from `start` on. `keys` may be a run-time number."""
    if isinstance(keys, int):
        return max(0, min(width, keys - start))
    have = core.scalar("int32", "segment_keys", keys - start)
    with core.tik.if_scope(have < 0):
        have.set_as(0)
    with core.tik.if_scope(have > width):
        have.set_as(width)
    return have


def by_keys(core: Core[TilePlan], tile: Number, emit: Emit, length: Number | None = None) -> None:
    """Emit the load of a whole tile, and of the short last one.

    `emit` gets the keys that a tile of key or value has; what is stored per key beside them is padded to 16.

    Args:
        length: keys of a packed sequence; `emit` then also gets a run-time number, which may be 0.
    """
    whole, full = core.plan.keys, core.place("key").rows // core.plan.keys
    if length is not None:
        keys = core.scalar("int32", "tile_keys", length - tile * whole)
        _whole_or(core, keys >= whole, full > 0, emit, whole, keys)
    elif core.tail_keys:
        _whole_or(core, tile < full, full > 0, emit, whole, core.tail_keys)
    else:
        emit(whole)


def _whole_or(core: Core[BlockPlan], is_whole: Number, possible: bool, emit: Emit, whole: int, number: Number) -> None:
    """Record `emit(whole)` under a run-time condition that is possible or not, and `emit(number)` otherwise."""
    if not possible:
        emit(number)
        return
    with core.tik.if_scope(is_whole):
        emit(whole)
    with core.tik.else_scope():
        emit(number)


def if_any(core: Core[BlockPlan], count: Number) -> Scope:
    """Return a scope that is left out if `count` is a run-time number and 0."""
    return contextlib.nullcontext() if isinstance(count, int) else core.tik.if_scope(count > 0)


def if_rows(core: Core[BlockPlan], rows: Number) -> Scope:
    """Open a scope that a packed sequence without queries leaves out."""
    return core.tik.if_scope(rows > 0) if core.problem.sequences else contextlib.nullcontext()


def by_rows(core: Core[BlockPlan], rows: Number, emit: Emit) -> None:
    """Emit `emit(rows)` for whole row blocks, and for the short last one.

    As in `by_keys`, what is stored per row beside the matrices is padded to 16. With packed sequences `emit` also
    gets `rows` itself, which may be 0; what is stored per row is whole, see `stored_rows`.
    """
    whole, rest = core.plan.rows, rows if core.problem.sequences else core.tail_rows
    if core.problem.sequences or core.tail_rows:
        _whole_or(core, rows == whole, whole <= core.place("query").rows, emit, whole, rest)
    else:
        emit(whole)


def stored_rows(core: Core[BlockPlan], have: Any) -> int:
    """Return rows of a row block with `have` rows in what is stored per row."""
    return core.plan.rows if core.problem.sequences else padded(have)
