"""A call of `flash_attention_score`, and the same call in the terms of `flash_attention.flash_attention`."""

from __future__ import annotations

from typing import Any, NamedTuple

from flash_attention.call.inputs import Sizes

PACKED = ("TND", "TH")


class Settings(NamedTuple):
    """Attributes of the primitive; plain constants, because a graph passes them on."""

    head_num: int
    keep_prob: float
    scale_value: float
    pre_tokens: int
    next_tokens: int
    inner_precise: int
    input_layout: str
    sparse_mode: int
    inference: bool | None


class FusedCall(NamedTuple):
    """Hold a call in the terms of `flash_attention.flash_attention`."""

    settings: Settings
    sizes: Sizes
    causal: bool = False
    causal_alignment: str = "top_left"
    window_size: tuple = (-1, -1)
    takes_mask: bool = False
    triangle: bool = False  # attn_mask stands for causal, sequences of keys are as long as the queries'
    hidden: Any = None  # NumPy bool array that broadcasts to the scores, hidden besides
    prefix: bool = False
    shift: str = "none"  # "full"; "alibi" or, of packed sequences, "slopes": slopes out of the last rows

    @property
    def offset(self) -> int:
        """Return the key position of query row 0."""
        return self.sizes.seq_k - self.sizes.seq_q if self.causal_alignment == "bottom_right" else 0
