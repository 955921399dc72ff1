"""A process of the stand-in for CANN's compiler: it imports operators' entries, calls them, and runs what they built.

It finds the emulator, and of flash_attention what entries find, no installed copy. Commands come as JSON lines, answers
go back the same way.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import os
import sys
import traceback

import numpy as np
import tikemu

KERNELS = {}


def soc(version: str) -> None:
    """Chooses the chip, as every process of the compiler does before it imports a tik program."""
    tikemu.install(soc=version)


def path(folder: str) -> None:
    """Adds a folder where entries are."""
    sys.path.append(folder)


def compile(module: str, function: str, inputs: list, outputs: list, attributes: list) -> None:
    """Calls an entry: everything by position, the kernel's name last of it, and a keyword for the mode."""
    entry = getattr(importlib.import_module(module), function)
    KERNELS[attributes[-1]] = entry(*inputs, *outputs, *attributes, impl_mode="high_performance")


def run(name: str, feed: str, results: str) -> None:
    """Runs a kernel in strict mode on the arrays of one file; the results go to another."""
    options = tikemu.Options(strict=True, progress=False)
    with np.load(feed) as arrays:
        np.savez(results, **tikemu.run(KERNELS[name].tik, dict(arrays), timing=False, options=options).outputs)


class NotInstalled(importlib.abc.MetaPathFinder):
    """Hides a flash_attention that is installed beside MindSpore."""

    def find_spec(self, name: str, path=None, target=None):
        if name != "flash_attention":
            return None
        places = [place for place in sys.path if not place.endswith("site-packages")]
        found = importlib.machinery.PathFinder.find_spec(name, places)
        if found is None:
            raise ModuleNotFoundError(name)
        return found


def main() -> None:
    """Answers the compiler's requests, a line of JSON each."""
    sys.meta_path.insert(0, NotInstalled())
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what operators print
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            globals()[name](*arguments)
            answer = None
        except Exception:
            answer = traceback.format_exc()
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
