"""An edit of the native kernel: a mistake that its tests should notice."""

from __future__ import annotations

from typing import NamedTuple

BF16 = "avx512_bf16"


class Edit(NamedTuple):
    """A mistake: `old`, which stands once in csrc/`file`, becomes `new`; compiled for the instruction set `isa`."""

    file: str
    old: str
    new: str
    isa: str = "avx2"

    def described(self) -> str:
        return f"{self.file} ({self.isa}): {self.old!r} -> {self.new!r}"
