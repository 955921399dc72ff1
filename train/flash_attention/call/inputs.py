"""Read the shapes and dtypes of a call's tensors: query, key, value, and the inputs of `optional`.

Shapes come as tuples, dtypes as strings, so that nothing here needs MindSpore. In a graph that is compiled for dynamic
shapes, batch, seq_q and seq_k may be UNKNOWN; an unknown size fits any other.
"""

from __future__ import annotations

from typing import NamedTuple

from flash_attention.call.checks import check_dtype, check_int, check_name
from flash_attention.call.layout import CALL_LAYOUTS, UNKNOWN, check_batch

DTYPES = ("float16", "bfloat16", "float32")
MASK_DTYPES = ("bool", "uint8", *DTYPES)
# The largest head_dim of query and key, and of value. The latent vectors of multi-head latent attention are 512 wide,
# and its keys 64 more.
MAX_HEAD_DIM = 576
MAX_VALUE_DIM = 512


class TensorSpec(NamedTuple):
    """Shape and dtype name of one input."""

    shape: tuple
    dtype: str


class Sizes(NamedTuple):
    """Sizes of a call, whatever its layout."""

    batch: int
    heads: int
    kv_heads: int
    seq_q: int
    seq_k: int
    head_dim: int
    value_dim: int

    @property
    def scores(self) -> tuple:
        """Return the shape of the scores: (batch, heads, seq_q, seq_k)."""
        return self.batch, self.heads, self.seq_q, self.seq_k


def read_tensors(
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    layout: str,
    head_dim: int | None,
    value_head_dim: int | None = None,
    batch: int | None = None,
) -> Sizes:
    """Return the sizes of a call's three tensors. Raise if they do not fit each other, the layout or the widths.

    If value_head_dim is None, it is free in layouts that show it, else head_dim. Layout TH does not show the batch, so
    `batch` gives it.
    """
    check_name("input_layout", layout, CALL_LAYOUTS)
    check_batch(batch, layout)
    named = {"query": query, "key": key, "value": value}
    for name, spec in named.items():
        check_dtype(name, spec.dtype, DTYPES)
        if spec.dtype != query.dtype:
            raise TypeError(f"{name}: got dtype {spec.dtype}, but query is {query.dtype}; they must be equal")
    if head_dim is not None:
        check_int("head_dim", head_dim, 1, MAX_HEAD_DIM)
    if value_head_dim is not None:
        check_int("value_head_dim", value_head_dim, 1, MAX_VALUE_DIM)
    elif CALL_LAYOUTS[layout].merged:
        value_head_dim = head_dim
    read, width = CALL_LAYOUTS[layout].read, ("head_dim", head_dim, MAX_HEAD_DIM)
    found = read("query", query.shape, batch, *width)
    key_sizes = read("key", key.shape, batch, *width)
    value_sizes = read("value", value.shape, batch, "value_head_dim", value_head_dim, MAX_VALUE_DIM)
    batch, heads, seq_q, dim = found
    if not fits(key_sizes[0], batch):
        raise ValueError(f"key: got batch {key_sizes[0]}, but query has batch {batch}; they must be equal")
    if key_sizes[3] != dim:
        raise ValueError(f"key: got head_dim {key_sizes[3]}, but query has head_dim {dim}; they must be equal")
    if not all(map(fits, value_sizes[:3], key_sizes[:3])):
        raise ValueError(
            f"value: got shape {value.shape}, but key has shape {key.shape}; batch, heads and length must be equal"
        )
    if heads > 0 and key_sizes[1] == 0:
        raise ValueError(f"key: got no heads in shape {key.shape}, but query has {heads}; allowed is any divisor")
    batch = max(batch, key_sizes[0], value_sizes[0])
    return Sizes(batch, heads, key_sizes[1], seq_q, max(key_sizes[2], value_sizes[2]), dim, value_sizes[3])


def fits(size: int, other: int) -> bool:
    """Return True if two sizes may be equal."""
    return size == other or UNKNOWN in (size, other)


def broadcasts(shape: tuple, scores: tuple) -> bool:
    """Return True if `shape` has rank 4 and broadcasts to the scores. Its last axis is as long as the scores' last
    axis.
    """
    return (
        len(shape) == 4
        and fits(shape[3], scores[3])
        and all(size == 1 or fits(size, full) for size, full in zip(shape, scores))
    )


def bias_dtypes(dtype: str) -> tuple:
    """Return the dtypes that a bias may have in a call in `dtype`."""
    return (dtype,) if dtype == "float32" else (dtype, "float32")


def blocks_of_8(seq_k: int) -> int:
    """Return the bytes of packed keep decisions per query."""
    return UNKNOWN if seq_k == UNKNOWN else -(-seq_k // 8)


def shown(size: int) -> str:
    """Return a size as it stands in a message."""
    return "any" if size == UNKNOWN else str(size)
