"""Describe micro-operations on operands, with their byte-exact footprints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable

from .region import Memory, Region


@dataclass(frozen=True, eq=False)
class Operand:
    """A tensor operand with its run-time address.

    Attributes:
        memory: the memory (on-chip buffer of one core, or one GM tensor) that holds it.
        address: byte address of the first element inside ``memory``.
        start, end: bytes of the whole allocation (this copy of it, under multi-buffering).
        dtype, shape, strides: of the view; strides in elements.
        name: the tensor's name, for messages.
        static: True when TIK could know the address at build time (immediate offset).
    """

    memory: Memory
    address: int
    start: int
    end: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    name: str
    static: bool = True


@dataclass(frozen=True, eq=False)
class Access:
    """Bytes of an operand that a micro-operation reads or writes.

    Attributes:
        operand: the tensor.
        region: the bytes.
        lanes: if a bit mask with gaps chose the bytes, its value; else 0.
        shape: the lanes' address, repeats, bytes from repeat to repeat and from block to block, bytes of an element.
    """

    operand: Operand
    region: Region
    lanes: int = 0
    shape: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0)


@dataclass(frozen=True)
class Transfer:
    """Describe a move between global memory and a core. Cores share the bandwidth that the timing engine charges.

    ``bursts`` x ``burst_bytes`` bytes, ``pitch`` bytes start to start on the GM side.
    """

    direction: str  # "read" | "write" | "atomic"
    bursts: int
    burst_bytes: int
    pitch: int


@dataclass(eq=False)
class MicroOp:
    """One occupation of one pipe.

    Attributes:
        name: instruction name for reports.
        pipe: "S", "V", "M", "MTE1", "MTE2" or "MTE3".
        cycles: occupation of the pipe (ignored if ``transfer`` is given).
        latency: cycles from the end of the occupation until the result can be used by another instruction.
        reads, writes: byte-exact footprints.
        run: performs the numerics. None: nothing to do (flags, barriers).
        undefined: written bytes that hold no meaningful data afterwards (padding of an accumulator tile).
        examined: accesses among ``reads`` whose "defined" bits ``run`` checks.
        run_defined: for pure copies: moves the "defined" bits instead of checking the sources. None: all bytes read
            must be defined, all bytes written become so.
        transfer: set on GM traffic.
        instructions: how many instructions of the chip it stands for.
        accumulate: an ``mmad`` that reads its own destination: ordering inside PIPE_M as in timing.md 3.1.
        barrier: for ``pipe_barrier``: the pipe drained, "ALL" for every pipe; "BLOCKS" for ``block_barrier``.
        flag: for ``set_flag`` and ``wait_flag``: ("set" | "wait", source pipe, destination pipe, event id).
        mask: value of the mask register the instruction needs (PIPE_S writes it when it changes). None: uses no mask.
        macs: multiply-accumulates of valid elements, for the utilisation of the Cube.
        constants: names of the ``soc.timing`` constants that ``cycles`` and ``latency`` rest on, for the report.
        operands: the tensor operands in the order of the call, if the same operation with other byte addresses,
            but the same remainders and the same overlap, takes the same time.
        moved: ``f(addresses) -> (run, run_defined)`` for such addresses; None: only the time is known.
        rescale: sets the scalar operand that ``run`` uses.
    """

    name: str
    pipe: str
    cycles: float
    latency: float
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    run: Callable[[], None] | None
    undefined: tuple[Access, ...] = ()
    examined: tuple[Access, ...] = ()
    run_defined: Callable[[], Any] | None = None
    transfer: Transfer | None = None
    instructions: int = 1
    accumulate: bool = False
    barrier: str | None = None
    flag: tuple[str, str, str, int] | None = None
    mask: tuple[int, int] | None = None
    macs: int = 0
    constants: tuple[str, ...] = ()
    operands: tuple[Operand, ...] = ()
    moved: Callable[[Sequence[int]], tuple[Callable[[], None], Callable[[], None] | None]] | None = None
    rescale: Callable[[float], None] | None = None
