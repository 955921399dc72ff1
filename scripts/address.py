#!/usr/bin/env python
"""Sets the address of the source, which is where reports go: python scripts/address.py URL ("" takes it away).

`train/flash_attention/address.py` holds it. Everything else in the repository that repeats it is listed here; a test
compares. Messages and the metadata of flash_attention read the constant.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONSTANT = "train/flash_attention/address.py"


def current(root: Path = ROOT) -> tuple[str, str]:
    """The address that is set (or ""), and what texts say without one."""
    text = (root / CONSTANT).read_text(encoding="utf-8")
    address, unknown = (re.search(rf'^{name} = "(.*)"$', text, re.MULTILINE) for name in ("ADDRESS", "UNKNOWN"))
    assert address and unknown, CONSTANT
    return address[1], unknown[1]


def in_constant(text: str, address: str) -> str:
    """The module with another constant."""
    return re.sub(r'^ADDRESS = ".*"$', lambda _: f'ADDRESS = "{address}"', text, flags=re.MULTILINE)


def in_project(text: str, address: str) -> str:
    """A pyproject.toml: a table of its own before that of the commands."""
    without = re.sub(r"^\[project\.urls\]\n(?:.+\n)*\n", "", text, flags=re.MULTILINE)
    table = f'[project.urls]\nSource = "{address}"\nReports = "{address}"\n\n' if address else ""
    return without.replace("[project.scripts]\n", f"{table}[project.scripts]\n", 1)


def after(line: str, key: str) -> Callable[[str, str], str]:
    """YAML: the key behind the line that begins so."""

    def change(text: str, address: str) -> str:
        without = re.sub(rf"^{key}: .*\n", "", text, flags=re.MULTILINE)
        added = f"{key}: {address}\n" if address else ""
        return re.sub(rf"^({line}.*\n)", lambda found: found[1] + added, without, count=1, flags=re.MULTILINE)

    return change


def in_page(text: str, address: str) -> str:
    """A page for readers: one expression, or what was set before, in the place of the other."""
    before, unknown = current()
    return text.replace(before or unknown, address or unknown)


PLACES: dict[str, Callable[[str, str], str]] = {
    CONSTANT: in_constant,
    "emulator/pyproject.toml": in_project,
    "emulator/virtual_ascend/pyproject.toml": in_project,
    "CITATION.cff": after("license: ", "repository-code"),
    "mkdocs.yml": after("site_name: ", "repo_url"),
    **dict.fromkeys(
        (
            *("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/ascend.md"),
            *("emulator/README.md", "emulator/virtual_ascend/README.md"),
        ),
        in_page,
    ),
}


def changed(address: str) -> dict[str, str]:
    """Contents of all places, by path, with this address."""
    return {name: change((ROOT / name).read_text(encoding="utf-8"), address) for name, change in PLACES.items()}


def main() -> None:
    if len(sys.argv) != 2 or not re.fullmatch(r"(https?://\S+[^/\s])?", sys.argv[1]):
        sys.exit(f"usage: {sys.argv[0]} https://HOST/OWNER/PROJECT")
    for name, text in changed(sys.argv[1]).items():
        (ROOT / name).write_text(text, encoding="utf-8")
        print(f"written: {name}")


if __name__ == "__main__":
    main()
