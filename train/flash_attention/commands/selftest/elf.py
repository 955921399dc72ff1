"""Read compiled kernels: ELF objects, whose flags name the chip.

Flags, machine and symbols were read in the objects of `plugin/ascend/custom_ascendc_910` and its neighbours, in the
development wheel of MindSpore 2.6.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

MACHINE = 0x1029
FIRST_GENERATION = 0x860000
#: Chips by the flags of the ELF header.
CHIPS = {FIRST_GENERATION: "Ascend910", 0x8A0000: "Ascend310P", 0x930000: "Ascend910B1 to 910B4, or Ascend910_93"}
OTHERS = {chip for flags, chip in CHIPS.items() if flags != FIRST_GENERATION}
_HEADER, _SECTION, _SYMBOL = struct.Struct("<16s2HI3QI6H"), struct.Struct("<2I4Q2I2Q"), struct.Struct("<I2BH2Q")
_SYMBOLS, _FUNCTION = 2, 2  # types of a section and of a symbol


class Object(NamedTuple):
    """Hold what tells about a kernel.

    Attributes:
        chip: for which CANN compiled it, one of CHIPS, or "unknown" with the machine and the flags.
        functions: names of its functions, in their order.
    """

    chip: str
    functions: tuple[str, ...]


def read(contents: bytes) -> Object:
    """Return the chip and the functions of an object."""
    if contents[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"got an object that begins with {contents[:6]!r}, allowed is ELF of 64 bits, little endian")
    try:
        _, _, machine, _, _, _, sections, flags, _, _, _, _, count, _ = _HEADER.unpack_from(contents)
        headers = [_SECTION.unpack_from(contents, sections + index * _SECTION.size) for index in range(count)]
        functions = []
        for _, kind, _, _, place, size, link, *_ in headers:
            names = headers[link][4] if kind == _SYMBOLS else 0
            for name, information, *_ in _SYMBOL.iter_unpack(contents[place : place + size] if names else b""):
                if information & 15 == _FUNCTION:
                    start = names + name
                    functions.append(contents[start : contents.index(b"\0", start)].decode())
    except (struct.error, IndexError) as error:
        raise ValueError(f"got a damaged object: {error}") from error
    chip = CHIPS.get(flags) if machine == MACHINE else None
    return Object(chip or f"unknown, machine {machine:#x}, flags {flags:#x}", tuple(functions))
