"""Random cases: every rule of the shared list in any combination, at sizes around the tiles of the kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from flash_attention.call import ALL_BLOCKS

from tests.train.flash_attention.support.cases import BLOCK_MASKS, MASKS, SEGMENTS, Case

DTYPES = ("float16", "bfloat16", "float32")
ALIBI = ("none", "computed", "given", "shared", "bias", "bias_all")


def random_case(seed: int, dtypes: tuple = DTYPES, longest: int = 300) -> Case:
    """Return the case of a seed.

    Args:
        dtypes: from which one is drawn.
        longest: sequence; the lengths are drawn evenly over their logarithms, and from the neighbours of tile sizes.
    """
    random = np.random.default_rng(seed)

    def pick(*options):
        return options[int(random.integers(len(options)))]

    def chance(share):
        return bool(random.random() < share)

    def length():
        if chance(0.3):
            return min(longest, max(1, pick(8, 16, 32, 64, 128, 256) + pick(-1, 0, 1)))
        return int(np.exp(random.uniform(0, np.log(longest))))

    seq_q, seq_k = length(), length()
    if chance(0.4):
        seq_k = seq_q
    kv_heads, group = pick(1, 1, 2, 3), pick(1, 1, 2, 4)
    mask = pick(*MASKS, "none", "causal", "causal", "compact")
    dropout = 0.0 if chance(0.7) else pick(0.1, 0.5, 0.9)
    window = (-1, -1)
    if chance(0.3):
        window = tuple(pick(-1, int(random.integers(0, max(seq_q, seq_k) + 1))) for _ in range(2))
    case = Case(
        batch=pick(1, 1, 2, 3),
        heads=kv_heads * group,
        kv_heads=kv_heads,
        seq_q=seq_q,
        seq_k=seq_k,
        head_dim=pick(1, 8, 16, 32, 40, 64, 80, 128, int(random.integers(1, 257)), int(random.integers(1, 70))),
        dtype=pick(*dtypes),
        mask=mask,
        mask_dtype=pick("uint8", "bool", "float16") if mask not in ("none", "causal") else "uint8",
        blocks=tuple(ALL_BLOCKS if chance(0.7) else int(random.integers(0, 4)) for _ in range(2)),
        window=window,
        alignment="bottom_right" if chance(0.3) else "top_left",
        tiling=pick("sparse", "sparse", "sparse_64", "sparse_256"),
        alibi="none" if chance(0.6) else pick(*ALIBI),
        dropout=dropout,
        scale=None if chance(0.85) else pick(0.5, -0.25, 1.0),
        values=pick("normal", "normal", "normal", "normal", "large", "outlier", "constant", "zero"),
        value_dim=0 if chance(0.8) else pick(1, 16, 64, int(random.integers(1, 257))),
        softcap=0.0 if chance(0.8) else pick(0.5, 5.0, 30.0),
    )
    windows = case.window != (-1, -1) or case.blocks != (ALL_BLOCKS, ALL_BLOCKS)
    return replace(
        case,
        sinks=chance(0.2),
        prefix=chance(0.5) and mask == "causal" and not windows,
        segments="none" if chance(0.75) else pick(*SEGMENTS),
        block_mask="none" if chance(0.75) else pick(*BLOCK_MASKS),
        tile=pick(64, 128, 256),
        density=pick(0.05, 0.3, 0.6, 0.95),
    )
