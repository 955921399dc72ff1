"""The row of a work item in the forward operator's work table."""

from __future__ import annotations

from flash_attention.kernels.tik.packed import FAR, SEQUENCE_RECORD
from flash_attention.kernels.tik.problem import KernelProblem
from flash_attention.kernels.tik.record_layout import RecordLayout, Words

ROW_BLOCKS = 2  # of an item at most
EDGE = 4  # key tiles at either end of a row block's range that may be partly visible
NEVER = FAR  # key tile that no row block visits
MOST_STRIDE = 4000  # of a sample, in groups of 16 keys
ITEM_COST = 2  # of an item beside its tiles

# Numbers of visibility tiles of the first and, counted backwards, of the last EDGE tiles; 0 = all visible.
_EDGES: dict[str, Words] = {"left": EDGE, "right": EDGE}
# With packed sequences, whose tiles have no numbers, the first row block holds the sequence of the item there.
_SEQUENCE: dict[str, Words] = {"sequence": SEQUENCE_RECORD}


def _row_block(edges: dict[str, Words]) -> RecordLayout:
    """Rows from `start` on, key tiles from first to last, and the sample of keys that the row references start from.

    cross and after: first key tile with keys after a query, and with all keys after all queries; distance: numbers of
    the distance tiles of tiles cross and cross + 1.
    """
    return RecordLayout(
        {
            **dict.fromkeys(("start", "rows", "first", "last"), 1),
            **edges,
            **dict.fromkeys(("strided", "sample", "stride", "sample_tile", "cross", "after"), 1),
            "distance": 2,
        }
    )


def _item(row_block: RecordLayout) -> RecordLayout:
    fields = ("head", "kv_head", "mask_plane", "bias_plane", "slope", "begin", "end", "batch")
    return RecordLayout({**dict.fromkeys(fields, 1), "row_blocks": (row_block, ROW_BLOCKS)})


ROW_BLOCK = _row_block(_EDGES)
ITEM, PACKED_ITEM = _item(ROW_BLOCK), _item(_row_block(_SEQUENCE))


def item(problem: KernelProblem) -> RecordLayout:
    """The record of a problem's items."""
    return PACKED_ITEM if problem.sequences else ITEM
