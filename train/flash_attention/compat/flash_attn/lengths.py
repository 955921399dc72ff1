"""Cumulative lengths of packed sequences as flash_attn takes them. They may end before the last row."""

from __future__ import annotations

import functools

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops
from mindspore import dtype as mstype
from mindspore.ops import constexpr

from flash_attention.bridge.constants import numbered
from flash_attention.bridge.tensors import tensor_spec
from flash_attention.call.checks import INTEGERS, check_dtype, check_int
from flash_attention.call.inputs import TensorSpec
from flash_attention.call.layout import UNKNOWN
from flash_attention.call.names import Names, called
from flash_attention.call.optional import read_slopes
from flash_attention.call_cells import NumberCheck


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
    """Check cumulative lengths. Return the Cell that looks at the numbers in Tensors."""
    with called(names):
        rows, counts, constants = [], [], []
        named = ("cu_seqlens_q", cu_seqlens_q, "query", q), ("cu_seqlens_k", cu_seqlens_k, "key", k)
        for name, given, tensor_name, tensor in named:
            shape = tensor_spec(tensor_name, tensor).shape
            if len(shape) != 3:
                raise ValueError(f"{tensor_name}: got shape {shape}, allowed is rank 3: (tokens, heads, head_dim)")
            rows.append(shape[0])
            constants.append(_constant(name, given))
            length = len(constants[-1]) if constants[-1] is not None else _length(name, tensor_spec(name, given))
            counts.append({length - 1, length})
        if alibi_slopes is not None:
            heads = tensor_spec("query", q).shape[-2]
            read_slopes("alibi_slopes", tensor_spec("alibi_slopes", alibi_slopes), heads, "batch", set.union(*counts))
        if None not in constants:
            _check_numbers(rows, constants)
        return _look(tuple(rows), tuple(constants), ms.get_context("device_target") == "CPU", names)


def _constant(name: str, given) -> tuple | None:
    """Return checked lengths of a tuple or list, None of a Tensor."""
    if not isinstance(given, (tuple, list)) or (given and isinstance(given[0], tuple)):
        return None
    if not given:
        raise ValueError(f"{name}: got {given!r}, allowed are batch + 1 lengths")
    for number in given:
        check_int(name, number, 0)
    return tuple(map(int, given))


def _length(name: str, ends: TensorSpec) -> int:
    check_dtype(name, ends.dtype, INTEGERS)
    if len(ends.shape) != 1 or ends.shape[0] == 0:
        raise ValueError(f"{name}: got shape {ends.shape}, allowed is (batch + 1,)")
    return ends.shape[0]


@functools.lru_cache(maxsize=256)
def _look(rows: tuple, constants: tuple, looks: bool, names: Names) -> NumberCheck:
    def check(*ends):
        _check_numbers(rows, [given if constant is None else constant for given, constant in zip(ends, constants)])

    return NumberCheck(check if looks and None in constants else None, names)


def _check_numbers(rows, ends) -> None:
    """Raise unless lengths ascend within the rows and sequences of both agree."""
    for name, given, most in zip(("cu_seqlens_q", "cu_seqlens_k"), map(np.asarray, ends), rows):
        if (np.diff(given, prepend=0) < 0).any() or (most != UNKNOWN and given[-1] > most):
            allowed = "the number of rows" if most == UNKNOWN else most
            raise ValueError(
                f"{name}: got {given.tolist()}, allowed are cumulative lengths, which ascend from 0 to {allowed} or "
                "less"
            )
    of_queries, of_keys = (len(given) - (given[0] == 0) for given in ends)
    if of_queries != of_keys:
        raise ValueError(
            f"cu_seqlens_k: got {list(map(int, ends[1]))}, the lengths of {of_keys} sequences, but cu_seqlens_q has "
            f"{of_queries}; they must be equal"
        )
