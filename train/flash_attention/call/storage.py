"""Describe how a call's sequences are stored: packed one behind the other, or in a paged cache."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Varlen:
    """Describe sequences that are packed in the rows of query, key and value.

    Attributes:
        ends_q, ends_k: cumulative lengths with the leading 0, or None if they are data.
        count: number of sequences, UNKNOWN if a graph is compiled for any number. Two tensors of one length leave open
            whether both have the leading 0. The count is then that length; with the 0 there is one sequence less.
    """

    ends_q: tuple | None = None
    ends_k: tuple | None = None
    count: int = 0

    @property
    def constant(self) -> bool:
        """Return True if the lengths are known when a graph is compiled."""
        return self.ends_q is not None and self.ends_k is not None

    def bounds(self) -> list[tuple]:
        """Return (first query, end, first key, end) of every sequence of constant lengths."""
        assert self.ends_q is not None and self.ends_k is not None
        ends = zip(self.ends_q, self.ends_q[1:], self.ends_k, self.ends_k[1:])
        return [tuple(sequence) for sequence in ends]


@dataclass(frozen=True)
class Paged:
    """Describe caches of blocks. A table names the blocks of each sequence's keys and values.

    Attributes:
        block_size: keys in a block.
        blocks: number of blocks in the caches.
        one_query: query and output have no axis for the one query of each sequence.
        max_length: most keys of a sequence. A longer sequence has no further keys, and its queries behind them get NaN.
            Without max_length, a sequence that is longer than its blocks is an error.
        padding: side on which the queries of a sequence have padding, "left" or "right". A number for each sequence
            comes with the lengths and says how many queries are padding. None: there is no padding.
        left_padding: whether such a number comes with the lengths for keys: so many at the start are hidden. Not
            together with `padding`.
    """

    block_size: int
    blocks: int
    one_query: bool = False
    max_length: int | None = None
    padding: str | None = None
    left_padding: bool = False
