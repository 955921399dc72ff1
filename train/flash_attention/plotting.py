"""matplotlib, which is not always installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def require() -> None:
    """Check that plots can be drawn, before anything is measured for them."""
    if importlib.util.find_spec("matplotlib") is None:
        raise RuntimeError("plots need matplotlib, which is not installed: pip install matplotlib")


def subplots(rows: int, columns: int, size: tuple[float, float], **options):
    """Return (figure, axes) for a file; axes is always an array of (rows, columns). Arguments as of
    `pyplot.subplots`.
    """
    require()
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(rows, columns, figsize=size, squeeze=False, **options)


def save(figure, path: Path) -> Path:
    """Write a figure as PNG and close it; returns the path."""
    from matplotlib import pyplot
    from PIL import Image  # matplotlib needs it too

    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
    # Lines and flat areas have few colours: with a palette the file is a third as large.
    with Image.open(path) as image:
        few = image.convert("RGB").quantize(255, dither=Image.Dither.NONE)
    few.save(path, optimize=True)
    return path
