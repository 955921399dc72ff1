"""The row of a work item in the backward operator's work table."""

from __future__ import annotations

from flash_attention.kernels.tik.packed import SEQUENCE_RECORD
from flash_attention.kernels.tik.problem import KernelProblem
from flash_attention.kernels.tik.record_layout import RecordLayout, Words

EDGE = 8  # query tiles at either end of a key tile's range that may be partly visible
DISTANCES = 8  # query tiles with keys on both sides

_FIELDS = (
    *("head", "kv_head", "mask_plane", "bias_plane", "slope", "slot", "tile", "first", "count", "steps", "middle"),
    *("cross", "before", "batch"),
    # Query tiles final .. final_end - 1 are visited by no later item of the head, see BackwardSplit.writes_d_query.
    *("final", "final_end"),
)


def _item(numbers: dict[str, Words]) -> RecordLayout:
    return RecordLayout({**dict.fromkeys(_FIELDS, 1), **numbers, "right": EDGE, "distance": DISTANCES})


# left, right: numbers of the visibility tiles of the first and, counted backwards, of the last EDGE query tiles.
ITEM = _item({"left": EDGE})
# The tiles of packed sequences have no numbers.
PACKED_ITEM = _item({"sequence": SEQUENCE_RECORD})


def item(problem: KernelProblem) -> RecordLayout:
    """The record of a problem's items."""
    return PACKED_ITEM if problem.sequences else ITEM
