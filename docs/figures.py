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
ACCENT, INK = "#c44e52", "#333333"


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
    if tiled:
        tile = tile_of(mask.arguments.get("tiling_stgy_name", "sparse"))
        for query_tile in range(mask.seq_q // tile):
            for visit in mask.described.band.key_tiles(query_tile, tile, tile):
                rows, keys = (slice(at * tile, (at + 1) * tile) for at in (query_tile, visit.index))
                colours[rows, keys] = _rgb(PARTIAL)
    else:
        tile = 1
    colours[visible] = _rgb(VISIBLE)
    axis.imshow(colours, interpolation="nearest", extent=(0, mask.seq_k, mask.seq_q, 0))
    for at in range(0, mask.seq_k + 1, tile):
        axis.axvline(at, color=GRID, linewidth=1)
    for at in range(0, mask.seq_q + 1, tile):
        axis.axhline(at, color=GRID, linewidth=1)
    ticks = (tile,) if tiled else (4,)
    axis.set_xticks(range(0, mask.seq_k + 1, ticks[0] * (2 if tile == 64 else 1)))
    axis.set_yticks(range(0, mask.seq_q + 1, ticks[0] * (2 if tile == 64 else 1)))
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


def _blocks(axis, x: float, y: float, width: int, height: int, marked: set, title: str) -> None:
    """Draw a matrix of width x height unit blocks at (x, y), some marked."""
    from matplotlib.patches import Rectangle

    for column in range(width):
        for row in range(height):
            colour = ACCENT if (row, column) in marked else SKIPPED
            axis.add_patch(Rectangle((x + column, y + row), 1, 1, facecolor=colour, edgecolor="gray", linewidth=0.8))
    axis.text(x + width / 2, y - 0.25, title, ha="center", va="bottom", fontsize=9)


def draw_tiles(out: Path) -> Path:
    """Draw tutorial_tiles.png: what is in fast memory at one step of the forward, and at one of the backward."""
    figure, axes = plotting.subplots(1, 2, (9, 3.6))
    forward, backward = axes[0]
    _blocks(forward, 0, 2, 1, 4, {(1, 0)}, "Q")
    _blocks(forward, 2, 0, 4, 1, {(0, 2)}, "K, V")
    _blocks(forward, 2, 2, 4, 4, {(1, 2)}, "scores")
    _blocks(forward, 7, 2, 1, 4, {(1, 0)}, "O, m, l")
    forward.annotate("", (6.0, 6.4), (2.0, 6.4), arrowprops={"arrowstyle": "->", "color": INK})
    forward.set_title("forward: keys pass by one tile of queries", fontsize=10)
    _blocks(backward, 0, 2, 1, 4, {(2, 0)}, "Q, dO")
    _blocks(backward, 2, 0, 4, 1, {(0, 1)}, "K, V")
    _blocks(backward, 2, 2, 4, 4, {(2, 1)}, "scores")
    _blocks(backward, 7, 2, 1, 4, {(2, 0)}, "dQ")
    _blocks(backward, 2, 7.2, 4, 1, {(0, 1)}, "dK, dV")
    backward.annotate("", (1.5, 6.0), (1.5, 2.0), arrowprops={"arrowstyle": "->", "color": INK})
    backward.set_title("backward: queries pass by one tile of keys", fontsize=10)
    for axis in (forward, backward):
        axis.set(xlim=(-0.3, 8.3), ylim=(8.4, -0.9), aspect="equal")
        axis.axis("off")
    return plotting.save(figure, out / "tutorial_tiles.png")


# ---------------------------------------------------------------- kernels.md


def draw_kernels_tile(out: Path) -> Path:
    """Draw kernels_tile.png: which tile every pipe of a core works on at one time."""
    rows = {
        "MTE2: load key, value": [("t+3", 0, 4), ("t+4", 4, 4)],
        "MTE1: operands to L0": [("t+2", 0, 2), ("P t", 2, 1.5), ("t+3", 4, 2), ("P t+1", 6, 1.5)],
        "M: products": [("S t+2", 0.3, 1.8), ("O t", 2.3, 1.6), ("S t+3", 4.3, 1.8), ("O t+1", 6.3, 1.6)],
        "V: softmax": [("exp t+1", 0, 2.6), ("S t+2 out", 2.6, 1.4), ("exp t+2", 4, 2.6), ("S t+3 out", 6.6, 1.4)],
        "MTE3: P to L1": [("t", 0, 1.0), ("t+1", 2.6, 1.2), ("t+2", 6.6, 1.2)],
    }
    figure, axes = plotting.subplots(1, 1, (9, 2.9))
    axis = axes[0, 0]
    colours = ["#e8eef7", "#9db7dc", "#eef5ea", "#f7e8e8", "#f2e7c9"]
    for row, (bars, colour) in enumerate(zip(rows.values(), colours)):
        for text, start, length in bars:
            axis.broken_barh([(start, length)], (row - 0.38, 0.76), facecolor=colour, edgecolor="gray")
            axis.text(start + length / 2, row, text, ha="center", va="center", fontsize=8)
    axis.set_yticks(range(len(rows)), rows)
    axis.set(xlim=(0, 8), ylim=(len(rows) - 0.5, -0.5), xticks=[], xlabel="time: two key tiles")
    axis.set_title("S: scores of a tile, P: its probabilities, O: the sum of P V", fontsize=9)
    return plotting.save(figure, out / "kernels_tile.png")


FIGURES: dict[str, Callable[[Path], Path]] = {
    **{f"mask_{name}": lambda out, name=name: draw_mask(name, out) for name in MASKS},  # type: ignore[misc]
    "block_masks": draw_block_masks,
    "tutorial_online_softmax": draw_online_softmax,
    "tutorial_tiles": draw_tiles,
    "kernels_tile": draw_kernels_tile,
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
