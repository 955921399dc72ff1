"""Whole and short tiles of keys and rows, and the two sets of slots that items take in turns."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from flash_attention.kernels.tik.core import Core
from flash_attention.kernels.tik.language import Number, Record, Scope
from flash_attention.kernels.tik.plan import BlockPlan, TilePlan
from flash_attention.kernels.tik.problem import padded

_Slot = TypeVar("_Slot")


def segment_keys(core: Core[TilePlan], keys: Number, start: int, width: int) -> Number:
    """Keys of a tile with `keys` keys, which may be a run-time number, in its segment from `start` on."""
    if isinstance(keys, int):
        return max(0, min(width, keys - start))
    have = core.scalar("int32", "segment_keys", keys - start)
    with core.tik.if_scope(have < 0):
        have.set_as(0)
    with core.tik.if_scope(have > width):
        have.set_as(width)
    return have


def by_keys(core: Core[TilePlan], tile: Number, record: Record, length: Number | None = None) -> None:
    """Records the load of a whole tile and, where the key length asks for it, of the short last one.

    `record` gets the keys that a tile of key or value has; what is stored per key beside them is padded to 16.

    Args:
        length: keys of a packed sequence; `record` then also gets a run-time number, which may be 0.
    """
    if length is not None:
        keys = core.scalar("int32", "tile_keys", length - tile * core.plan.keys)
        _whole_or(core, keys >= core.plan.keys, core.plan.keys <= core.place("key").rows, record, core.plan.keys, keys)
        return
    if not core.tail_keys:
        record(core.plan.keys)
        return
    full = core.place("key").rows // core.plan.keys
    if not full:
        record(core.tail_keys)
        return
    with core.tik.if_scope(tile < full):
        record(core.plan.keys)
    with core.tik.else_scope():
        record(core.tail_keys)


def _whole_or(
    core: Core[BlockPlan], is_whole: Number, possible: bool, record: Record, whole: int, number: Number
) -> None:
    """Records `record(whole)` under a run-time condition that is possible or not, and `record(number)` otherwise."""
    if not possible:
        record(number)
        return
    with core.tik.if_scope(is_whole):
        record(whole)
    with core.tik.else_scope():
        record(number)


def if_any(core: Core[BlockPlan], count: Number) -> Scope:
    """A scope that is left out where `count` is a run-time number and 0."""
    return contextlib.nullcontext() if isinstance(count, int) else core.tik.if_scope(count > 0)


def by_rows(core: Core[BlockPlan], rows: Number, record: Record) -> None:
    """Records `record(rows)` for whole row blocks and, where the query length asks for it, for the short last one.

    As in `by_keys`, what is stored per row beside the matrices is padded to 16. With packed sequences `record` also
    gets `rows` itself, which may be 0; what is stored per row is whole, see `stored_rows`.
    """
    if core.problem.sequences:
        _whole_or(
            core, rows == core.plan.rows, core.plan.rows <= core.place("query").rows, record, core.plan.rows, rows
        )
        return
    if not core.tail_rows:
        record(core.plan.rows)
        return
    if core.place("query").rows < core.plan.rows:
        record(core.tail_rows)
        return
    with core.tik.if_scope(rows == core.plan.rows):
        record(core.plan.rows)
    with core.tik.else_scope():
        record(core.tail_rows)


def stored_rows(core: Core[BlockPlan], have: Any) -> int:
    """Rows of a row block with `have` rows in what is stored per row."""
    return core.plan.rows if core.problem.sequences else padded(have)


def each_epoch(core: Core[BlockPlan], slots: Sequence[_Slot], epoch: Number) -> Iterator[_Slot]:
    """Yields slots[0] under `epoch == 0` and slots[1] otherwise: addresses stay known while the kernel is compiled."""
    with core.tik.if_scope(epoch == 0):
        yield slots[0]
    with core.tik.else_scope():
        yield slots[1]
