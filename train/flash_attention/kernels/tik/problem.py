"""What a TIK kernel is built for: one frozen, validated description."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

from flash_attention.problem.checks import check_int, check_name
from flash_attention.problem.visibility import ALIGNMENTS, ALL_BLOCKS, UNLIMITED, Band, query_offset

MASKS = ("none", "full", "key", "causal", "compact_causal")
ALIBIS = ("none", "given", "bias", "computed")
MAX_CORES = 65535
MAX_HEAD_DIM = 256
# Positions that computed ALiBi tells apart, and the largest slope times position: KEY_BLOCK, POSITION in score_terms.
ALIBI_TOKENS = 2048 * 128
ALIBI_LARGEST = 4 * 65504.0


@dataclass(frozen=True)
class KernelProblem:
    """Shapes and rules of one attention kernel. float16 in and out, float32 accumulation.

    Attributes:
        batch, heads, kv_heads, seq_q, seq_k, head_dim: as in the layer; kv_heads divides heads, head_dim 1 to 256.
        mask: "none"; "full": an explicit mask (mask_batch, mask_heads, seq_q, seq_k), 1 = hidden; "key": a mask
            (mask_batch, mask_heads, 1, seq_k), the same for every query; "causal"; "compact_causal", which is "causal"
            aligned top-left.
        causal: adds the causal rule to an explicit mask; implied by the two causal mask kinds.
        causal_alignment: "top_left" (query i stands at key i) or "bottom_right" (the last query at the last key).
        window_left, window_right: tokens, -1 = unlimited.
        prev_blocks, next_blocks, block: the block window, in blocks of `block` tokens.
        alibi: "none"; "given": a bias per key (bias_batch, bias_heads, 1, seq_k); "bias": a bias per score
            (bias_batch, bias_heads, seq_q, seq_k); "computed": -slope * |distance| with `slopes`.
        slopes: one per head for "computed".
        dropout_threshold: a 16-bit value; kept scores are scaled by 65536 / (65536 - threshold). 0 = no dropout, else
            the kernel takes one packed keep bit per score.
        scale: factor on the scores; None = 1 / sqrt(head_dim).
        cores: AI cores the work is split over.
        tiling: name of a tiling strategy of `flash_attention.kernels.tik.forward.tiling`.

    Raises:
        TypeError, ValueError: naming the field, what came and what is allowed.
    """

    batch: int
    heads: int
    seq_q: int
    seq_k: int
    head_dim: int
    kv_heads: int = 0
    mask: str = "none"
    mask_batch: int = 1
    mask_heads: int = 1
    causal: bool = False
    causal_alignment: str = "top_left"
    window_left: int = UNLIMITED
    window_right: int = UNLIMITED
    prev_blocks: int = ALL_BLOCKS
    next_blocks: int = ALL_BLOCKS
    block: int = 128
    alibi: str = "none"
    bias_batch: int = 1
    bias_heads: int = 1
    slopes: tuple[float, ...] = ()
    dropout_threshold: int = 0
    scale: float | None = None
    dtype: str = "float16"
    cores: int = 32
    tiling: str = "auto"

    def __post_init__(self):
        for name in ("batch", "heads", "seq_q", "seq_k", "block"):
            check_int(name, getattr(self, name), 1)
        check_int("head_dim", self.head_dim, 1, MAX_HEAD_DIM)
        check_int("kv_heads", self.kv_heads, 0)
        if self.kv_heads == 0:
            object.__setattr__(self, "kv_heads", self.heads)
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads: got {self.kv_heads}, allowed is a divisor of heads {self.heads}")
        if self.dtype != "float16":
            raise TypeError(
                f"dtype: got {self.dtype!r}, allowed is 'float16': this chip's Cube multiplies nothing wider"
            )
        check_name("mask", self.mask, MASKS)
        check_name("causal_alignment", self.causal_alignment, ALIGNMENTS)
        if self.mask in ("causal", "compact_causal"):
            object.__setattr__(self, "causal", True)
            if self.mask == "compact_causal" and self.causal_alignment != "top_left":
                raise ValueError("causal_alignment: a compact causal mask is aligned top_left, got bottom_right")
            object.__setattr__(self, "mask", "none")
        for name, whole in (
            ("mask_batch", self.batch),
            ("bias_batch", self.batch),
            ("mask_heads", self.heads),
            ("bias_heads", self.heads),
        ):
            if getattr(self, name) not in (1, whole):
                raise ValueError(f"{name}: got {getattr(self, name)!r}, allowed is 1 or {whole}")
        for name in ("window_left", "window_right"):
            check_int(name, getattr(self, name), UNLIMITED)
        check_int("prev_blocks", self.prev_blocks, 0)
        check_int("next_blocks", self.next_blocks, 0)
        check_name("alibi", self.alibi, ALIBIS)
        wanted = self.heads if self.alibi == "computed" else 0
        if len(self.slopes) != wanted or not all(isinstance(s, Real) and math.isfinite(s) for s in self.slopes):
            raise ValueError(
                f"slopes: got {self.slopes!r}, allowed are {wanted} finite numbers for alibi {self.alibi!r}"
            )
        if self.alibi == "computed":
            tokens = max(self.seq_q + self.offset, self.seq_k)
            if tokens > ALIBI_TOKENS:
                raise ValueError(f"alibi: got computed for {tokens} tokens, allowed are {ALIBI_TOKENS}")
            steepest = max(map(abs, self.slopes))
            if steepest * tokens > ALIBI_LARGEST:
                raise ValueError(f"slopes: got {steepest}, allowed for {tokens} tokens is {ALIBI_LARGEST / tokens:.4g}")
        check_int("dropout_threshold", self.dropout_threshold, 0, 65535)
        if self.scale is None:
            object.__setattr__(self, "scale", 1.0 / math.sqrt(self.head_dim))
        elif isinstance(self.scale, bool) or not isinstance(self.scale, Real) or not math.isfinite(self.scale):
            raise ValueError(f"scale: got {self.scale!r}, allowed is a finite number or None for 1 / sqrt(head_dim)")
        check_int("cores", self.cores, 1, MAX_CORES)

    @property
    def group(self) -> int:
        """Query heads per key/value head."""
        return self.heads // self.kv_heads

    @property
    def offset(self) -> int:
        """Key position of query row 0."""
        return query_offset(self.causal_alignment, self.seq_q, self.seq_k)

    @property
    def band(self) -> Band:
        """Positional visibility."""
        return Band(
            self.seq_q,
            self.seq_k,
            self.offset,
            self.causal,
            self.window_left,
            self.window_right,
            self.prev_blocks,
            self.next_blocks,
            self.block,
        )

    @property
    def dropout_scale(self) -> float:
        """Factor on kept probabilities."""
        return 65536.0 / (65536 - self.dropout_threshold)

    @property
    def query_factor(self) -> float:
        """Power of two (with the sign of the scale) by which the kernels multiply query or key, at most 1.

        Where Vector scales the scores anyway it is smaller than the scale, so that scores of any size that float16
        holds, their differences, and what hides a key stay in its range before that pass.
        """
        if self.scale == 0:
            return 0.0
        exponent = min(math.floor(math.log2(abs(self.scale))), 0)
        if self.alibi != "none" or self.mask == "key":
            exponent -= 4
        elif 2.0**exponent != abs(self.scale) or self.head_dim > 64:
            exponent -= 2
        return math.copysign(2.0 ** max(exponent, -14), self.scale)

    @property
    def post_scale(self) -> float:
        """Rest of the scale, applied to the scores in float32 by the Vector unit; 1.0 needs no pass."""
        return 1.0 if self.scale == 0 else self.scale / self.query_factor


def padded(size: int, unit: int = 16) -> int:
    """`size` rounded up to a multiple of `unit`."""
    return -(-size // unit) * unit
