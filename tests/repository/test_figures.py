"""Test that each picture has a command and a page, and shows the layer's masks."""

from __future__ import annotations

import re
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from flash_attention import FlashAttention
from mindspore import Tensor

from docs import figures

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs/images"
#: Drawn by commands that measure for minutes; a page names the command beside the picture.
MEASURED = {"beyond.png": "examples/beyond_composed.py", "overview.png": "flash-attention bench"}
LARGEST = 100_000  # bytes
STRIP = 320  # keys of one call: its value is a part of the identity matrix


@pytest.mark.parametrize("name", figures.FIGURES)
def test_a_picture_is_drawn(name: str, tmp_path: Path) -> None:
    path = figures.FIGURES[name](tmp_path)
    assert path == tmp_path / f"{name}.png"
    assert path.read_bytes().startswith(b"\x89PNG")


def test_every_picture_has_a_command_a_page_and_a_size() -> None:
    there = {path.name for path in IMAGES.iterdir()}
    assert there == {f"{name}.png" for name in figures.FIGURES} | set(MEASURED)
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))]
    shown = {name for text in pages for name in re.findall(r"!\[[^]]+\]\((?:docs/)?images/([\w.]+)\)", text)}
    assert shown == there
    for name, command in MEASURED.items():
        assert any(name in text and command in text for text in pages), f"{name}: no page says {command}"
    assert {path.name: size for path in IMAGES.iterdir() if (size := path.stat().st_size) > LARGEST} == {}


@pytest.mark.parametrize("name", figures.MASKS)
def test_the_call_stands_below_the_picture(name: str) -> None:
    _, _, below = (ROOT / "docs/masks.md").read_text(encoding="utf-8").partition(f"images/mask_{name}.png")
    assert figures.MASKS[name].call in below.partition("```python\n")[2].partition("```")[0]


def seen(mask, first: int) -> np.ndarray:
    """Return which STRIP keys from `first` each query sees in the layer.

    The output is the probabilities, because value is a part of the identity matrix.
    """
    random = np.random.default_rng(0)
    query, key = (random.standard_normal((1, 1, length, 64)) for length in (mask.seq_q, mask.seq_k))
    identity = np.eye(mask.seq_k)[None, None, :, first : first + STRIP]
    layer = FlashAttention(64, **mask.arguments, value_head_dim=identity.shape[-1])
    inputs = {name: Tensor(array) for name, array in mask.inputs.items()}
    return layer(*(Tensor(array, ms.float32) for array in (query, key, identity)), **inputs).asnumpy()[0, 0] > 0


@pytest.mark.parametrize("name", figures.MASKS)
def test_the_layer_shows_what_the_picture_shows(name: str) -> None:
    mask = figures.MASKS[name]
    strips = [seen(mask, first) for first in range(0, mask.seq_k, STRIP)]
    np.testing.assert_array_equal(np.concatenate(strips, axis=1), mask.visible())
