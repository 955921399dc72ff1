"""Start programs on virtual cards, and read what they print."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np

from emulator.virtual_ascend.tests.card import card_python, ge_python, on_card, said
from tests.train.flash_attention.st.support.wheel_tools import ROOT

FOLDER = Path(__file__).parent


def release_python(release: str) -> Path:
    """Return a Python with MindSpore 2.0.0, or with a release that goes through GE."""
    return card_python() if release == "2.0.0" else ge_python(release)


def card_run(
    release: str, folder: Path, program: str | Path, *words: object, cards: int = 1, options: tuple = (), **variables
) -> subprocess.CompletedProcess:
    """Run a program on virtual cards of a MindSpore. A name alone is a file of this folder."""
    options = (*options, "--cards", cards) if cards > 1 else options
    command = release_python(release), FOLDER / program, *words
    variables = {"minutes": 28, "EXAMPLES": ROOT / "examples", **variables}
    return on_card(*command, cwd=folder, options=options, packages=(ROOT / "train", ROOT), **variables)


def words(done: subprocess.CompletedProcess) -> list[list[str]]:
    """Return the words of each line."""
    return [line.split() for line in said(done).splitlines()]


def verdicts(done: subprocess.CompletedProcess) -> dict[str, str]:
    """Return verdicts of checks by name. All of them are printed if one is not right."""
    printed = said(done)
    found = {name: verdict for name, verdict, _ in (line.split("\t") for line in printed.splitlines() if line)}
    assert set(found.values()) == {"right"}, f"{printed}\n{done.stderr[-6000:]}"
    return found


def verdicts_by_card(done: subprocess.CompletedProcess) -> dict[tuple[int, str], str]:
    """Return verdicts and details by card and name."""
    lines = [line.split("\t") for line in said(done).splitlines()]
    return {(int(card), name): " ".join(filter(None, verdict)) for card, name, *verdict in lines}


def losses_by_card(done: subprocess.CompletedProcess, cards: int) -> np.ndarray:
    """Return the losses, (cards, steps), from lines of a card and a loss."""
    found: list[list[float]] = [[] for _ in range(cards)]
    for line in re.findall(r"^\d [0-9.]+$", said(done), re.MULTILINE):  # beside lines of MindSpore
        card, loss = line.split()
        found[int(card)].append(float(loss))
    return np.array(found)


def steps(printed: str) -> list[tuple[str, float]]:
    """Return step and loss of each line that an example prints."""
    return [(step, float(loss)) for step, loss in re.findall(r"^step (\d+) loss (\S+)$", printed, re.MULTILINE)]
