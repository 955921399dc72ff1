"""Draw the pictures of the documentation: `PYTHONPATH=train python docs/figures.py` writes them to docs/images.

Pictures of measurements are not here: they come from `flash-attention bench`, named beside them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from flash_attention import plotting, reference
from flash_attention.call import AttentionRules, Call
from flash_attention.call.block_mask import BlockMask
from flash_attention.call.tiling import tile_of

IMAGES = Path(__file__).resolve().parent / "images"

VISIBLE, PARTIAL, SKIPPED, GRID = "#4c72b0", "#9db7dc", "#f2f2f2", "#ffffff"
ACCENT = "#c44e52"


# ---------------------------------------------------------------- masks.md


@dataclass(frozen=True)
class Mask:
    """A picture of docs/masks.md: who sees whom in a call of `FlashAttention(64, **arguments)`.

    Attributes:
        title: above the picture.
        seq_q, seq_k: tokens; with `tiles` the pixels are tokens and the lines are edges of tiles.
        arguments: of the layer, beside head_dim.
        inputs: NumPy arrays that the call gets beside query, key and value, by the names of the layer.
    """

    title: str
    seq_q: int = 12
    seq_k: int = 12
    arguments: dict = field(default_factory=dict)
    inputs: dict = field(default_factory=dict)

    @property
    def call(self) -> str:
        """Return the layer as the page writes it."""
        arguments = "".join(f", {name}={value!r}" for name, value in self.arguments.items())
        return f"FlashAttention(64{arguments})".replace("'", '"')

    @property
    def described(self) -> Call:
        """Return the call, described for `flash_attention.call.visibility` and the reference."""
        mask = self.inputs.get("attention_mask")
        compact = mask is not None and mask.shape[-2:] != (self.seq_q, self.seq_k) and mask.shape[-2] > 1
        rules = AttentionRules.from_arguments(**{**self.arguments, **({"causal": True} if compact else {})})
        return Call(
            batch=1,
            heads=1,
            seq_q=self.seq_q,
            seq_k=self.seq_k,
            head_dim=64,
            rules=rules,
            mask_shape=None if mask is None or compact else mask.shape,
            mask_dtype=None if mask is None or compact else "uint8",
            prefix="prefix" in self.inputs,
            segments="segment_ids" in self.inputs,
        )

    def visible(self) -> np.ndarray:
        """Return the visible pairs, boolean (seq_q, seq_k)."""
        call, given = self.described, self.inputs
        mask = given.get("attention_mask") if call.mask_shape else None
        ids = given.get("segment_ids")
        hidden = reference.hidden(call, mask, given.get("prefix"), ids, given.get("kv_segment_ids", ids))
        return ~np.broadcast_to(hidden, (1, 1, self.seq_q, self.seq_k))[0, 0]


_IDS = np.repeat(np.array([0, 1, 2, -1], np.int32), (4, 5, 2, 1))[None]
_PADDING = (np.arange(12) >= 8).astype(np.uint8)[None, None, None]
_ANY = (np.add.outer(np.arange(12), np.arange(12)) % 3 == 2).astype(np.uint8)[None, None]
_COMPACT = np.triu(np.ones((1, 128, 128), np.uint8), 1)
_BOTTOM_RIGHT = {"causal_alignment": "bottom_right"}

MASKS = {
    "full": Mask("no mask"),
    "causal": Mask("causal", arguments={"causal": True}),
    "causal_top_left": Mask("causal, top left", 6, 12, {"causal": True}),
    "causal_bottom_right": Mask("causal, bottom right", 6, 12, {"causal": True, **_BOTTOM_RIGHT}),
    "causal_more_queries": Mask("causal, bottom right", 12, 6, {"causal": True, **_BOTTOM_RIGHT}),
    "window_both": Mask("window (2, 1)", arguments={"window_size": (2, 1)}),
    "window_left": Mask("window (3, 0)", arguments={"window_size": (3, 0)}),
    "window_bottom_right": Mask("window (3, 0), bottom right", 6, 12, {"window_size": (3, 0), **_BOTTOM_RIGHT}),
    "blocks": Mask("block window", 640, 640, {"prev_block_num": 1, "next_block_num": 0}),
    "blocks_causal": Mask("block window, causal", 640, 640, {"prev_block_num": 1, "causal": True}),
    "blocks_64": Mask(
        "block window, tiles of 64", 640, 640, {"prev_block_num": 1, "causal": True, "tiling_stgy_name": "sparse_64"}
    ),
    "compact": Mask("compact causal mask", 640, 640, {}, {"attention_mask": _COMPACT}),
    "padding": Mask("padding", inputs={"attention_mask": _PADDING}),
    "explicit": Mask("any mask", inputs={"attention_mask": _ANY}),
    "padding_causal": Mask("padding and causal", 12, 12, {"causal": True}, {"attention_mask": _PADDING}),
    "prefix": Mask("prefix of 5", 12, 12, {"causal": True}, {"prefix": np.array([5], np.int32)}),
    "segments": Mask("documents", 12, 12, {}, {"segment_ids": _IDS}),
    "segments_causal": Mask("documents, causal", 12, 12, {"causal": True}, {"segment_ids": _IDS}),
}


def draw_mask(name: str, out: Path) -> Path:
    """Draw mask_NAME.png: visible pairs; with several tiles also what each tile costs."""
    mask = MASKS[name]
    visible = mask.visible()
    figure, axes = plotting.subplots(1, 1, (2.7, 2.7 * min(1.0, 0.35 + 0.65 * mask.seq_q / mask.seq_k)))
    axis = axes[0, 0]
    tiled = max(mask.seq_q, mask.seq_k) > 128
    colours = np.full((*visible.shape, 3), _rgb(SKIPPED))
    tile = tile_of(mask.arguments.get("tiling_stgy_name", "sparse")) if tiled else 1
    if tiled:
        for query_tile in range(mask.seq_q // tile):
            for visit in mask.described.band.key_tiles(query_tile, tile, tile):
                rows, keys = (slice(at * tile, (at + 1) * tile) for at in (query_tile, visit.index))
                colours[rows, keys] = _rgb(PARTIAL)
    colours[visible] = _rgb(VISIBLE)
    axis.imshow(colours, interpolation="nearest", extent=(0, mask.seq_k, mask.seq_q, 0))
    for at in range(0, mask.seq_k + 1, tile):
        axis.axvline(at, color=GRID, linewidth=1)
    for at in range(0, mask.seq_q + 1, tile):
        axis.axhline(at, color=GRID, linewidth=1)
    step = max(tile, 128) if tiled else 4
    axis.set_xticks(range(0, mask.seq_k + 1, step))
    axis.set_yticks(range(0, mask.seq_q + 1, step))
    axis.tick_params(labelsize=7, length=0)
    axis.set_xlabel("keys", fontsize=8)
    axis.set_ylabel("queries", fontsize=8)
    axis.set_title(mask.title, fontsize=9)
    for side in axis.spines.values():
        side.set_visible(False)
    return plotting.save(figure, out / f"mask_{name}.png")


def draw_block_masks(out: Path) -> Path:
    """Draw block_masks.png: the tiles of each constructor of BlockMask."""
    tokens = 16 * 128
    masks = {
        "local_global": BlockMask.local_global(tokens),
        "strided(stride=4)": BlockMask.strided(tokens, stride=4),
        "bigbird(seed=0)": BlockMask.bigbird(tokens, seed=0),
        "sink_window(window=3)": BlockMask.sink_window(tokens, window=3),
        "documents": BlockMask.documents([5 * 128, 8 * 128, 3 * 128]),
        "from_rule": BlockMask.from_rule(lambda _b, _h, row, column: (row ^ column) % 4 == 0, tokens),
    }
    figure, axes = plotting.subplots(1, len(masks), (2.1 * len(masks), 2.5))
    for axis, (title, mask) in zip(axes[0], masks.items()):
        mask.plot(axis)
        axis.set_title(title, fontsize=9)
        axis.set_xticks([])
        axis.set_yticks([])
    return plotting.save(figure, out / "block_masks.png")


def _rgb(colour: str) -> tuple[float, ...]:
    from matplotlib.colors import to_rgb

    return to_rgb(colour)


# ---------------------------------------------------------------- tutorial.md


def draw_online_softmax(out: Path) -> Path:
    """Draw tutorial_online_softmax.png: one row of scores that arrives in tiles, with its running maximum and sum."""
    scores = np.random.default_rng(0).standard_normal(32) * 0.7
    scores[[11, 21]] = 2.2, 3.4
    tiles = scores.reshape(4, 8)
    maxima = np.maximum.accumulate(tiles.max(axis=1))
    sums, total = [], 0.0
    for number, tile in enumerate(tiles):
        before = maxima[number - 1] if number else -np.inf
        total = total * np.exp(before - maxima[number]) + np.exp(tile - maxima[number]).sum()
        sums.append(total)
    assert np.isclose(total, np.exp(scores - scores.max()).sum())
    figure, axes = plotting.subplots(2, 1, (7, 3.6), sharex=True, height_ratios=(2, 1))
    upper, lower = axes[:, 0]
    upper.bar(range(32), scores, color=VISIBLE, label="scores of one query")
    upper.step(np.arange(0, 40, 8) - 0.5, [*maxima, maxima[-1]], where="post", color=ACCENT, label="running maximum")
    upper.set_ylim(scores.min() - 0.3, scores.max() + 1.7)
    upper.legend(fontsize=8, loc="upper left", ncols=2)
    lower.bar(np.arange(4) * 8 + 3.5, sums, width=7.6, color=PARTIAL, label="running sum, in units of exp(maximum)")
    for number, value in enumerate(sums):
        lower.text(number * 8 + 3.5, value, f"{value:.2f}", ha="center", va="bottom", fontsize=8)
    lower.set_ylim(0, max(sums) * 2.0)
    lower.legend(fontsize=8, loc="upper left")
    lower.set_xlabel("keys, in tiles of 8", fontsize=9)
    for axis in (upper, lower):
        axis.set_xticks(range(0, 33, 8))
        for at in range(0, 33, 8):
            axis.axvline(at - 0.5, color="lightgray", linewidth=0.8, zorder=0)
    return plotting.save(figure, out / "tutorial_online_softmax.png")


FIGURES: dict[str, Callable[[Path], Path]] = {
    **{f"mask_{name}": lambda out, name=name: draw_mask(name, out) for name in MASKS},  # type: ignore[misc]
    "block_masks": draw_block_masks,
    "tutorial_online_softmax": draw_online_softmax,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=IMAGES, help="folder for the pictures (default: docs/images)")
    parser.add_argument("names", nargs="*", metavar="NAME", help="which; all when none is given")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(FIGURES))
    if unknown:
        parser.error(f"NAME: got {', '.join(unknown)}, allowed are {', '.join(FIGURES)}")
    for name in options.names or FIGURES:
        print(FIGURES[name](options.out))


if __name__ == "__main__":
    main()
