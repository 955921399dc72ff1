"""HCCL's collectives: a card gives elements in a file, and each other card takes its part.

A file holds a line of JSON, which describes the call, and the elements. The runtime (runtime/collectives.cc) names
the files, and asks to take only when all of them are there. Sums of float16 are taken in float32 and rounded once, in
the order of the cards; HCCL's own order and rounding are not documented.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Callable

import numpy as np

from ..operator_call import OperatorCall
from .errors import KernelError
from .memory import Address, Memory
from .numerics import convert, wide

#: HcclDataType by number.
DTYPES = (
    *("int8", "int16", "int32", "float16", "float32", "int64"),
    *("uint64", "uint8", "uint16", "uint32", "float64"),
)
#: HcclReduceOp by number.
REDUCTIONS: dict[str, Callable[..., Any]] = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


@dataclass
class Call:
    """A collective as one card calls it.

    Attributes:
        kind: HCCL's name of the operation.
        count: elements that a card gives, or gets in ReduceScatter and Receive.
        dtype, reduction: numbers of HCCL's enumerations.
        peer: rank of the root, the sender or the receiver in the group.
        rank: of this card in the group.
        members: of the group, as the whole job counts its cards.
        send_counts, send_offsets, receive_counts, receive_offsets: of HcomAllToAllV, in elements.
        file: the file that this card writes.
        files: the files that it reads.
    """

    kind: str
    count: int
    dtype: int
    reduction: int
    peer: int
    rank: int
    members: list[int]
    send_counts: list[int]
    send_offsets: list[int]
    receive_counts: list[int]
    receive_offsets: list[int]
    file: str
    files: list[str]

    @property
    def type(self) -> np.dtype:
        return np.dtype(DTYPES[self.dtype])

    @property
    def given(self) -> int:
        """Return how many elements this card gives."""
        if self.kind == "HcomAllToAllV":
            return extent(self.send_counts, self.send_offsets)
        if self.kind == "HcomBroadcast" and self.rank != self.peer:
            return 0
        return self.count * (len(self.members) if self.kind == "HcomReduceScatter" else 1)

    @property
    def taken(self) -> int:
        """Return how many elements this card gets."""
        if self.kind == "HcomAllToAllV":
            return extent(self.receive_counts, self.receive_offsets)
        return self.count * (len(self.members) if self.kind == "HcomAllGather" else 1)

    def __str__(self) -> str:
        reduction = tuple(REDUCTIONS)[self.reduction]
        how = f"{reduction}, peer {self.peer}, cards {self.members}"
        return f"{self.kind} of {self.count} {self.type} ({how})"


def as_kernel(call: Call) -> OperatorCall:
    """Return the row of the report."""
    tensors = [
        {"shape": [size], "dtype": DTYPES[call.dtype], "format": "ND", "ori_shape": [size]}
        for size in (call.given, call.taken)
    ]
    return OperatorCall(call.kind, call.kind, call.kind, tensors[:1], tensors[1:], {})


def parse(message: bytes) -> Call:
    """Return the call in a message of the runtime.

    Raises:
        KernelError: a dtype or reduction that there is none of on the first generation.
    """
    call = Call(**json.loads(message))
    if call.dtype >= len(DTYPES) or call.reduction >= len(REDUCTIONS):
        raise KernelError(f"{call.kind}: HCCL's dtype {call.dtype}, reduction {call.reduction} are none of the card")
    return call


def given(memory: Memory, call: Call, address: Address) -> np.ndarray:
    """Return the input of a collective, as it lies on this card."""
    return memory.view(address, call.type, (call.given,), f"{call}, input") if call.given else np.empty(0, call.type)


def taken(memory: Memory, call: Call, address: Address) -> np.ndarray:
    """Return the memory on this card for the result of a collective."""
    return memory.view(address, call.type, (call.taken,), f"{call}, output")


def give(call: Call, elements: np.ndarray) -> None:
    """Write the elements that this card gives.

    Raises:
        KernelError: there is no room for it, or it has another size than the call.
    """
    if elements.size != call.given:
        raise KernelError(f"{call}: got {elements.size} elements, which a card gives, allowed is {call.given}")
    line = json.dumps(asdict(call)).encode() + b"\n"
    unfinished = Path(f"{call.file}.unfinished")
    try:
        unfinished.write_bytes(line + elements.tobytes())
        os.rename(unfinished, call.file)  # the others find it whole or not at all
    except OSError as error:
        size = elements.nbytes
        raise KernelError(
            f"{call}: {size} bytes for the other cards in {unfinished.parent}: {error.strerror}"
        ) from None


def take(call: Call, output: np.ndarray) -> None:
    """Read the elements of the other cards, and write the result.

    Raises:
        KernelError: another card has called something else.
    """
    calls, arrays = zip(*(_read(Path(file), call) for file in call.files))
    if call.kind == "HcomAllToAllV":
        for index, (other, array) in enumerate(zip(calls, arrays)):
            start, size = other.send_offsets[call.rank], other.send_counts[call.rank]
            to = call.receive_offsets[index]
            output[to : to + size] = array[start : start + size]
        return
    output[...] = _result(call, arrays)


def _result(call: Call, arrays: Sequence[np.ndarray]) -> np.ndarray:
    if call.kind == "HcomReceive":
        return arrays[0]
    if call.kind == "HcomBroadcast":
        return arrays[call.peer]
    if call.kind == "HcomAllGather":
        return np.concatenate(arrays)
    if call.kind in ("HcomAllReduce", "HcomReduceScatter"):
        if call.kind == "HcomReduceScatter":
            arrays = [array[call.rank * call.count :][: call.count] for array in arrays]
        reduce = tuple(REDUCTIONS.values())[call.reduction]
        total = wide(arrays[0])
        for array in arrays[1:]:
            total = reduce(total, wide(array))
        return convert(total, call.type)
    raise KernelError(f"the virtual card has no collective {call.kind}")


def _read(file: Path, mine: Call) -> tuple[Call, np.ndarray]:
    """Check a call of another card against this card's, and return its data."""
    line, _, elements = file.read_bytes().partition(b"\n")
    call = Call(**json.loads(line))
    if mine.kind == "HcomReceive":
        fits = call.kind == "HcomSend" and (call.count, call.dtype) == (mine.count, mine.dtype)
    elif mine.kind == "HcomAllToAllV":
        fits = call.kind == mine.kind and call.dtype == mine.dtype and call.members == mine.members
        fits = fits and call.send_counts[mine.rank] == mine.receive_counts[call.rank]
    else:
        same = ("kind", "count", "dtype", "reduction", "peer", "members")
        fits = all(getattr(call, name) == getattr(mine, name) for name in same)
    if not fits:
        raise KernelError(
            f"card {mine.members[mine.rank]} calls {mine}, and card {call.members[call.rank]} at its place {call}"
        )
    return call, np.frombuffer(elements, call.type)


def extent(counts: Sequence[int], offsets: Sequence[int]) -> int:
    """Return the number of elements up to the end of the last part."""
    return max(offset + count for count, offset in zip(counts, offsets))
