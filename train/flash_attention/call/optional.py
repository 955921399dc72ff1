"""The optional inputs of a call: one table of their names, shapes, dtypes, gradients and places.

The inputs travel in the order of the table, from `flash_attention` to the cell of a backend. A new input needs a row
here and an argument of `in_order`. It also needs a field of Call, an argument of `flash_attention` and of the layer,
and code in each backend that takes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, NamedTuple

from flash_attention.call.checks import INTEGERS, check_dtype
from flash_attention.call.inputs import (
    DTYPES,
    MASK_DTYPES,
    UNKNOWN,
    Sizes,
    TensorSpec,
    bias_dtypes,
    blocks_of_8,
    broadcasts,
    fits,
    shown,
)
from flash_attention.call.tiling import BLOCK_MASK_TILES, tiles_of

Call = Any  # of `flash_attention.call.call`, which takes this table

COVERS = ("dp", "mp", None, None)  # (batch, heads, seq_q, seq_k); all but the last may be 1


PACKED_ITEMS = "sequences"  # the unit in place of batch items if sequences are packed


class Given(NamedTuple):
    """Describe a call's arguments, for the check of one of its inputs."""

    sizes: Sizes
    dtype: str
    tile: int
    given: dict[str, TensorSpec]
    items: str  # the unit that has a prefix, and may have slopes, of its own
    counts: set[int]  # how many such units there may be
    block_mask_tile: int = 0  # tokens of the block mask's tiles; 0 = as the shape says


@dataclass(frozen=True)
class OptionalInput:
    """One row of the table of optional inputs.

    Attributes:
        name: name of the argument; for the mask it is attention_mask.
        read: read(name, spec, whole) -> fields of the call. Raises TypeError, ValueError: the tensor is not allowed.
        shape: shape of the tensor that a backend gets; None in calls that do not have it.
        axes: how each axis is split over devices.
        cast: dtype in which a backend gets it; None: as it is.
        gradient: in which calls it has a gradient; in others the gradient is zero.
    """

    name: str
    read: Callable[[str, TensorSpec, Given], dict[str, Any]]
    shape: Callable[[Call], Any]
    axes: tuple = (None,)
    cast: str | None = None
    gradient: Callable[[Call], bool] = lambda call: False

    def has(self, call: Call) -> bool:
        """Return True if a call has this input."""
        return self.shape(call) is not None


def _read_mask(name: str, mask: TensorSpec, whole: Given) -> dict:
    """Read an explicit mask as a rank-4 mask, a compact causal mask as a rule."""
    sizes, tile = whole.sizes, whole.tile
    check_dtype(name, mask.dtype, MASK_DTYPES, "; 1 hides a key and 0 shows it")
    compact = mask.shape in ((tile, tile), (1, tile, tile))
    if compact and UNKNOWN in (sizes.seq_q, sizes.seq_k):
        return {}  # a full mask would have an unknown size too
    shape = mask.shape
    rank4 = {2: (1, 1, *shape), 3: (*shape[:1], 1, *shape[1:])}.get(len(shape), shape)
    if broadcasts(rank4, sizes.scores) and (len(shape) > 2 or fits(rank4[2], sizes.seq_q)):
        return {"mask_shape": rank4, "mask_dtype": mask.dtype}
    if compact:
        return {}
    batch, _, seq_q, seq_k = sizes.scores
    raise ValueError(
        f"{name}: got shape {shape}, allowed are (seq_q, seq_k) = ({shown(seq_q)}, {shown(seq_k)}), "
        f"(batch or 1, seq_q or 1, seq_k) = "
        f"({_one_or(batch)}, {_one_or(seq_q)}, {shown(seq_k)}), (batch or 1, heads or 1, seq_q or 1, seq_k) = "
        f"{_broadcast_sizes(sizes.scores)}, and the compact causal ({tile}, {tile}) or (1, {tile}, {tile})"
    )


def _read_bias(name: str, bias: TensorSpec, whole: Given) -> dict:
    check_dtype(name, bias.dtype, bias_dtypes(whole.dtype))
    if whole.items == PACKED_ITEMS:
        heads, seq_k = whole.sizes.heads, whole.sizes.seq_k
        if bias.shape not in ((1, seq_k), (heads, seq_k)):
            raise ValueError(
                f"{name}: got shape {bias.shape}, allowed is (heads or 1, keys of all sequences), here "
                f"({_one_or(heads)}, {seq_k})"
            )
        return {"bias_shape": (1, bias.shape[0], 1, seq_k), "bias_dtype": bias.dtype}
    if not broadcasts(bias.shape, whole.sizes.scores):
        raise ValueError(
            f"{name}: got shape {bias.shape}, allowed is (batch or 1, heads or 1, seq_q or 1, seq_k), here "
            f"{_broadcast_sizes(whole.sizes.scores)}"
        )
    return {"bias_shape": bias.shape, "bias_dtype": bias.dtype}


