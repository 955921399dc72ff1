"""Compile the optional native helper: ``python -m tikemu.build_native``.

The library goes into the user's cache: ``$XDG_CACHE_HOME/tikemu``, by default ``~/.cache/tikemu``.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from . import native

FLAGS = ("-std=c11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-shared", "-w")


def compiler() -> list[str]:
    """Return the C compiler: ``$CC``, else cc, gcc or clang. Raises RuntimeError if there is none."""
    if os.environ.get("CC"):
        return shlex.split(os.environ["CC"])
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    raise RuntimeError("no C compiler found: install gcc or clang, or set CC; tikemu also works without the helper")


def build(folder: Path | None = None) -> Path:
    """Compile the helper, unless it is there and undamaged, and return its path.

    Args:
        folder: where to put it. Default: ``native.library_folder()``, where it is looked for.

    Raises:
        RuntimeError: no compiler, or it failed (the message holds its output).
    """
    folder = native.library_folder() if folder is None else folder
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / native.library_name()  # the name has a digest of the sources
    if target.is_file() and native.intact(target):
        return target
    sources = [str(Path(native.__file__).parent / name) for name in native.SOURCES]
    with tempfile.TemporaryDirectory(dir=folder) as scratch:  # a half-written library must never be visible
        output = Path(scratch) / target.name
        command = [*compiler(), *FLAGS, "-o", str(output), *sources, "-lm"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{shlex.join(command)} failed:\n{done.stderr}")
        output.write_bytes(native.sealed(output.read_bytes()))
        os.replace(output, target)
    return target


if __name__ == "__main__":
    try:
        print(build())
    except RuntimeError as error:
        sys.exit(str(error))
    except OSError as error:
        sys.exit(f"the helper cannot be written: {error}; set XDG_CACHE_HOME to a folder that can")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
