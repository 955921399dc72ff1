"""Verdicts on mutants, kept between runs, and children that judge them."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

FOLDER = Path.home() / ".cache" / "flash-attention" / "mutation"


class Verdicts:
    """Verdicts by mutant; None for a survivor, whose verdict only counts for the tests that it survived.

    Args:
        name: of the file that keeps them.
    """

    def __init__(self, name: str):
        self.path = FOLDER / f"{name}.json"
        self.known = json.loads(self.path.read_text()) if self.path.exists() else {}

    def has(self, mutant, tests: str) -> bool:
        """Whether there is a verdict; `tests` is a digest of them."""
        return any(key in self.known for key in (_key(mutant), _key(mutant, tests)))

    def of(self, mutant) -> str | None:
        return self.known.get(_key(mutant))

    def add(self, mutant, tests: str, verdict: str | None) -> None:
        self.known[_key(mutant) if verdict else _key(mutant, tests)] = verdict
        FOLDER.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.known))

    def report(self, what: str, verdicts: dict) -> None:
        """Prints the survivors among (description: verdict) and a count."""
        killed = Counter(verdict.split()[0] for verdict in verdicts.values() if verdict)
        for mutant, verdict in verdicts.items():
            if verdict is None:
                print(f"survives: {what} {mutant}")
        total = sum(killed.values())
        print(
            f"{what}: {len(verdicts)} mutants, {total} killed {dict(killed)}, {len(verdicts) - total} survive",
            flush=True,
        )


def _key(*parts) -> str:
    """A short name for a mutant, the same in every run."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:20]


def in_child(run: Callable[[], int], limit: float) -> int | None:
    """Status, as of os.waitpid, of a process that ends with what `run` returns; None when it took over `limit` s."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = run()
        finally:
            os._exit(status)
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def run_pytest(arguments: list[str], *plugins: object) -> int:
    """Exit code of pytest in this process, a child that nobody listens to."""
    # The same examples for every mutant, and no search for a smaller one.
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile("mutation", derandomize=True, database=None, phases=phases)
    hypothesis.settings.load_profile("mutation")
    with open(os.devnull, "w") as silence:
        os.dup2(silence.fileno(), 1)
        os.dup2(silence.fileno(), 2)
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=no"]
    return int(pytest.main([*options, *arguments], plugins=list(plugins)))


def outcome(status: int | None) -> str | None:
    """What a status says of a mutant: it fails, crashes or hangs; None where it does not."""
    if status is None:
        return "hangs"
    if status == 0:
        return None
    return "crashes" if os.WIFSIGNALED(status) else "fails"
