"""Split the tokens of a sequence over processes. It takes integers and slices only, and works on NumPy arrays and on
Tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flash_attention.call.checks import check_int, check_name

ORDERS = ("zigzag", "contiguous")


@dataclass(frozen=True)
class SequenceSplit:
    """A sequence split over `world` processes.

    Args:
        world: number of processes.
        order: "zigzag": the sequence is cut into 2 * world chunks, and process r holds chunks r and 2 * world - 1 - r.
            All then have the same work under a causal mask. "contiguous": process r holds the r-th of `world` chunks,
            which suits windows much shorter than a chunk.

    Raises:
        TypeError, ValueError: an argument is not allowed.
    """

    world: int
    order: str = "zigzag"

    def __post_init__(self) -> None:
        check_int("world", self.world, 1)
        check_name("order", self.order, ORDERS)

    @property
    def chunks_per_process(self) -> int:
        """Return 1, or 2 in zigzag order."""
        return 2 if self.order == "zigzag" else 1

    def chunks(self, rank: int) -> tuple[int, ...]:
        """Return the indices of a process's chunks, in the order it holds them."""
        check_int("rank", rank, 0, self.world - 1)
        return (rank, 2 * self.world - 1 - rank) if self.order == "zigzag" else (rank,)

    def chunk_length(self, seq: int) -> int:
        """Return the length of a chunk of a sequence of length `seq`.

        Raises:
            ValueError: the sequence has no equal chunks; with the allowed lengths.
        """
        check_int("seq", seq, 1)
        count = self.chunks_per_process * self.world
        if seq % count:
            nearest = [near for near in (seq // count * count, (seq // count + 1) * count) if near]
            raise ValueError(
                f"seq: got {seq} for {self.world} processes in {self.order} order, allowed are multiples of {count} "
                f"(the nearest: {', '.join(map(str, nearest))}); pad the sequence"
            )
        return seq // count

    def positions(self, rank: int, seq: int) -> list[int]:
        """Return the positions of a process's tokens in the whole sequence: for position embeddings and targets."""
        length = self.chunk_length(seq)
        return [chunk * length + token for chunk in self.chunks(rank) for token in range(length)]

    def split(self, whole: Any, rank: int, axis: int) -> Any:
        """Return a process's part: of a NumPy array or Tensor whose `axis` is the sequence."""
        length = self.chunk_length(whole.shape[axis])
        parts = [_take(whole, axis, chunk * length, (chunk + 1) * length) for chunk in self.chunks(rank)]
        return _concatenate(parts, axis)

    def join(self, parts: Sequence, axis: int) -> Any:
        """Return the whole from the parts of all processes, in the order of ranks: the inverse of `split`."""
        if len(parts) != self.world:
            raise ValueError(f"parts: got {len(parts)}, allowed is one per process, {self.world}")
        chunks = {}
        for rank, part in enumerate(parts):
            held = self.chunks(rank)
            length = part.shape[axis] // len(held)
            for place, chunk in enumerate(held):
                chunks[chunk] = _take(part, axis, place * length, (place + 1) * length)
        return _concatenate([chunks[chunk] for chunk in sorted(chunks)], axis)


def _take(array: Any, axis: int, start: int, stop: int) -> Any:
    index = [slice(None)] * len(array.shape)
    index[axis] = slice(start, stop)
    return array[tuple(index)]


def _concatenate(parts: list, axis: int) -> Any:
    if len(parts) == 1:
        return parts[0]
    if hasattr(parts[0], "asnumpy"):
        from mindspore import ops

        return ops.concat(parts, axis)
    import numpy as np

    return np.concatenate(parts, axis)
