"""AttentionRules: what an attention call computes, whatever the shapes and dtypes of its tensors."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from typing import Any

from flash_attention.call.checks import (
    check_bool,
    check_int,
    check_name,
    check_rate,
    check_scale,
    check_softcap,
    check_window,
)
from flash_attention.call.tiling import DEFAULT_STRATEGY, tile_of
from flash_attention.call.visibility import ALIGNMENTS, ALL_BLOCKS, UNLIMITED, Band, query_offset

# Arguments of the public functions that `AttentionRules.from_arguments` takes, in the order in which graphs pass them.
RULE_ARGUMENTS = (
    "causal",
    "causal_alignment",
    "window_size",
    "prev_block_num",
    "next_block_num",
    "tiling_stgy_name",
    "alibi",
    "dropout_rate",
    "scale",
    "softcap",
)


@dataclass(frozen=True)
class AttentionRules:
    """The rules of a call, validated. The layer makes them once; a Call and a KernelProblem carry them.

    Attributes:
        causal: query i sees keys up to its own position only.
        causal_alignment: "top_left": query i stands at key i; "bottom_right": at key i + seq_k - seq_q. For causal,
            windows and ALiBi alike.
        window_left, window_right: tokens that a query sees before and after its position; -1 = all.
        prev_blocks, next_blocks: tiles that a tile of queries sees before and after its own; 65536 and more = all.
        tile: tokens of such a tile, and the side of a compact causal mask.
        alibi: adds -slope(head) * |position - key| to the scores, unless the caller gives a bias tensor.
        dropout_rate: share of the probabilities set to zero in training, 0 <= rate < 1.
        scale: factor on the scores; None = 1 / sqrt(head_dim).
        softcap: scaled scores become softcap * tanh(score / softcap) before a bias is added; 0 = off.
        first_query: key position of query 0 of a dense call; None = as causal_alignment says.

    Raises:
        TypeError, ValueError: naming the argument, what came and what is allowed.
    """

    causal: bool = False
    causal_alignment: str = "top_left"
    window_left: int = UNLIMITED
    window_right: int = UNLIMITED
    prev_blocks: int = ALL_BLOCKS
    next_blocks: int = ALL_BLOCKS
    tile: int = 128
    alibi: bool = False
    dropout_rate: float = 0.0
    scale: float | None = None
    softcap: float = 0.0
    first_query: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "causal", check_bool("causal", self.causal))
        check_name("causal_alignment", self.causal_alignment, ALIGNMENTS)
        left, right = check_window((self.window_left, self.window_right))
        check_int("prev_block_num", self.prev_blocks, 0)
        check_int("next_block_num", self.next_blocks, 0)
        # Kernels take integers of 64 bits.
        object.__setattr__(self, "window_left", left)
        object.__setattr__(self, "window_right", right)
        object.__setattr__(self, "prev_blocks", min(int(self.prev_blocks), ALL_BLOCKS))
        object.__setattr__(self, "next_blocks", min(int(self.next_blocks), ALL_BLOCKS))
        check_int("tile", self.tile, 1)
        object.__setattr__(self, "alibi", check_bool("alibi", self.alibi))
        object.__setattr__(self, "dropout_rate", check_rate("dropout_rate", self.dropout_rate))
        if self.scale is not None:
            object.__setattr__(self, "scale", check_scale("scale", self.scale))
        object.__setattr__(self, "softcap", check_softcap("softcap", self.softcap))
        if self.first_query is not None:
            check_int("first_query", self.first_query, 0)
            if self.causal_alignment != "top_left":
                raise ValueError(f"first_query: given with causal_alignment {self.causal_alignment!r}, allowed is one")

    @classmethod
    def from_arguments(
        cls,
        *,
        window_size: tuple[int, int] = (UNLIMITED, UNLIMITED),
        prev_block_num: int = ALL_BLOCKS,
        next_block_num: int = ALL_BLOCKS,
        tiling_stgy_name: str = DEFAULT_STRATEGY,
        **others: Any,
    ) -> AttentionRules:
        """Return the rules, by the names that arguments of the layer have.

        Args:
            window_size: (window_left, window_right).
            prev_block_num: prev_blocks.
            next_block_num: next_blocks.
            tiling_stgy_name: of the strategy that sets the tile.
            **others: further fields, by name.
        """
        left, right = check_window(window_size)
        return cls(
            window_left=left,
            window_right=right,
            prev_blocks=prev_block_num,
            next_blocks=next_block_num,
            tile=tile_of(tiling_stgy_name),
            **others,
        )

    def constants(self) -> tuple:
        """Return plain values that a compiled graph can pass on: AttentionRules(*constants) is this again."""
        return astuple(self)

    @property
    def in_blocks(self) -> bool:
        """Return True if a block window applies."""
        return min(self.prev_blocks, self.next_blocks) < ALL_BLOCKS

    @property
    def dropout_threshold(self) -> int:
        """Return the threshold below which a 16-bit random value drops its key. It is 0 without dropout."""
        return 0 if self.dropout_rate == 0.0 else min(max(round(self.dropout_rate * 65536), 1), 65535)

    def scale_of(self, head_dim: int) -> float:
        """Return the factor on the scores of heads of this size."""
        return 1.0 / math.sqrt(head_dim) if self.scale is None else self.scale

    def offset(self, seq_q: int, seq_k: int) -> int:
        """Return the key position of query row 0. It is negative if queries are bottom-right aligned and more than
        keys.
        """
        return query_offset(self.causal_alignment, seq_q, seq_k) if self.first_query is None else self.first_query

    def band(self, seq_q: int, seq_k: int) -> Band:
        """Return the positional visibility: causal, token window and block window combined."""
        return Band(
            seq_q=seq_q,
            seq_k=seq_k,
            offset=self.offset(seq_q, seq_k),
            causal=self.causal,
            left=self.window_left,
            right=self.window_right,
            prev_blocks=self.prev_blocks,
            next_blocks=self.next_blocks,
            block=self.tile,
        )


PLAIN_RULES = AttentionRules()
"""Every query sees every key; no biases, no dropout."""
