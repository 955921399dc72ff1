"""NumPy arrays between BNSD and the other layouts."""

import numpy as np
from flash_attention.call.layout import CALL_LAYOUTS

#: Layouts of a call other than BNSD. Their results are compared with BNSD.
OTHER_LAYOUTS = tuple(layout for layout in CALL_LAYOUTS if layout != "BNSD")


def laid_out(array: np.ndarray, layout: str) -> np.ndarray:
    """Return a (batch, heads, seq, head_dim) array in another layout, contiguous."""
    array = array.transpose({"BNSD": (0, 1, 2, 3), "SBH": (2, 0, 1, 3)}.get(layout, (0, 2, 1, 3)))
    if layout == "TH":
        array = array.reshape(-1, array.shape[2] * array.shape[3])
    return np.ascontiguousarray(array if len(layout) in (2, 4) else array.reshape(*array.shape[:2], -1))


def heads_first(array: np.ndarray, layout: str, head_dim: int, batch: int = 1) -> np.ndarray:
    """Return the (batch, heads, seq, head_dim) array that `laid_out` brought into a layout. TH needs the batch."""
    array = array.reshape(batch, -1, array.shape[-1] // head_dim, head_dim) if layout == "TH" else array
    array = array.reshape(*array.shape[:2], -1, head_dim) if len(layout) == 3 else array
    return array.transpose({"BNSD": (0, 1, 2, 3), "SBH": (1, 2, 0, 3)}.get(layout, (0, 2, 1, 3)))