def _read_keep_bits(name: str, bits: TensorSpec, whole: Given) -> dict:
    expected = *whole.sizes.scores[:3], blocks_of_8(whole.sizes.seq_k)
    if bits.dtype != "uint8":
        raise TypeError(f"{name}: got dtype {bits.dtype}, allowed is uint8")
    if whole.items == PACKED_ITEMS:
        if len(bits.shape) != 1:
            raise ValueError(f"{name}: got shape {bits.shape}, allowed is (bytes,), of one sequence behind the other")
        return {"keep_bits": True}
    if len(bits.shape) != 4 or not all(map(fits, bits.shape, expected)):
        raise ValueError(
            f"{name}: got shape {bits.shape}, allowed is (batch, heads, seq_q, ceil(seq_k / 8)), here "
            f"({', '.join(map(shown, expected))})"
        )
    return {"keep_bits": True}


def _read_seed(name: str, seed: TensorSpec, whole: Given) -> dict:
    if seed != TensorSpec((2,), "int64"):
        raise ValueError(f"{name}: got {seed.dtype} of shape {seed.shape}, allowed is int64 of shape (2,)")
    return {}


def _read_sinks(name: str, sinks: TensorSpec, whole: Given) -> dict:
    heads = whole.sizes.heads
    check_dtype(name, sinks.dtype, bias_dtypes(whole.dtype))
    if sinks.shape != (heads,):
        raise ValueError(f"{name}: got shape {sinks.shape}, allowed is (heads,), here ({heads},)")
    return {"sinks": True}


def _check_integers(name: str, tensor: TensorSpec, axes: str, *expected: int) -> None:
    check_dtype(name, tensor.dtype, INTEGERS)
    if len(tensor.shape) != len(expected) or not all(map(fits, tensor.shape, expected)):
        raise ValueError(
            f"{name}: got shape {tensor.shape}, allowed is ({axes}), here ({', '.join(map(shown, expected))})"
        )


def _read_prefix(name: str, prefix: TensorSpec, whole: Given) -> dict:
    length = prefix.shape[0] if len(prefix.shape) == 1 and prefix.shape[0] in whole.counts else max(whole.counts)
    _check_integers(name, prefix, whole.items, length)
    return {"prefix": True}


def _read_segments(name: str, segments: TensorSpec, whole: Given) -> dict:
    sizes = whole.sizes
    _check_integers(name, segments, "batch, seq_q", sizes.batch, sizes.seq_q)
    if "kv_segment_ids" not in whole.given and not fits(sizes.seq_q, sizes.seq_k):
        raise ValueError(
            f"kv_segment_ids: needed beside segment_ids if seq_q ({sizes.seq_q}) is not seq_k ({sizes.seq_k})"
        )
    return {"segments": True}


def _read_kv_segments(name: str, segments: TensorSpec, whole: Given) -> dict:
    if "segment_ids" not in whole.given:
        raise ValueError(f"{name}: given without segment_ids, allowed only with them")
    _check_integers(name, segments, "batch, seq_k", whole.sizes.batch, whole.sizes.seq_k)
    return {}


def _read_block_mask(name: str, tiles: TensorSpec, whole: Given) -> dict:
    sizes, shape = whole.sizes, tiles.shape
    check_dtype(name, tiles.dtype, ("uint8", "bool"), "; not 0 shows a tile")
    if whole.items == PACKED_ITEMS:
        raise ValueError(f"{name}: got a block mask beside packed sequences, allowed is one for dense calls")
    if UNKNOWN in (sizes.seq_q, sizes.seq_k):
        raise ValueError(f"{name}: got a block mask in a graph for unknown lengths, allowed are known lengths")
    known = (whole.block_mask_tile,) if whole.block_mask_tile else BLOCK_MASK_TILES
    counts = {tile: (tiles_of(sizes.seq_q, tile), tiles_of(sizes.seq_k, tile)) for tile in known}
    fitting = [tile for tile, sides in counts.items() if shape[2:] == sides]
    if len(shape) != 4 or not fitting or not all(n in (1, full) for n, full in zip(shape, sizes.scores[:2])):
        allowed = " or ".join(f"{sides} for tiles of {tile}" for tile, sides in counts.items())
        raise ValueError(
            f"{name}: got shape {shape}, allowed is (batch or 1, heads or 1, query tiles, key tiles), here "
            f"({_one_or(sizes.batch)}, {_one_or(sizes.heads)}) and {allowed}"
        )
    # Where several tiles fit, each side is one tile of whatever size.
    return {"block_mask_shape": shape, "block_mask_tile": fitting[0]}


