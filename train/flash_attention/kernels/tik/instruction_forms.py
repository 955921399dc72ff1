"""Switch forms that CANN's documents allow and hardly any public program uses.

Shifted operands have a precedent: `fused_abs_max1_impl.py`, an operator of MindSpore's second-order optimiser. Its
maximum of float32 numbers reads its own destination eight repeats further on; here it is one repeat. For the others no
precedent was found.

Each form has a switch, off if the usual form costs less than 1 % more on the modelled core.
`benchmarks.tik_kernels --forms` prints what each form costs, and `flash-attention selftest` tries each.
FLASH_ATTENTION_FORMS sets the switches by name: "shifted_operands=0,tensor_move=1". An operator keeps the forms of the
process that made it, in its attribute `problem`, wherever it is compiled.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace


@dataclass(frozen=True)
class InstructionForms:
    """The doubtful forms that the kernels use.

    Attributes:
        shifted_operands: vector instructions with two sources, the first of which overlaps the destination, half a
            round of the banks further on. If off, they work in place, which meets bank conflicts.
        mixed_axpy: vec_axpy from float16 to float32. If off, a conversion, then float32 throughout.
        tensor_move: tensor_mov out of parts of L0C. If off, data_move, as in operators that MindSpore ships.
        write_absent: the first core writes 32 bytes to every output that the call lacks. If off, nobody writes to it.
    """

    shifted_operands: bool = True
    mixed_axpy: bool = True
    tensor_move: bool = False
    write_absent: bool = True

    def to_text(self) -> str:
        """Return all forms as FLASH_ATTENTION_FORMS takes them."""
        return ",".join(f"{name}={int(on)}" for name, on in asdict(self).items())

    @staticmethod
    def from_text(text: str) -> InstructionForms:
        """Return the forms with those changed that `text` names: "name=0,name=1".

        Raises:
            ValueError: the text is not of this kind.
        """
        changes = {}
        for part in filter(None, text.split(",")):
            name, _, value = part.partition("=")
            if name not in asdict(InstructionForms()) or value not in ("0", "1"):
                names = ", ".join(f"{name}=0 or =1" for name in asdict(InstructionForms()))
                raise ValueError(f"FLASH_ATTENTION_FORMS: got {part!r}, allowed are {names}")
            changes[name] = value == "1"
        return replace(InstructionForms(), **changes)


_chosen: list[InstructionForms] = []


def current() -> InstructionForms:
    """Return the forms that kernels are recorded with."""
    return _chosen[-1] if _chosen else InstructionForms.from_text(os.environ.get("FLASH_ATTENTION_FORMS", ""))


@contextmanager
def using(**changes: bool) -> Iterator[InstructionForms]:
    """Let kernels that are recorded inside use the current forms with these changes."""
    _chosen.append(replace(current(), **changes))
    try:
        yield _chosen[-1]
    finally:
        _chosen.pop()
