"""Describe calls of packed sequences: one behind the other in the rows of one tensor, each attending to itself."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import replace
from numbers import Integral
from typing import Any

from flash_attention.call.call import Call
from flash_attention.call.checks import INTEGERS, check_dtype, check_range
from flash_attention.call.inputs import TensorSpec, fits
from flash_attention.call.layout import UNKNOWN
from flash_attention.call.optional import PACKED_ITEMS
from flash_attention.call.storage import Varlen

_RANKS = {"prefix": 1, "alibi_slopes": 2}  # with a number, or a row, for each sequence


def varlen_call(query: TensorSpec, key: TensorSpec, value: TensorSpec, lengths_q, lengths_k, **others: Any) -> Call:
    """Describe a call of `flash_attention_varlen`.

    Args:
        query: (tokens, heads, head_dim), or (tokens, heads * head_dim) with head_dim.
        key: likewise.
        value: likewise.
        lengths_q: cumulative lengths of the queries: integers, or the TensorSpec of a tensor.
        lengths_k: likewise of the keys.
        **others: arguments of `Call.from_inputs`. Prefix and slopes belong to sequences instead of batch items.
    """
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if len(tensor.shape) not in (2, 3) or len(tensor.shape) != len(query.shape):
            raise ValueError(
                f"{name}: got shape {tensor.shape}, allowed are (tokens, heads, head_dim) and, with head_dim=, "
                "(tokens, heads * head_dim), the same of both for query, key and value"
            )
    batched = (TensorSpec((1, *tensor.shape), tensor.dtype) for tensor in (query, key, value))
    layout = "BSND" if len(query.shape) == 3 else "BSH"
    ends_q = read_lengths("cu_seqlens_q", lengths_q, query.shape[0])
    ends_k = read_lengths("cu_seqlens_k", lengths_k, key.shape[0])
    if ends_q is not None and ends_k is not None:
        check_counts(ends_q, ends_k)
    both = possible_counts(ends_q, lengths_q), possible_counts(ends_k, lengths_k)
    counts = {UNKNOWN} if {UNKNOWN} in both else set.intersection(*both) or {0}
    slopes, prefix = others.get("alibi_slopes"), others.get("prefix")
    if slopes is not None and len(slopes.shape) == 2:
        counts = {slopes.shape[0]} & counts or counts
    rows = Call.from_inputs(*batched, input_layout=layout, items=(PACKED_ITEMS, counts), **others)
    if prefix is not None and counts != {UNKNOWN}:
        counts = {prefix.shape[0]}
    return replace(rows, storage=Varlen(ends_q, ends_k, max(counts)))


def check_numbers(call: Call, lengths_q, lengths_k, prefix) -> None:
    """Check the data of a call of packed sequences, in arrays. None stands for an argument that is no data."""
    import numpy as np

    ends_q = call.varlen.ends_q or check_lengths("cu_seqlens_q", lengths_q.tolist(), call.seq_q)
    ends_k = call.varlen.ends_k or check_lengths("cu_seqlens_k", lengths_k.tolist(), call.seq_k)
    check_counts(ends_q, ends_k)
    sequences, slopes = len(ends_q) - 1, call.slopes_shape or ()
    for name, shape in (("prefix", np.shape(prefix)), ("alibi_slopes", slopes)):
        if len(shape) == _RANKS[name] and shape[0] != sequences:
            raise ValueError(f"{name}: got shape {shape}, but cu_seqlens_q has {sequences} sequences")
    if prefix is not None:
        check_range("prefix", prefix, np.diff(ends_k))


def without_sequences(call: Call) -> Call:
    """Return the rows as a dense call. Prefix and dropout, which count by sequence, are left out."""
    return replace(call, storage=None, prefix=False, training=False)


def possible_counts(ends: tuple | None, lengths) -> set[int]:
    """Return the possible numbers of sequences: a tensor may have the leading 0 or not."""
    if ends is not None:
        return {len(ends) - 1}
    return {UNKNOWN} if lengths.shape[0] == UNKNOWN else {max(0, lengths.shape[0] - 1), lengths.shape[0]}


def read_lengths(name: str, lengths, total: int, rest: bool = False) -> tuple | None:
    """Return checked cumulative lengths as `check_lengths` does, and None for the TensorSpec of a Tensor."""
    if not isinstance(lengths, TensorSpec):
        return check_lengths(name, lengths, total, rest)
    check_dtype(name, lengths.dtype, INTEGERS)
    if len(lengths.shape) != 1 or (lengths.shape[0] == 0 and (rest or total != 0)):
        raise ValueError(f"{name}: got shape {lengths.shape}, allowed is (sequences,) or (sequences + 1,)")
    return None


def check_counts(ends_q: Sized, ends_k: Sized) -> None:
    """Compare the numbers of sequences of cumulative lengths with the leading 0."""
    if len(ends_q) != len(ends_k):
        raise ValueError(
            f"cu_seqlens_k: got the lengths of {len(ends_k) - 1} sequences, but cu_seqlens_q has "
            f"{len(ends_q) - 1}; they must be equal (an empty first sequence needs the leading 0)"
        )


def check_lengths(name: str, lengths, total: int, rest: bool = False) -> tuple:
    """Check cumulative lengths; return them with the leading 0.

    Args:
        name: of the argument.
        lengths: a tuple or list.
        total: rows of the tensor.
        rest: rows may follow the last sequence; there is a length then.

    Raises:
        TypeError, ValueError: they are not integers that ascend from 0 to `total`, or to less with `rest`.
    """
    if not isinstance(lengths, (tuple, list)) or any(
        isinstance(end, bool) or not isinstance(end, Integral) for end in lengths
    ):
        raise TypeError(f"{name}: got {lengths!r}, allowed is a tuple or list of integers, or an int32 or int64 Tensor")
    ends = [0, *map(int, lengths[1:] if lengths and lengths[0] == 0 else lengths)]
    reaches = bool(lengths) and (total == UNKNOWN or ends[-1] <= total) if rest else fits(ends[-1], total)
    if any(end < before for before, end in zip(ends, ends[1:])) or not reaches:
        raise ValueError(
            f"{name}: got {tuple(lengths)}, allowed are cumulative lengths, which ascend from 0 to the number of rows"
            f"{'' if total == UNKNOWN else f', here {total}'}{', or to less' if rest else ''}"
        )
    return tuple(ends)
