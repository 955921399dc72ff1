"""Types of the tik module that the kernels use: numbers and tensors of a program that is being recorded."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Callable, Protocol, TypeVar, Union


class RunTime(Protocol):
    """A number, or the result of a comparison, that is known when the program runs."""

    def __add__(self, other: Number) -> RunTime: ...
    def __radd__(self, other: int) -> RunTime: ...
    def __sub__(self, other: Number) -> RunTime: ...
    def __rsub__(self, other: int) -> RunTime: ...
    def __mul__(self, other: Number) -> RunTime: ...
    def __rmul__(self, other: int) -> RunTime: ...
    def __floordiv__(self, other: Number) -> RunTime: ...
    def __mod__(self, other: Number) -> RunTime: ...
    def __lt__(self, other: Number) -> RunTime: ...
    def __le__(self, other: Number) -> RunTime: ...
    def __gt__(self, other: Number) -> RunTime: ...
    def __ge__(self, other: Number) -> RunTime: ...
    def __eq__(self, other: object) -> RunTime: ...  # type: ignore[override]
    def __ne__(self, other: object) -> RunTime: ...  # type: ignore[override]


Number = Union[int, RunTime]
Factor = Union[float, RunTime]  # of elements
Step = Callable[[], object]  # emits some statements
Emit = Callable[[Any], None]  # the same for an int or, with packed sequences, a Number


class Scalar(RunTime, Protocol):
    """A variable of the scalar unit."""

    def set_as(self, value: Factor | Tensor) -> None: ...


class Tensor(Protocol):
    """A tensor, or a view of one from an element on."""

    dtype: str
    shape: tuple[int, ...]

    def __getitem__(self, index: Number | slice) -> Tensor: ...
    def reinterpret_cast_to(self, dtype: str) -> Tensor: ...


Scope = AbstractContextManager[Any]
# In the classes below these names are attributes.
_Scalar = Scalar
_Tensor = Tensor


class Tik(Protocol):
    """The recorder of a program. Its instructions, whose arguments it checks itself, are the other attributes."""

    Tensor: Callable[..., _Tensor]
    Scalar: Callable[..., _Scalar]
    for_range: Callable[..., AbstractContextManager[RunTime]]
    if_scope: Callable[[Number], Scope]
    else_scope: Callable[[], Scope]

    def __getattr__(self, name: str) -> Callable[..., Any]: ...


_Tik = Tik


class TikModule(Protocol):
    """The module itself, `tbe.tik`; its other attributes are the memories."""

    Tik: Callable[..., _Tik]
    all: Callable[..., RunTime]
    any: Callable[..., RunTime]

    def __getattr__(self, name: str) -> Any: ...


class BlockPlan(Protocol):
    """Tiling plan as the shared modules see it.

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
    """Tiling plan with tiles of scores.

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
