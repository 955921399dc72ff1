"""Folders of one run, each locked as long as the run lasts.

A run cannot remove its folder if it was killed, or if the program has taken the place of this process. Then the next
run removes the folder.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX, _LOCK = "virtual_ascend_", ".run"


def make(place: Path) -> Path:
    """Return a new folder there, which belongs to this process and what it becomes."""
    for folder in place.glob(f"{_PREFIX}*"):
        _remove_if_left(folder)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
    unlocked = folder / f"{_LOCK}-new"
    descriptor = os.open(unlocked, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    unlocked.rename(folder / _LOCK)  # under its name it is locked from the beginning
    os.set_inheritable(descriptor, True)
    return folder


def remove(folder: Path) -> None:
    """Remove the folder at the end of a run; what cannot be removed stays."""
    shutil.rmtree(folder, ignore_errors=True)


def _remove_if_left(folder: Path) -> None:
    try:
        descriptor = os.open(folder / _LOCK, os.O_RDWR)
    except OSError:  # another user's, or none of ours
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove(folder)
    except BlockingIOError:
        pass
    finally:
        os.close(descriptor)
