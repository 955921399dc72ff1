"""What the shared modules ask of the tiling plans of the kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from flash_attention.kernels.tik.hardware import Buffer


class BlockPlan(Protocol):
    """What the shared modules ask of any tiling plan.

    Attributes:
        rows: queries of a row block.
        head_dim: padded to 16.
    """

    @property
    def strategy(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def keys(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def row_blocks(self) -> int: ...


class TilePlan(BlockPlan, Protocol):
    """What they ask of one with tiles of scores.

    Attributes:
        columns: fractal columns of a tile.
        segments: widths in keys of its matrix instructions.
    """

    @property
    def columns(self) -> int: ...
    @property
    def segments(self) -> tuple[int, ...]: ...
    def segment_start(self, index: int) -> int: ...


Plan = TypeVar("Plan", bound=BlockPlan, covariant=True)
Split = TypeVar("Split", covariant=True)


@dataclass(frozen=True)
class Choice(Generic[Plan, Split]):
    """How a kernel computes a problem: tile shapes, work of the cores, on-chip buffers in the order of allocation."""

    plan: Plan
    split: Split
    buffers: tuple[Buffer, ...]
