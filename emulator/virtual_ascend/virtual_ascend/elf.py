"""The ELF objects of compiled kernels: machine, flags and symbol table as CANN's, our own contents in place of code."""

from __future__ import annotations

import struct
from collections.abc import Sequence

MACHINE, FLAGS = 0x1029, 0x860000  # of CANN's objects, and of those for the first Ascend 910
_HEADER, _SECTION, _SYMBOL = struct.Struct("<16s2HI3QI6H"), struct.Struct("<2I4Q2I2Q"), struct.Struct("<I2BH2Q")
_EXECUTABLE, _CODE, _SYMBOLS, _STRINGS, _GLOBAL_FUNCTION = 2, 1, 2, 3, 0x12


def _strings(names: Sequence[str]) -> tuple[bytes, list[int]]:
    """Return a table of strings, and where each begins."""
    table, places = b"\0", []
    for name in names:
        places.append(len(table))
        table += name.encode() + b"\0"
    return table, places


def write(contents: bytes, functions: Sequence[str], flags: int = FLAGS) -> bytes:
    """Return the object that holds contents as its code."""
    names, places = _strings(functions)
    symbols = _SYMBOL.pack(0, 0, 0, 0, 0, 0)
    symbols += b"".join(_SYMBOL.pack(place, _GLOBAL_FUNCTION, 0, 1, 0, len(contents)) for place in places)
    labels, starts = _strings([".text", ".symtab", ".strtab", ".shstrtab"])
    kinds = (_CODE, 0, 0), (_SYMBOLS, 3, _SYMBOL.size), (_STRINGS, 0, 0), (_STRINGS, 0, 0)
    place, headers = _HEADER.size, [_SECTION.pack(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)]
    parts = contents, symbols, names, labels
    for start, (kind, link, size), part in zip(starts, kinds, parts):
        headers.append(_SECTION.pack(start, kind, 0, 0, place, len(part), link, kind == _SYMBOLS, 1, size))
        place += len(part)
    identity = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    numbers = _HEADER.size, 0, 0, _SECTION.size, len(headers), len(headers) - 1
    header = _HEADER.pack(identity, _EXECUTABLE, MACHINE, 1, 0, 0, place, flags, *numbers)
    return b"".join([header, *parts, *headers])


def functions(contents: bytes) -> list[str]:
    """Return the names that `write` was given."""
    fields = _HEADER.unpack_from(contents)
    _, _, _, _, place, size, *_ = _SECTION.unpack_from(contents, fields[6] + 3 * _SECTION.size)
    return contents[place + 1 : place + size - 1].decode().split("\0")


def code(contents: bytes) -> bytes:
    """Return what `write` was given.

    Raises:
        ValueError: it is no such object.
    """
    fields = _HEADER.unpack_from(contents) if contents[:4] == b"\x7fELF" else None
    if fields is None or fields[2] != MACHINE:
        raise ValueError(f"no kernel: the object begins with {contents[:4]!r}")
    _, _, _, _, place, size, *_ = _SECTION.unpack_from(contents, fields[6] + _SECTION.size)
    return contents[place : place + size]
