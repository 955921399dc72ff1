"""Describe one attention call without reference to who computes it."""

from __future__ import annotations

from dataclasses import dataclass

from flash_attention.call import ALL_BLOCKS, AttentionRules, Call
from flash_attention.call.block_mask import BlockMask
from flash_attention.call.visits import Visits, masked, pattern, visits

PASSES = ("forward", "both")  # both = forward and backward
DROPOUT = 0.1


@dataclass(frozen=True)
class Case:
    """Self-attention of shape (batch, heads, seq, head_dim).

    window_blocks limits a query tile to that many key tiles of `tile` tokens, its own included; 0 = no limit.
    extra is "", "mask" (a tenth of all pairs hidden at random), "bias" (a bias for each score) or "dropout" (a tenth of
    the weights dropped). layout is the layout of all tensors. pattern is "" or the constructor of a block mask, see
    `call.visits.PATTERNS`.
    """

    seq: int
    dtype: str = "float32"
    window_blocks: int = 0
    tile: int = 128
    heads: int = 8
    batch: int = 1
    head_dim: int = 128
    causal: bool = True
    extra: str = ""
    layout: str = "BNSD"
    pattern: str = ""

    @property
    def block_mask(self) -> BlockMask | None:
        """Return the block mask of the pattern."""
        return pattern(self.pattern, self.seq, self.tile) if self.pattern else None

    @property
    def call(self) -> Call:
        """Return the call for the backends of this package."""
        call = Call(
            batch=self.batch,
            heads=self.heads,
            seq_q=self.seq,
            seq_k=self.seq,
            head_dim=self.head_dim,
            dtype=self.dtype,
            layout=self.layout,
            mask_shape=(1, 1, self.seq, self.seq) if self.extra == "mask" else None,
            mask_dtype="uint8" if self.extra == "mask" else None,
            bias_shape=(1, self.heads, self.seq, self.seq) if self.extra == "bias" else None,
            bias_dtype=self.dtype if self.extra == "bias" else None,
            bias_grad=False,
            training=True,
            rules=AttentionRules(
                causal=self.causal,
                dropout_rate=DROPOUT if self.extra == "dropout" else 0.0,
                prev_blocks=self.window_blocks - 1 if self.window_blocks else ALL_BLOCKS,
                tile=self.tile,
            ),
        )
        return masked(call, self.block_mask) if self.block_mask is not None else call

    @property
    def tensor_bytes(self) -> int:
        """Return the size of query in bytes. Key, value, output and each gradient have as many."""
        size = 4 if self.dtype == "float32" else 2
        return self.batch * self.heads * self.seq * self.head_dim * size

    @property
    def visits(self) -> Visits:
        """Return the tiles that row blocks visit."""
        return visits(self.call, self.block_mask)

    @property
    def visible(self) -> int:
        """Return how many pairs of query and key see each other, over all heads."""
        return self.visits.pairs

    def flops(self, kind: str) -> float:
        """Return the products' floating-point operations on visible pairs: 2 products forward, 5 more backward."""
        products = {"forward": 2, "backward": 5, "both": 7}[kind]
        return 2.0 * products * self.head_dim * self.visible

    def __str__(self) -> str:
        window = f" window {self.window_blocks} blocks" if self.window_blocks else ""
        if self.window_blocks and self.tile != 128:
            window += f" of {self.tile}"
        heads = ("" if self.batch == 1 else f" B={self.batch}") + ("" if self.heads == 8 else f" H={self.heads}")
        window += f" {self.pattern} of {self.tile}" if self.pattern else ""
        head_dim = "" if self.head_dim == 128 else f" D={self.head_dim}"
        rules = ("" if self.causal else " full") + (f" {self.extra}" if self.extra else "")
        layout = "" if self.layout == "BNSD" else f" {self.layout}"
        return f"S={self.seq}{heads}{head_dim} {self.dtype}{rules}{layout}{window}"
