"""Slots that items take in turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from flash_attention.kernels.tik.recorder import Core
from flash_attention.kernels.tik.tik_types import BlockPlan, Number

_Slot = TypeVar("_Slot")


def each_epoch(core: Core[BlockPlan], slots: Sequence[_Slot], epoch: Number) -> Iterator[_Slot]:
    """Yield slots[0] under `epoch == 0` and slots[1] otherwise: addresses stay known while the kernel is
    compiled.
    """
    with core.tik.if_scope(epoch == 0):
        yield slots[0]
    with core.tik.else_scope():
        yield slots[1]
