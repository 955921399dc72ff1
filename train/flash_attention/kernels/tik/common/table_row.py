"""A row of a work table at run time: its fields in scalars."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Union

from flash_attention.kernels.tik import layout
from flash_attention.kernels.tik.core import Core
from flash_attention.kernels.tik.language import Number, RunTime, Scalar
from flash_attention.kernels.tik.packed import BLOCK, Sequences
from flash_attention.kernels.tik.plan import BlockPlan
from flash_attention.kernels.tik.problem import KernelProblem

Field = Union[str, tuple[str, int]]
ITEMS_PER_CHUNK = 48  # rows of the work table held in the Unified Buffer at a time


def of_sequence(first: int, *names: str) -> dict[str, int]:
    """Places of the words of a packed sequence from word `first` on; all of them, or those with some names."""
    return {name: first + index for index, name in enumerate(Sequences._fields) if not names or name in names}


def present(fields: Mapping[str, int], problem: KernelProblem) -> dict[Field, int]:
    """Without the fields of inputs that the problem does not have."""
    absent = set()
    if problem.layout == "BNSD" or problem.sequences:
        absent.add("batch")
    if not problem.sequences:
        absent.update(Sequences._fields)
    if not problem.prefix:
        absent.add("prefix")
    if not problem.dropout_threshold:
        absent.add("keep")
    if problem.mask == "none":
        absent.add("mask_plane")
    if problem.bias_shape is None:
        absent.add("bias_plane")
    if problem.bias != "alibi":
        absent.add("slope")
    return {field: word for field, word in fields.items() if field not in absent}


class TableRow:
    """Scalars of one row, by field. `row` is its first word in the table on chip.

    Args:
        words: place of each field in the row. A field is a name, or a name and a number.
    """

    def __init__(self, core: Core[BlockPlan], name: str, words: dict[Field, int]):
        self.core = core
        self._words = words
        self._scalars = {field: core.scalar("int32", f"{name}_{_suffix(field)}", 0) for field in words}
        self.row = core.scalar("int32", f"{name}_row", 0)

    def __getitem__(self, field: Field) -> Scalar:
        return self._scalars[field]

    def get(self, field: Field) -> Number:
        """A field that not every problem has; 0 where it is absent."""
        return self._scalars.get(field, 0)

    def origin(self, name: str) -> Number:
        """Where the matrices of an input or output begin, for `Core.start`."""
        row = "query_row" if name in layout.OF_QUERIES else "key_row"
        return self._scalars.get(row, self._scalars.get("batch", 0))

    def keep_pitch(self) -> RunTime:
        """Queries of a fractal column of the keep decisions of a packed sequence."""
        return (self["queries"] + (BLOCK - 1)) // BLOCK * BLOCK

    @property
    def keys(self) -> Scalar | None:
        """Keys of a packed sequence; None otherwise."""
        return self._scalars.get("keys")

    def stored(self, place: Number, size: int = 1) -> Number:
        """`place` in what is stored per row, `size` elements each, behind those of the sequences before this one."""
        first = self._scalars.get("stored_row")
        return place if first is None else place + first * size

    def load(self, row: Number) -> None:
        """Reads the fields of a row of the table on chip."""
        self.row.set_as(row)
        table = self.core.on.table[0]
        for field, scalar in self._scalars.items():
            scalar.set_as(table[row + self._words[field]])

    def copy(self, other: TableRow) -> None:
        """Takes over the fields of another row that this one has."""
        for field, scalar in self._scalars.items():
            scalar.set_as(other[field])
        self.row.set_as(other.row)


def _suffix(field: Field) -> str:
    return field if isinstance(field, str) else "_".join(map(str, field))
