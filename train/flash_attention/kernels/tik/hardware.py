"""The first-generation Ascend 910 as the kernels see it: memories of a core, limits of instructions, buffers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flash_attention.kernels.tik.problem import CAPACITY, KernelProblem, padded

ALLOCATION_UNIT = {"UB": 32, "L1": 512, "L0A": 512, "L0B": 512, "L0C": 1024}  # bytes
BYTES = {"float16": 2, "float32": 4, "int32": 4, "uint8": 1}
LANES, HALF_LANES = 64, 128  # elements of one repeat of a Vector instruction: 32 bits, 16 bits
SIMD_LANES = {"float16": HALF_LANES, "uint16": HALF_LANES, "float32": LANES, "int32": LANES}

MOST_REPEATS = 255  # of a Vector instruction
LARGEST_GAP = 65535  # of data_move, in blocks
BLOCK_HALVES = 16  # float16 elements per 32-byte block
FRACTAL = 256  # elements of a fractal
# The banks of the Unified Buffer come round every 512 bytes. An instruction whose operands stand half a round apart
# meets no conflict; one that works in place takes twice as long. In float32 elements:
HALF_ROUND = 64
LAYER = 65536  # bytes of a layer of the banks: an instruction reads and writes different layers at the same time

WIDENED = 1024  # float16 elements that become float32 at a time, for instructions that take only one dtype

# Its negative, the most negative number, is the logsumexp of a row that sees nothing.
LARGEST_SINGLE = (2 - 2.0**-23) * 2.0**127

CUBE_FLOPS = 8192  # per cycle and core, float16
EVENTS = 4  # event ids per pair of pipes
INSTRUCTION_CACHE = 32768  # bytes


@dataclass(frozen=True)
class Buffer:
    """One on-chip allocation: `copies` tensors of `size` elements."""

    name: str
    memory: str
    dtype: str
    size: int
    copies: int = 1

    @property
    def bytes(self) -> int:
        return self.copies * padded(self.size * BYTES[self.dtype], ALLOCATION_UNIT[self.memory])


def usage(parts: list[Buffer]) -> dict[str, int]:
    """Return bytes used per memory."""
    used = dict.fromkeys(CAPACITY, 0)
    for part in parts:
        used[part.memory] += part.bytes
    return used


def excess(parts: list[Buffer], problem: KernelProblem) -> str:
    """Return the excess over the memories of a core as text, empty when all fits."""
    used = usage(parts)
    return ", ".join(
        f"{memory} {used[memory]} of {size} bytes" for memory, size in problem.capacity.items() if used[memory] > size
    )


def check_chip(get_soc_spec: Callable[[str], int | str], problem: KernelProblem) -> None:
    """Compare the planned memories with a chip, asked as by tbe.common.platform.get_soc_spec.

    Raises:
        ValueError: a memory is smaller than planned.
    """
    for memory, planned in problem.capacity.items():
        there = int(get_soc_spec(f"{memory}_SIZE"))
        if there < planned:
            raise ValueError(f"{memory}: the chip has {there} bytes per core, the kernels are planned for {planned}")