def read_slopes(name: str, slopes: TensorSpec, heads: int, items: str, counts: set) -> dict:
    """Return the fields of slopes of ALiBi, see `Given`. `counts` are the allowed sizes of an axis before the heads."""
    check_dtype(name, slopes.dtype, DTYPES)
    shape = slopes.shape
    of_items = len(shape) == 2 and shape[1] == heads and any(fits(shape[0], size) for size in counts)
    if shape != (heads,) and not of_items:
        sizes = " or ".join((f"({heads},)", *(f"({shown(size)}, {heads})" for size in sorted(counts))))
        raise ValueError(f"{name}: got shape {shape}, allowed are (heads,) and ({items}, heads), here {sizes}")
    return {"slopes_shape": shape}


def _broadcast_sizes(scores: tuple) -> str:
    return f"({', '.join(map(_one_or, scores[:3]))}, {shown(scores[3])})"


def _one_or(size: int) -> str:
    return "1" if size == 1 else f"{shown(size)} or 1"


OPTIONAL = (
    # Bool, True = hidden. Any of the first three axes may be 1 (broadcast). A compact causal mask never arrives at a
    # backend: it is the rule causal.
    OptionalInput("mask", _read_mask, lambda p: p.mask_shape, COVERS),
    # call.bias_dtype, added to scale * query @ key^T. -inf in it hides a key like the mask does. Any of the first
    # three axes may be 1: its gradient is then the sum over that axis, accumulated in float32.
    OptionalInput("bias", _read_bias, lambda p: p.bias_shape, COVERS, gradient=lambda p: p.bias_grad),
    # uint8, bit k % 8 (from the least significant) of byte k // 8 set = key k is kept.
    OptionalInput(
        "keep_bits",
        _read_keep_bits,
        lambda p: p.shape_keep_bits() if p.dropout_threshold > 0 and p.keep_bits else None,
        COVERS,
    ),
    # int64: Philox key lo = seed[0] mod 2**32, key hi = seed[1] mod 2**32.
    OptionalInput("seed", _read_seed, lambda p: (2,) if p.dropout_threshold > 0 and not p.keep_bits else None),
    # Logits that join the denominator of every row of a head and the logsumexp.
    OptionalInput("sinks", _read_sinks, lambda p: (p.heads,) if p.sinks else None, ("mp",), "float32", lambda p: True),
    # int32: the keys before it are visible besides the causal ones.
    OptionalInput("prefix", _read_prefix, lambda p: (p.batch,) if p.prefix else None, ("dp",), "int32"),
    # int32: a query sees keys of its own id only; negative ids see nothing and are seen by none.
    OptionalInput(
        "segment_ids", _read_segments, lambda p: (p.batch, p.seq_q) if p.segments else None, ("dp", None), "int32"
    ),
    OptionalInput(
        "kv_segment_ids", _read_kv_segments, lambda p: (p.batch, p.seq_k) if p.segments else None, ("dp", None), "int32"
    ),
    # -slope * |position of the query - key| is added.
    OptionalInput(
        "alibi_slopes",
        lambda name, slopes, whole: read_slopes(name, slopes, whole.sizes.heads, whole.items, whole.counts),
        lambda p: p.slopes_shape,
        cast="float32",
    ),
    # Bool or uint8, not 0 = visible: (batch or 1, heads or 1, query tiles, key tiles) of call.block_mask_tile tokens.
    OptionalInput("block_mask", _read_block_mask, lambda p: p.block_mask_shape, COVERS),
)
NAMES = tuple(one.name for one in OPTIONAL)
MASK, PREFIX, SEGMENT_IDS, KV_SEGMENT_IDS = map(NAMES.index, ("mask", "prefix", "segment_ids", "kv_segment_ids"))


def in_order(
    mask=None,
    bias=None,
    keep_bits=None,
    seed=None,
    sinks=None,
    prefix=None,
    segment_ids=None,
    kv_segment_ids=None,
    alibi_slopes=None,
    block_mask=None,
) -> tuple:
    """Return the tensors of a call as they travel. A graph compiles this: each step of a loop would cost it time."""
    return mask, bias, keep_bits, seed, sinks, prefix, segment_ids, kv_segment_ids, alibi_slopes, block_mask
