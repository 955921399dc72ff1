"""A row of a work table at run time: its fields in scalars."""

from __future__ import annotations

from flash_attention.kernels.tik.core import Core
from flash_attention.kernels.tik.problem import KernelProblem

ITEMS_PER_CHUNK = 48  # rows of the work table held in the Unified Buffer at a time


def present(fields: dict, problem: KernelProblem) -> dict:
    """Without the fields of inputs that the problem does not have."""
    absent = set()
    if problem.layout == "BNSD":
        absent.add("batch")
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

    def __init__(self, core: Core, name: str, words: dict):
        self.core = core
        self._words = words
        self._scalars = {field: core.scalar("int32", f"{name}_{_suffix(field)}", 0) for field in words}
        self.row = core.scalar("int32", f"{name}_row", 0)

    def __getitem__(self, field):
        return self._scalars[field]

    @property
    def batch(self):
        """Number of the batch item; None with BNSD, where heads are enough."""
        return self._scalars.get("batch")

    def load(self, row) -> None:
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


def _suffix(field) -> str:
    return field if isinstance(field, str) else "_".join(map(str, field))
