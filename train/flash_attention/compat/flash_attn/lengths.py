"""Cumulative lengths of packed sequences as flash_attn takes them. They may end before the last row."""

from __future__ import annotations

import functools

import mindspore as ms
from mindspore import Tensor, ops
from mindspore import dtype as mstype
from mindspore.ops import constexpr

from flash_attention.bridge.constants import numbered
from flash_attention.bridge.tensors import lengths_spec, tensor_spec
from flash_attention.call.names import Names, called
from flash_attention.call.optional import read_slopes
from flash_attention.call.varlen import check_counts, check_lengths, possible_counts, read_lengths
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
            lengths = lengths_spec(name, given)
            rows.append(shape[0])
            constants.append(read_lengths(name, lengths, shape[0], rest=True))
            counts.append(possible_counts(constants[-1], lengths))
        if alibi_slopes is not None:
            heads = tensor_spec("query", q).shape[-2]
            read_slopes("alibi_slopes", tensor_spec("alibi_slopes", alibi_slopes), heads, "batch", set.union(*counts))
        if None not in constants:
            check_counts(*constants)
        return _look(tuple(rows), tuple(constants), ms.get_context("device_target") == "CPU", names)


@functools.lru_cache(maxsize=256)
def _look(rows: tuple, constants: tuple, looks: bool, names: Names) -> NumberCheck:
    def check(*ends):
        given = zip(("cu_seqlens_q", "cu_seqlens_k"), ends, constants, rows)
        check_counts(*(known or check_lengths(name, one.tolist(), most, True) for name, one, known, most in given))

    return NumberCheck(check if looks and None in constants else None, names)
