"""Symbols of shared libraries: the symbols that a plugin wants from other libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .errors import SetupError

# Elf64_Sym, and the value of st_shndx for a symbol that is defined elsewhere.
_SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
_UNDEFINED = 0
_WEAK = 2  # the binding, the upper half of st_info: such a symbol may stay undefined
# In .gnu.version: 0 is a local symbol, 1 a global symbol without a version; larger numbers are indices of versions.
_HIDDEN, _UNVERSIONED = 0x8000, 1


def elftools() -> tuple[Any, Any]:
    """Return the error and the reader of pyelftools. Only a supported installation needs it."""
    try:
        from elftools.common.exceptions import ELFError
        from elftools.elf.elffile import ELFFile
    except ImportError as error:
        raise SetupError(f"pyelftools is missing ({error}): pip install pyelftools") from None
    return ELFError, ELFFile


class Symbols(NamedTuple):
    """Names of a library's dynamic symbols.

    Attributes:
        defined: symbols that the library offers.
        wanted: symbols that it needs in no particular version. Symbols with a version come from the compiler's and the
            system's libraries.
    """

    defined: frozenset[str]
    wanted: frozenset[str]


def read_symbols(path: Path, table: str = ".dynsym") -> Symbols:
    """Return the symbols of a library, or with ``table=".symtab"`` of an object file.

    Raises:
        SetupError: the file cannot be read or has no such table.
    """
    ELFError, ELFFile = elftools()
    try:
        with open(path, "rb") as file:
            elf = ELFFile(file)
            section = elf.get_section_by_name(table)
            if section is None:
                raise SetupError(f"{path} has no table of symbols {table}")
            entries = np.frombuffer(section.data(), _SYMBOL)
            text = elf.get_section(section["sh_link"]).data()
            versions = elf.get_section_by_name(".gnu.version")
            version = np.frombuffer(versions.data(), "<u2") if versions else np.ones(len(entries), "<u2")
    except (OSError, ELFError) as error:
        raise SetupError(f"{path} cannot be read as a library: {error}") from None
    undefined = entries["section"] == _UNDEFINED
    unversioned = (version & ~_HIDDEN) <= _UNVERSIONED if table == ".dynsym" else np.ones(len(entries), bool)

    def names(chosen: np.ndarray) -> frozenset[str]:
        starts = entries["name"][chosen].tolist()
        return frozenset(text[start : text.index(b"\0", start)].decode() for start in starts if start)

    return Symbols(names(~undefined), names(undefined & unversioned & (entries["info"] >> 4 != _WEAK)))


def needed_libraries(path: Path) -> list[str]:
    """Return the names of the libraries that a library loads, in its order."""
    _, ELFFile = elftools()
    with open(path, "rb") as file:
        tags = ELFFile(file).get_section_by_name(".dynamic").iter_tags("DT_NEEDED")
        return [tag.needed for tag in tags]
