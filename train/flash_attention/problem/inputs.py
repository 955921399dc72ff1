"""Reading the shapes and dtypes of a call's tensors: layouts, masks, biases, keep bits.

Shapes come as tuples, dtypes as strings, so that nothing here needs MindSpore. In a graph that is compiled for dynamic
shapes, batch, seq_q and seq_k may be UNKNOWN; an unknown size fits any other.
"""

from __future__ import annotations

from typing import NamedTuple

from flash_attention.problem.checks import check_dtype, check_int, check_name

LAYOUTS = {
    "BNSD": "(batch, heads, seq, head_dim)",
    "BSND": "(batch, seq, heads, head_dim)",
    "BSH": "(batch, seq, heads * head_dim)",
    "SBH": "(seq, batch, heads * head_dim)",
}
# Those of calls: also one without an axis for the batch, whose size is given beside the tensors.
CALL_LAYOUTS = {**LAYOUTS, "TH": "(batch * seq, heads * head_dim)"}
DTYPES = ("float16", "bfloat16", "float32")
MASK_DTYPES = ("bool", "uint8", "float16", "bfloat16", "float32")
MAX_HEAD_DIM = 576  # of query and key
MAX_VALUE_DIM = 512
UNKNOWN = -1


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
        """Shape of the scores: (batch, heads, seq_q, seq_k)."""
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
    """Sizes from the three tensors of a call; raises when they do not fit each other, the layout or the widths.

    value_head_dim None: free in layouts that show it, else head_dim. batch: of layout TH, which does not show it.
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
    elif layout in _MERGED:
        value_head_dim = head_dim
    layout_of = layout, batch
    batch, heads, seq_q, dim = _read_layout("query", query.shape, *layout_of, "head_dim", head_dim, MAX_HEAD_DIM)
    key_sizes = _read_layout("key", key.shape, *layout_of, "head_dim", head_dim, MAX_HEAD_DIM)
    value_sizes = _read_layout("value", value.shape, *layout_of, "value_head_dim", value_head_dim, MAX_VALUE_DIM)
    if not fits(key_sizes[0], batch):
        raise ValueError(f"key: got batch {key_sizes[0]}, but query has batch {batch}; they must be equal")
    if key_sizes[3] != dim:
        raise ValueError(f"key: got head_dim {key_sizes[3]}, but query has head_dim {dim}; they must be equal")
    if not all(map(fits, value_sizes[:3], key_sizes[:3])):
        raise ValueError(
            f"value: got shape {value.shape}, but key has shape {key.shape}; batch, heads and length must be equal"
        )
    batch = max(batch, key_sizes[0], value_sizes[0])
    return Sizes(batch, heads, key_sizes[1], seq_q, max(key_sizes[2], value_sizes[2]), dim, value_sizes[3])


def check_batch(batch: int | None, layout: str) -> None:
    """Whether a caller gives the size of the batch where, and only where, the tensors do not show it."""
    if layout != "TH":
        if batch is not None:
            raise ValueError(f"batch: got {batch} with input_layout {layout}, allowed only with TH")
    elif batch is None:
        raise ValueError("batch: needed with input_layout TH, whose first axis is batch * seq")
    else:
        check_int("batch", batch, 1)


def read_mask(name: str, mask: TensorSpec, sizes: Sizes, tile: int) -> tuple | None:
    """Rank-4 shape of an explicit mask, or None for the compact causal one."""
    check_dtype(name, mask.dtype, MASK_DTYPES, "; 1 hides a key and 0 shows it")
    compact = mask.shape in ((tile, tile), (1, tile, tile))
    if compact and UNKNOWN in (sizes.seq_q, sizes.seq_k):
        return None  # a full mask would have an unknown size too
    batch, _, seq_q, seq_k = sizes.scores
    shape = mask.shape
    if len(shape) == 2 and fits(shape[0], seq_q) and fits(shape[1], seq_k):
        return 1, 1, *shape
    if len(shape) == 3 and _broadcasts(shape[0], batch) and fits(shape[1], seq_q) and fits(shape[2], seq_k):
        return shape[0], 1, *shape[1:]
    if broadcasts(shape, sizes.scores):
        return shape
    if compact:
        return None
    seq_q, seq_k = map(_shown, (seq_q, seq_k))
    raise ValueError(
        f"{name}: got shape {shape}, allowed are (seq_q, seq_k) = ({seq_q}, {seq_k}), (batch or 1, seq_q, seq_k) = "
        f"({_one_or(batch)}, {seq_q}, {seq_k}), (batch or 1, heads or 1, seq_q or 1, seq_k) = "
        f"{_broadcast_sizes(sizes.scores)}, and the compact causal ({tile}, {tile}) or (1, {tile}, {tile})"
    )


def read_bias(name: str, bias: TensorSpec, sizes: Sizes, dtype: str) -> tuple:
    """Shape of a bias that is added to the scores of a call in `dtype`."""
    check_dtype(name, bias.dtype, bias_dtypes(dtype))
    if not broadcasts(bias.shape, sizes.scores):
        raise ValueError(
            f"{name}: got shape {bias.shape}, allowed is (batch or 1, heads or 1, seq_q or 1, seq_k), here "
            f"{_broadcast_sizes(sizes.scores)}"
        )
    return bias.shape


def read_keep_bits(bits: TensorSpec, sizes: Sizes) -> None:
    """Checks packed keep decisions."""
    expected = *sizes.scores[:3], blocks_of_8(sizes.seq_k)
    if bits.dtype != "uint8":
        raise TypeError(f"keep_bits: got dtype {bits.dtype}, allowed is uint8")
    if len(bits.shape) != 4 or not all(map(fits, bits.shape, expected)):
        raise ValueError(
            f"keep_bits: got shape {bits.shape}, allowed is (batch, heads, seq_q, ceil(seq_k / 8)), here "
            f"({', '.join(map(_shown, expected))})"
        )


def read_sinks(sinks: TensorSpec, heads: int, dtype: str) -> None:
    """Checks the sinks of a call in `dtype`."""
    check_dtype("sinks", sinks.dtype, bias_dtypes(dtype))
    if sinks.shape != (heads,):
        raise ValueError(f"sinks: got shape {sinks.shape}, allowed is (heads,), here ({heads},)")


def read_slopes(slopes: TensorSpec | None, heads: int, batch_name: str, batches: set) -> tuple | None:
    """Shape of slopes of ALiBi, where there are any; `batches` are the sizes that an axis before the heads may have."""
    if slopes is None:
        return None
    check_dtype("alibi_slopes", slopes.dtype, DTYPES)
    shape = slopes.shape
    shared = shape == (heads,)
    if not shared and not (len(shape) == 2 and shape[1] == heads and any(fits(shape[0], size) for size in batches)):
        sizes = " or ".join((f"({heads},)", *(f"({_shown(size)}, {heads})" for size in sorted(batches))))
        raise ValueError(
            f"alibi_slopes: got shape {shape}, allowed are (heads,) and ({batch_name}, heads), here {sizes}"
        )
    return shape


def read_integers(name: str, tensor: TensorSpec, axes: tuple, expected: tuple) -> None:
    """Checks an int32 tensor; `axes` are what its axes are called."""
    check_dtype(name, tensor.dtype, ("int32",))
    if len(tensor.shape) != len(expected) or not all(map(fits, tensor.shape, expected)):
        allowed = f"({', '.join(axes)}), here ({', '.join(map(_shown, expected))})"
        raise ValueError(f"{name}: got shape {tensor.shape}, allowed is {allowed}")


def read_segments(segments: TensorSpec | None, kv_segments: TensorSpec | None, sizes: Sizes) -> bool:
    """Whether the call has segment ids, checked."""
    if segments is None:
        if kv_segments is not None:
            raise ValueError("kv_segment_ids: given without segment_ids, allowed only with them")
        return False
    read_integers("segment_ids", segments, ("batch", "seq_q"), (sizes.batch, sizes.seq_q))
    if kv_segments is not None:
        read_integers("kv_segment_ids", kv_segments, ("batch", "seq_k"), (sizes.batch, sizes.seq_k))
    elif not fits(sizes.seq_q, sizes.seq_k):
        raise ValueError(
            f"kv_segment_ids: needed beside segment_ids where seq_q ({sizes.seq_q}) is not seq_k ({sizes.seq_k})"
        )
    return True


def fits(size: int, other: int) -> bool:
    """Whether two sizes may be equal."""
    return size == other or UNKNOWN in (size, other)


def broadcasts(shape: tuple, scores: tuple) -> bool:
    """Whether `shape` has rank 4, each of its axes is that of the scores or 1, and its last one is theirs."""
    return len(shape) == 4 and all(map(_broadcasts, shape, scores)) and fits(shape[3], scores[3])


def bias_dtypes(dtype: str) -> tuple:
    """Dtypes that a bias may have in a call in `dtype`."""
    return (dtype,) if dtype == "float32" else (dtype, "float32")


def blocks_of_8(seq_k: int) -> int:
    """Bytes of packed keep decisions per query."""
    return UNKNOWN if seq_k == UNKNOWN else -(-seq_k // 8)


_MERGED = ("BSH", "SBH", "TH")  # heads and head_dim in one axis


def _read_layout(
    name: str, shape: tuple, layout: str, batch: int | None, width_name: str, width: int | None, most: int
) -> tuple:
    """(batch, heads, seq, head_dim) of one of query, key and value; `width` is what the caller calls `width_name`."""
    meaning = CALL_LAYOUTS[layout]
    if len(shape) != len(layout):
        raise ValueError(f"{name}: got rank {len(shape)} with shape {shape}, allowed is {meaning} for layout {layout}")
    if 0 in shape:
        raise ValueError(f"{name}: got the empty shape {shape}, allowed is {meaning} with every size at least 1")
    if layout == "BNSD":
        batch, heads, seq, dim = shape
    elif layout == "BSND":
        batch, seq, heads, dim = shape
    elif batch is not None:
        (tokens, dim), heads = shape, 1
        if tokens != UNKNOWN and tokens % batch:
            raise ValueError(f"{name}: got {tokens} rows in shape {shape}, allowed is a multiple of batch {batch}")
        seq = UNKNOWN if tokens == UNKNOWN else tokens // batch
    else:
        batch, seq = shape[:2] if layout == "BSH" else shape[1::-1]
        heads, dim = 1, shape[2]
    if UNKNOWN in (heads, dim):
        raise ValueError(f"{name}: got an unknown number of heads or head_dim, allowed are unknown batch and seq only")
    if layout in _MERGED:
        if width is None:
            raise ValueError(f"{width_name}: needed to split the last axis of {name} for layout {layout}")
        if dim % width:
            raise ValueError(
                f"{name}: got last axis {dim} with layout {layout}, allowed is a multiple of {width_name} {width}"
            )
        heads, dim = dim // width, width
    if width is not None and dim != width:
        raise ValueError(f"{name}: got head_dim {dim} in shape {shape}, allowed is the layer's {width_name} {width}")
    if dim > most:
        raise ValueError(f"{name}: got head_dim {dim} in shape {shape}, allowed is 1 to {most}")
    return batch, heads, seq, dim


def _broadcasts(size: int, full: int) -> bool:
    return size == 1 or fits(size, full)


def _broadcast_sizes(scores: tuple) -> str:
    return f"({', '.join(map(_one_or, scores[:3]))}, {_shown(scores[3])})"


def _one_or(size: int) -> str:
    return "1" if size == 1 else f"{_shown(size)} or 1"


def _shown(size: int) -> str:
    return "any" if size == UNKNOWN else str(size)
