"""Campaigns of random cases: seeds in chunks, each chunk a test.

`./test.sh -m fuzz` runs all campaigns. A chunk that passed is remembered in
FLASH_ATTENTION_FUZZ_STATE (default ~/.cache/flash-attention/fuzz), together with a digest of the sources. It does not
run again until the sources change, so an interrupted campaign goes on with the next chunk. A failing chunk names every
seed that failed, and the command that runs this seed alone.
"""

from __future__ import annotations

import functools
import hashlib
import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
SOURCES = ("*.py", "*.cpp", "*.h", "*.c")


@dataclass(frozen=True)
class Campaign:
    """A number of random cases.

    Attributes:
        name: of the file that remembers its finished chunks.
        module: what `python -m` runs a single seed of, with the name and the seed as arguments.
        folders: the sources that the cases exercise, relative to the repository.
    """

    name: str
    module: str
    cases: int
    chunk: int
    folders: tuple

    def params(self):
        """Return a decorator for a test. The test's argument `first` is the first seed of a chunk."""
        firsts = range(0, self.cases, self.chunk)

        def decorate(test):
            for mark in (pytest.mark.fuzz, pytest.mark.timeout(7200)):
                test = mark(test)
            return pytest.mark.parametrize("first", firsts)(test)

        return decorate

    def run(self, first: int, run_one: Callable[[int], None]) -> None:
        """Run the seeds from `first` to the end of its chunk.

        Raises:
            AssertionError: naming every seed that failed, with the last line of its error.
        """
        done, entry = self._state(), f"{first} {digest(self.folders)}"
        if done.exists() and entry in done.read_text().splitlines():
            return
        failures = []
        for seed in range(first, min(first + self.chunk, self.cases)):
            try:
                run_one(seed)
            except Exception as error:
                last = traceback.format_exception_only(type(error), error)[-1].strip().splitlines()[0]
                failures.append(f"python -m {self.module} {self.name} {seed}: {last}")
        assert not failures, f"{len(failures)} of {self.chunk} failed\n" + "\n".join(failures)
        with done.open("a") as file:
            file.write(entry + "\n")

    def _state(self) -> Path:
        default = Path.home() / ".cache" / "flash-attention" / "fuzz"
        folder = Path(os.environ.get("FLASH_ATTENTION_FUZZ_STATE", default))
        folder.mkdir(parents=True, exist_ok=True)
        return folder / self.name


@functools.lru_cache(maxsize=8)
def digest(folders: tuple) -> str:
    """Return a digest of all sources in `folders`."""
    total = hashlib.sha256()
    for folder in folders:
        for path in sorted(path for pattern in SOURCES for path in (REPOSITORY / folder).rglob(pattern)):
            total.update(path.read_bytes())
    return total.hexdigest()[:16]
