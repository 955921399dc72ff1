"""Share functions between the programs on the virtual card."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable

import mindspore as ms


def on_the_card(mode: str) -> None:
    """Set the device and the execution mode, "graph" or "pynative"."""
    ms.set_context(mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE, device_target="Ascend")


def report(names: Iterable[str], check: Callable[[str], str | None], *card: int) -> None:
    """Print name, verdict and detail of each check, behind the card if it is given.

    Verdicts are right, WRONG and FAILED. Tabulators separate the words.
    A check raises AssertionError if a result is wrong; the detail is what it returns.
    """
    for name in names:
        try:
            verdict, detail = "right", check(name) or ""
        except AssertionError as error:
            verdict, detail = "WRONG", str(error)
        except Exception as error:
            traceback.print_exc()
            verdict, detail = "FAILED", f"{type(error).__name__}: {error}"
        print(*card, name, verdict, " ".join(detail.split()), sep="\t", flush=True)
