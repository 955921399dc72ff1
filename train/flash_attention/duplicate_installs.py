"""Other packages called flash_attention on Python's path: the first one hides the others.

The package index has had another distribution `flash-attention` with this import path (1.0.0, whose documents call it
23.12.11). A copy of a wheel also often lies beside a checkout.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from pathlib import Path

PACKAGE = "flash_attention"
DISTRIBUTION = "flash-attention"
_HERE = Path(__file__).resolve().parent
_VERSION = re.compile(r"^__version__\s*=\s*[\"']([^\"']+)[\"']", re.MULTILINE)
_FIELD = re.compile(r"^(Name|Version):\s*(\S+)", re.MULTILINE)


def version_of(package: Path) -> str | None:
    """Return `__version__` from the files of a package, without running it. Return None if they do not show it."""
    for name in ("__init__.py", "version.py"):
        match = _VERSION.search(_text(package / name))
        if match:
            return match.group(1)
    return None


def duplicate_installs(version: str) -> list[str]:
    """Return folders and installed distributions on the path that also provide the package.

    Args:
        version: the version of this copy. A distribution of our name and this version is this copy's own.

    Returns:
        One line each, such as "version 1.0.0 in /opt/site-packages/flash_attention".
    """
    found = []
    for entry in dict.fromkeys(Path(entry or os.curdir).resolve() for entry in sys.path):
        if not os.path.isdir(entry):
            continue
        folder = entry / PACKAGE
        if os.path.isfile(folder / "__init__.py") and folder.resolve() != _HERE:
            found.append(f"version {version_of(folder) or 'unknown'} in {folder}")
        for metadata in [*entry.glob("*.dist-info"), *entry.glob("*.egg-info")]:
            if _provides_package(metadata):
                name, its_version = _name_and_version(metadata)
                if (re.sub(r"[-_.]+", "-", name).lower(), its_version) != (DISTRIBUTION, version):
                    found.append(f"distribution {name} {its_version} in {entry}")
    return found


def warn_of_duplicate_installs(version: str) -> None:
    """Warn if the path has another flash_attention of another version than this one."""
    strangers = [line for line in duplicate_installs(version) if not line.startswith(f"version {version} ")]
    if strangers:
        warnings.warn(
            f"there is more than one flash_attention on the path; imported is version {version} in {_HERE}. "
            f"Remove the others, or the order of sys.path decides which one runs: {'; '.join(strangers)}",
            RuntimeWarning,
            stacklevel=2,
        )


def _provides_package(metadata: Path) -> bool:
    """Return True if the distribution installs a top-level package of our name."""
    names = _text(metadata / "top_level.txt")
    if names:
        return PACKAGE in names.split()
    return any(f"{PACKAGE}/__init__.py" in _text(metadata / record) for record in ("RECORD", "SOURCES.txt"))


def _name_and_version(metadata: Path) -> tuple[str, str]:
    """Name and version of a distribution, as its metadata has them."""
    text = _text(metadata / "METADATA") or _text(metadata / "PKG-INFO")
    fields = dict(reversed(_FIELD.findall(text)))
    return fields.get("Name", metadata.stem), fields.get("Version", "unknown")


def _text(path: Path) -> str:
    """Return a file's contents, or nothing."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
