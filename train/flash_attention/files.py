"""Files of commands: written as a whole, in places that were tried before, without names of people."""

from __future__ import annotations

import contextlib
import getpass
import os
import platform
import re
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file beside `path` and move it there. If this fails, the old file stays.

    Several processes may write and read the same file.
    """
    data = content.encode() if isinstance(content, str) else content
    if path.exists() and not path.is_file():  # a device such as /dev/stdout, or a folder, which refuses
        path.write_bytes(data)
        return
    target = Path(os.path.realpath(path))
    part = target.with_name(f"{target.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        part.write_bytes(data)
        if target.exists():
            shutil.copymode(target, part)
        os.replace(part, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink()
        if isinstance(error, OSError):
            raise OSError(f"{path} cannot be written: {error.strerror}") from error
        raise


def require_writable(option: str, path: Path, *, folder: bool = True) -> None:
    """Try a place before the work whose results go there: a folder, which is made, or a file."""
    try:
        if folder:
            path.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_dir():
            open(path, "ab").close()
        if folder or not path.exists() or path.is_file():
            tempfile.TemporaryFile(dir=path if folder else path.absolute().parent).close()
        elif path.is_dir():
            raise IsADirectoryError(None, "Is a directory")
    except OSError as error:
        raise OSError(f"{option}: {path} cannot be written: {error.strerror}") from error


def anonymous(value: Any) -> Any:
    """Return a text, or a report of texts, without names of people.

    Home folders, the user's name in paths and the name of the host go.
    """
    if isinstance(value, dict):
        return {key: anonymous(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [anonymous(one) for one in value]
    if not isinstance(value, str):
        return value
    home, user, host = os.path.expanduser("~"), "", platform.node()
    with contextlib.suppress(KeyError, OSError):  # a user without a name
        user = getpass.getuser()
    for pattern, word in (
        (re.escape(home) if home.count("/") and home != "/" else "", "~"),
        (r"/(?:home|Users)/[^/\s'\":]+", "~"),
        (f"(?<=/){re.escape(user)}" if user else "", "USER"),
        (rf"(?<![\w-]){re.escape(host)}" if len(host) > 2 and host != value else "", "HOST"),
    ):
        value = re.sub(rf"{pattern}(?![\w-])", word, value) if pattern else value
    return value
