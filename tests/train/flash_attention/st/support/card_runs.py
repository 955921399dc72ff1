"""Start the programs card_*.py that check something on the virtual card."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tests.train.flash_attention.st.support.wheel_tools import ROOT
from tests.virtual_ascend.card import on_card, said

FOLDER = Path(__file__).parent


def verdicts(
    python: Path, folder: Path, program: str, mode: str, *names: str, minutes: float = 5, **variables: object
) -> dict[str, str]:
    """Run a program's checks on the card and return verdicts by name. All of them are printed if one is not right."""
    packages = ROOT / "train", ROOT
    done = on_card(python, FOLDER / program, mode, *names, cwd=folder, packages=packages, minutes=minutes, **variables)
    printed = said(done)
    found = {name: verdict for name, verdict, _ in (line.split("\t") for line in printed.splitlines())}
    assert set(found.values()) == {"right"}, f"{printed}\n{done.stderr[-6000:]}"
    return found


def losses_by_card(lines: Iterable[str], cards: int) -> np.ndarray:
    """Return the losses, (cards, steps), from lines of a card and a loss."""
    found: list[list[float]] = [[] for _ in range(cards)]
    for line in lines:
        card, loss = line.split()
        found[int(card)].append(float(loss))
    return np.array(found)
