"""Cumulative lengths of packed sequences in flash_attn's form. They may end before the last row."""

from __future__ import annotations

import functools

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops
from mindspore import dtype as mstype
from mindspore.ops import constexpr

from flash_attention.bridge.constants import numbered
from flash_attention.bridge.tensors import NumberCheck, tensor_spec
from flash_attention.call.checks import INTEGERS, check_dtype, check_int
from flash_attention.call.layout import UNKNOWN
from flash_attention.call.names import Names, called
from flash_attention.call.optional import read_slopes


def with_rest(ends, rows, of_queries):
    """Add two more sequences to cumulative lengths, up to all rows."""
    if not isinstance(ends, Tensor):
        return tuple(ends) + ((rows, rows) if of_queries else (ends[-1], rows))
    ends, last = ops.cast(ends, mstype.int32), numbered(1) + rows
    return ops.concat((ends, last if of_queries else ends[-1:], last), 0)


def tensor_or_none(ends):
    """Return the lengths if they are a Tensor."""
    return ends if isinstance(ends, Tensor) else None


@constexpr(reuse_result=False)
def check_ends(q, k, cu_seqlens_q, cu_seqlens_k, alibi_slopes, names):
    """Check cumulative lengths, and return the Cell that looks at the numbers in Tensors."""
    with called(names):
        counts, rows = set(), []
        named = ("cu_seqlens_q", cu_seqlens_q, "query", q), ("cu_seqlens_k", cu_seqlens_k, "key", k)
        for name, given, tensor_name, tensor in named:
            shape = tensor_spec(tensor_name, tensor).shape
            if len(shape) != 3:
                raise ValueError(f"{tensor_name}: got shape {shape}, allowed is rank 3: (tokens, heads, head_dim)")
            rows.append(shape[0])
            if isinstance(given, (tuple, list)) and not (given and isinstance(given[0], tuple)):
                for number in given:
                    check_int(name, number, 0)
                _check_numbers(name, np.array(given, np.int64), rows[-1])
                counts |= {len(given) - 1, len(given)}
            else:
                ends = tensor_spec(name, given)
                check_dtype(name, ends.dtype, INTEGERS)
                if len(ends.shape) != 1 or ends.shape[0] == 0:
                    raise ValueError(f"{name}: got shape {ends.shape}, allowed is (batch + 1,)")
                counts |= {ends.shape[0] - 1, ends.shape[0]}
        if alibi_slopes is not None:
            heads = tensor_spec("query", q).shape[-2]
            read_slopes("alibi_slopes", tensor_spec("alibi_slopes", alibi_slopes), heads, "batch", counts)
        return _look(*rows, ms.get_context("device_target") == "CPU", names)


@functools.lru_cache(maxsize=256)
def _look(rows_q: int, rows_k: int, looks: bool, names: Names) -> NumberCheck:
    def check(ends_q, ends_k):
        for name, ends, rows in (("cu_seqlens_q", ends_q, rows_q), ("cu_seqlens_k", ends_k, rows_k)):
            if ends is not None:
                _check_numbers(name, ends, rows)

    return NumberCheck(check if looks else None, names)


def _check_numbers(name: str, ends: np.ndarray, rows: int) -> None:
    if (np.diff(ends, prepend=0) < 0).any() or (rows != UNKNOWN and ends.max(initial=0) > rows):
        most = "the number of rows" if rows == UNKNOWN else rows
        raise ValueError(
            f"{name}: got {ends.tolist()}, allowed are cumulative lengths, which ascend from 0 to {most} or less"
        )
