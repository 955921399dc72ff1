"""A row of a work table at run time: its fields in scalars."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Union

from flash_attention.kernels.tik.layout import BLOCK, OF_QUERIES
from flash_attention.kernels.tik.problem import KernelProblem
from flash_attention.kernels.tik.recorder import Core
from flash_attention.kernels.tik.row_layout import RowLayout
from flash_attention.kernels.tik.tik_types import BlockPlan, Number, RunTime, Scalar

Field = Union[str, tuple[str, int]]
ITEMS_PER_CHUNK = 48  # rows of the work table held in the Unified Buffer at a time


def _absent(problem: KernelProblem) -> set[str]:
    """Return fields of inputs that the problem does not have."""
    call = problem.call
    absent = set()
    if (problem.layout == "BNSD" and not problem.compares) or problem.sequences:
        absent.add("batch")
    if not call.prefix:
        absent.add("prefix")
    if not call.dropout_threshold:
        absent.add("keep")
    if problem.mask == "none":
        absent.add("mask_plane")
    if call.bias_shape is None:
        absent.add("bias_plane")
    if call.bias != "alibi":
        absent.add("slope")
    return absent


def chunks(items: int) -> list[tuple[int, int]]:
    """Return (first item, items) of the parts in which a core's items come on chip."""
    return [(start, min(ITEMS_PER_CHUNK, items - start)) for start in range(0, items, ITEMS_PER_CHUNK)]


def load_chunk(core: Core[BlockPlan], row: RowLayout, first: Number, count: int) -> None:
    """Bring `count` rows of the work table from number `first` on to the Unified Buffer."""
    # The table of packed sequences, and of a block mask, is data.
    table = core.gm["work" if core.problem.sequences or core.problem.listed else "table"]
    core.tik.data_move(core.on.table[0], table[first * row.size], 0, 1, count * row.size // 8, 0, 0)


class TableRow:
    """Scalars of one row, by field. `row` is its first word in the table on chip.

    Args:
        layout: layout of the table.
        words: place of each field in the row. A field is a name, or a name and a number. Fields of inputs that
            the problem does not have are left out.
    """

    def __init__(self, core: Core[BlockPlan], name: str, layout: RowLayout, words: Mapping[Field, int]):
        self.core, self.layout, absent = core, layout, _absent(core.problem)
        self._words = {field: word for field, word in words.items() if field not in absent}
        self._scalars = {
            field: core.scalar("int32", "_".join(map(str, (name, *((field,) if isinstance(field, str) else field)))), 0)
            for field in self._words
        }
        self.row = core.scalar("int32", f"{name}_row", 0)

    def __getitem__(self, field: Field) -> Scalar:
        return self._scalars[field]

    def get(self, field: Field) -> Number:
        """Return a field that not every problem has; 0 if it is absent."""
        return self._scalars.get(field, 0)

    def origin(self, name: str) -> Number:
        """Return the start of the matrices of an input or output, for `Core.start`."""
        row = "query_row" if name in OF_QUERIES else "key_row"
        return self._scalars.get(row, self._scalars.get("batch", 0))

    def keep_pitch(self) -> RunTime:
        """Return queries of a fractal column of the keep decisions of a packed sequence."""
        return (self["queries"] + (BLOCK - 1)) // BLOCK * BLOCK

    @property
    def keys(self) -> Scalar | None:
        """Return keys of a packed sequence; None otherwise."""
        return self._scalars.get("keys")

    def stored(self, place: Number, size: int = 1) -> Number:
        """Return `place` in stored rows, `size` elements each, behind the sequences before this one."""
        first = self._scalars.get("stored_row")
        return place if first is None else place + first * size

    def load(self, position: Number) -> None:
        """Read the fields of a row of the table on chip, by its number."""
        row, table = position * self.layout.size, self.core.on.table[0]
        self.row.set_as(row)
        for field, scalar in self._scalars.items():
            scalar.set_as(table[row + self._words[field]])

    def copy(self, other: TableRow) -> None:
        """Take over the fields of another row that this one has."""
        for field, scalar in self._scalars.items():
            scalar.set_as(other[field])
        self.row.set_as(other.row)
