"""AttentionProblem: one frozen, validated description of an attention call, which every backend takes.

Every complaint about inputs is raised here, before anything runs. Nothing in this module needs MindSpore: shapes come
as tuples and dtypes as strings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import NamedTuple

from flash_attention.tiling import DEFAULT_STRATEGY, get_strategy
from flash_attention.visibility import UNLIMITED, Band

LAYOUTS = {
    "BNSD": "(batch, heads, seq, head_dim)",
    "BSND": "(batch, seq, heads, head_dim)",
    "BSH": "(batch, seq, heads * head_dim)",
    "SBH": "(seq, batch, heads * head_dim)",
}
DTYPES = ("float16", "bfloat16", "float32")
MASK_DTYPES = ("bool", "uint8", "float16", "bfloat16", "float32")
ALIGNMENTS = ("top_left", "bottom_right")
MAX_HEAD_DIM = 256
ALL_BLOCKS = 65536


class TensorSpec(NamedTuple):
    """Shape and dtype name of one input."""

    shape: tuple
    dtype: str


@dataclass(frozen=True)
class AttentionProblem:
    """Shapes, dtypes and rules of one attention call. Backends receive tensors as (batch, heads, seq, head_dim).

    Use `AttentionProblem.from_inputs` to derive one from the tensors of a call; the constructor is for tests and tools.
    """

    batch: int
    heads: int
    seq_q: int
    seq_k: int
    head_dim: int
    kv_heads: int = 0  # 0 = as many as heads
    dtype: str = "float16"
    layout: str = "BNSD"  # of the caller's tensors; backends always see BNSD
    # Explicit mask, non-zero = hidden: (batch or 1, heads or 1, seq_q or 1, seq_k). A compact causal mask is not here
    # any more: it became causal=True. Backends receive it as bool or uint8 whatever its dtype was.
    mask_shape: tuple | None = None
    mask_dtype: str | None = None
    # Positional rules, see visibility.Band.
    causal: bool = False
    causal_alignment: str = "top_left"
    prev_blocks: int = ALL_BLOCKS
    next_blocks: int = ALL_BLOCKS
    window_left: int = UNLIMITED
    window_right: int = UNLIMITED
    tile: int = 128
    # "none"; "given": a bias tensor of bias_shape (batch or 1, heads or 1, seq_q or 1, seq_k) is added to the scaled
    # scores; "computed": -slope(head) * |position - key| is added, see alibi_slopes.
    alibi: str = "none"
    bias_shape: tuple | None = None
    bias_dtype: str | None = None  # the dtype of query, or float32
    bias_grad: bool = True  # whether the gradient of a given bias is wanted; None comes back otherwise
    dropout_rate: float = 0.0  # as asked for; active only when `training`
    keep_bits: bool = False  # the caller gives the keep decisions instead of a seed
    scale: float | None = None  # None becomes 1 / sqrt(head_dim)
    training: bool = False
    return_lse: bool = False
    device: str = "CPU"
    # Where a shard's first batch element and first query head sit in the whole problem: dropout and computed ALiBi are
    # those of the whole. all_heads 0 = as many as heads.
    batch_offset: int = 0
    head_offset: int = 0
    all_heads: int = 0

    def __post_init__(self):
        _sizes(self)
        _rules(self)
        _extras(self)

    @classmethod
    def from_inputs(
        cls,
        query: TensorSpec,
        key: TensorSpec,
        value: TensorSpec,
        mask: TensorSpec | None = None,
        bias: TensorSpec | None = None,
        keep_bits: TensorSpec | None = None,
        *,
        input_layout: str = "BNSD",
        head_dim: int | None = None,
        alibi: bool = False,
        mask_name: str = "attention_mask",
        bias_name: str = "alibi_mask",
        tiling_stgy_name: str = DEFAULT_STRATEGY,
        prev_block_num: int = ALL_BLOCKS,
        next_block_num: int = ALL_BLOCKS,
        window_size: tuple = (UNLIMITED, UNLIMITED),
        causal: bool = False,
        **rules,
    ) -> AttentionProblem:
        """Describes a call from the specs of its inputs.

        Args:
            query, key, value: in `input_layout`, all of one dtype (float16, bfloat16 or float32).
            mask: 1 = hidden; (Sq, Sk), (1, Sq, Sk), (B, Sq, Sk), a rank-4 shape that broadcasts to (B, H, Sq, Sk) with
                a full last axis, or the compact causal (T, T) or (1, T, T) with T the tile of the tiling strategy.
            bias: added to the scaled scores; rank 4, broadcasts to (B, H, Sq, Sk) with a full last axis.
            keep_bits: uint8 (B, H, Sq, ceil(Sk / 8)), bit k % 8 of byte k // 8 set = key k is kept.
            head_dim: needed for BSH and SBH; when given, it must agree with the other layouts too.
            alibi: without a bias, ask for computed ALiBi.
            mask_name, bias_name: what the caller calls these inputs, for error messages.
            tiling_stgy_name, prev_block_num, next_block_num, window_size, causal: positional rules, as of the layer.
            rules: further fields of AttentionProblem, by name.

        Raises:
            TypeError, ValueError: naming the argument, what came and what is allowed.
        """
        _check_name("input_layout", input_layout, LAYOUTS)
        for name, spec in (("query", query), ("key", key), ("value", value)):
            _check_dtype(name, spec.dtype, DTYPES)
        for name, spec in (("key", key), ("value", value)):
            if spec.dtype != query.dtype:
                raise TypeError(f"{name}: got dtype {spec.dtype}, but query is {query.dtype}; they must be equal")
        if head_dim is not None:
            check_int("head_dim", head_dim, 1, MAX_HEAD_DIM)
        check_bool("alibi", alibi)
        batch, heads, seq_q, dim = _dims("query", query.shape, input_layout, head_dim)
        key_dims, value_dims = (
            _dims(name, spec.shape, input_layout, head_dim) for name, spec in (("key", key), ("value", value))
        )
        if key_dims[0] != batch:
            raise ValueError(f"key: got batch {key_dims[0]}, but query has batch {batch}; they must be equal")
        if key_dims[3] != dim:
            raise ValueError(f"key: got head_dim {key_dims[3]}, but query has head_dim {dim}; they must be equal")
        if value_dims != key_dims:
            raise ValueError(f"value: got shape {value.shape}, but key has shape {key.shape}; they must be equal")

        strategy = get_strategy(tiling_stgy_name)
        check_bool("causal", causal)
        mask_shape = None
        if mask is not None:
            _check_dtype(mask_name, mask.dtype, MASK_DTYPES, "; 1 hides a key and 0 shows it")
            mask_shape = _full_mask_shape(mask.shape, batch, heads, seq_q, key_dims[2])
            if mask_shape is None and mask.shape in ((strategy.tile,) * 2, (1, strategy.tile, strategy.tile)):
                causal = True
            elif mask_shape is None:
                raise ValueError(_mask_message(mask_name, mask.shape, batch, heads, seq_q, key_dims[2], strategy.tile))
        bias_shape = None
        if bias is not None:
            _check_dtype(bias_name, bias.dtype, _bias_dtypes(query.dtype))
            bias_shape = _broadcast_shape(bias.shape, batch, heads, seq_q, key_dims[2])
            if bias_shape is None:
                raise ValueError(
                    f"{bias_name}: got shape {bias.shape}, allowed is (batch or 1, heads or 1, seq_q or 1, seq_k), "
                    f"here ({_one_or(batch)}, {_one_or(heads)}, {_one_or(seq_q)}, {key_dims[2]})"
                )
        if keep_bits is not None:
            expected = (batch, heads, seq_q, -(-key_dims[2] // 8))
            if keep_bits.dtype != "uint8":
                raise TypeError(f"keep_bits: got dtype {keep_bits.dtype}, allowed is uint8")
            if keep_bits.shape != expected:
                raise ValueError(
                    f"keep_bits: got shape {keep_bits.shape}, allowed is (batch, heads, seq_q, ceil(seq_k / 8)), "
                    f"here {expected}"
                )
        left, right = check_window(window_size)
        return cls(
            batch=batch,
            heads=heads,
            kv_heads=key_dims[1],
            seq_q=seq_q,
            seq_k=key_dims[2],
            head_dim=dim,
            dtype=query.dtype,
            layout=input_layout,
            mask_shape=mask_shape,
            mask_dtype=None if mask_shape is None else mask.dtype,
            causal=causal,
            prev_blocks=prev_block_num,
            next_blocks=next_block_num,
            window_left=left,
            window_right=right,
            tile=strategy.tile,
            alibi="given" if bias is not None else "computed" if alibi else "none",
            bias_shape=bias_shape,
            bias_dtype=None if bias is None else bias.dtype,
            keep_bits=keep_bits is not None,
            **rules,
        )

    @property
    def group(self) -> int:
        """Query heads per key/value head: query head h reads key/value head h // group."""
        return self.heads // self.kv_heads

    @property
    def offset(self) -> int:
        """Key position of query row 0 (negative when a bottom-right aligned query side is the longer one)."""
        return self.seq_k - self.seq_q if self.causal_alignment == "bottom_right" else 0

    @property
    def band(self) -> Band:
        """Positional visibility: causal, token window and block window combined."""
        return Band(
            seq_q=self.seq_q,
            seq_k=self.seq_k,
            offset=self.offset,
            causal=self.causal,
            left=self.window_left,
            right=self.window_right,
            prev_blocks=self.prev_blocks,
            next_blocks=self.next_blocks,
            block=self.tile,
        )

    @property
    def active_dropout(self) -> float:
        """Dropout rate that applies: dropout_rate in training, else 0."""
        return self.dropout_rate if self.training else 0.0

    @property
    def dropout_threshold(self) -> int:
        """A 16-bit random value below this drops its key; 0 when dropout is inactive."""
        if self.active_dropout == 0.0:
            return 0
        return min(max(round(self.active_dropout * 65536), 1), 65535)

    @property
    def dropout_scale(self) -> float:
        """Factor on kept probabilities, which makes dropout unbiased for the rate that the threshold stands for."""
        return 65536.0 / (65536 - self.dropout_threshold)

    def shape_query(self) -> tuple:
        """BNSD shape of query and of the output."""
        return self.batch, self.heads, self.seq_q, self.head_dim

    def shape_key(self) -> tuple:
        """BNSD shape of key and of value."""
        return self.batch, self.kv_heads, self.seq_k, self.head_dim

    def shape_lse(self) -> tuple:
        """Shape of the logsumexp, which is float32."""
        return self.batch, self.heads, self.seq_q

    def shape_keep_bits(self) -> tuple:
        """Shape of packed keep decisions, which are uint8."""
        return self.batch, self.heads, self.seq_q, -(-self.seq_k // 8)


def alibi_slopes(problem: AttentionProblem) -> list[float]:
    """Slopes of computed ALiBi for the heads of `problem`, as float64.

    For H a power of two: 2 ** (-8 (i + 1) / H). Otherwise those of the next lower power of two, followed by every other
    slope of twice that power. Press et al., "Train Short, Test Long" (2022), section 3 and the authors' released code.
    """

    def powers(count):
        return [2.0 ** (-8.0 * (i + 1) / count) for i in range(count)]

    total = problem.all_heads
    lower = 1 << (total.bit_length() - 1)
    slopes = powers(lower)
    if lower != total:
        slopes += powers(2 * lower)[0::2][: total - lower]
    return slopes[problem.head_offset : problem.head_offset + problem.heads]


def _set(problem: AttentionProblem, name: str, value) -> None:
    object.__setattr__(problem, name, value)


def _sizes(problem: AttentionProblem) -> None:
    for name in ("batch", "heads", "seq_q", "seq_k", "tile"):
        check_int(name, getattr(problem, name), 1)
    check_int("head_dim", problem.head_dim, 1, MAX_HEAD_DIM)
    check_int("kv_heads", problem.kv_heads, 0)
    if problem.kv_heads == 0:
        _set(problem, "kv_heads", problem.heads)
    if problem.heads % problem.kv_heads:
        raise ValueError(
            f"key: got {problem.kv_heads} heads, which do not divide the {problem.heads} heads of query; "
            "allowed is any divisor (grouped-query attention)"
        )
    _check_dtype("dtype", problem.dtype, DTYPES)
    _check_name("input_layout", problem.layout, LAYOUTS)
    for name in ("batch_offset", "head_offset", "all_heads"):
        check_int(name, getattr(problem, name), 0)
    if problem.all_heads == 0:
        _set(problem, "all_heads", problem.heads)
    if problem.head_offset + problem.heads > problem.all_heads:
        raise ValueError(
            f"head_offset: {problem.head_offset} + {problem.heads} heads go past all_heads {problem.all_heads}"
        )


def _rules(problem: AttentionProblem) -> None:
    check_bool("causal", problem.causal)
    _check_name("causal_alignment", problem.causal_alignment, ALIGNMENTS)
    check_int("prev_block_num", problem.prev_blocks, 0)
    check_int("next_block_num", problem.next_blocks, 0)
    check_window((problem.window_left, problem.window_right))
    sizes = problem.batch, problem.heads, problem.seq_q, problem.seq_k
    if problem.mask_shape is not None:
        if _broadcast_shape(problem.mask_shape, *sizes) is None:
            raise ValueError(_mask_message("mask_shape", problem.mask_shape, *sizes, problem.tile))
        _check_dtype("mask_dtype", problem.mask_dtype, MASK_DTYPES)
    _check_name("alibi", problem.alibi, ("none", "given", "computed"))
    if (problem.alibi == "given") != (problem.bias_shape is not None):
        raise ValueError(f"bias_shape: got {problem.bias_shape} with alibi {problem.alibi!r}; only 'given' has a shape")
    if problem.bias_shape is not None:
        if _broadcast_shape(problem.bias_shape, *sizes) is None:
            raise ValueError(f"bias_shape: got {problem.bias_shape}, which does not broadcast to {sizes}")
        _check_dtype("bias_dtype", problem.bias_dtype, _bias_dtypes(problem.dtype))
    check_bool("bias_grad", problem.bias_grad)


def _extras(problem: AttentionProblem) -> None:
    rate = _check_real("dropout_rate", problem.dropout_rate)
    if not 0.0 <= rate < 1.0:
        raise ValueError(f"dropout_rate: got {rate!r}, allowed is 0 <= dropout_rate < 1")
    _set(problem, "dropout_rate", rate)
    for name in ("keep_bits", "training", "return_lse"):
        check_bool(name, getattr(problem, name))
    if problem.keep_bits and rate == 0.0:
        raise ValueError("keep_bits: given with dropout_rate 0, allowed only with a rate > 0, which sets the scaling")
    if problem.scale is None:
        _set(problem, "scale", 1.0 / math.sqrt(problem.head_dim))
    else:
        scale = _check_real("scale", problem.scale)
        if not math.isfinite(scale):
            raise ValueError(f"scale: got {scale!r}, allowed is any finite number, or None for 1 / sqrt(head_dim)")
        _set(problem, "scale", scale)


def check_int(name: str, value, low: int, high: int | None = None) -> None:
    """Raises unless `value` is an integer in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name}: got {type(value).__name__} {value!r}, allowed is an integer")
    if value < low or (high is not None and value > high):
        allowed = f"an integer >= {low}" if high is None else f"an integer from {low} to {high}"
        raise ValueError(f"{name}: got {value}, allowed is {allowed}")


def check_bool(name: str, value) -> None:
    """Raises unless `value` is a bool."""
    if not isinstance(value, bool):
        raise TypeError(f"{name}: got {type(value).__name__} {value!r}, allowed is True or False")


def check_window(window_size) -> tuple[int, int]:
    """(left, right) of a token window; raises unless it is a pair of integers >= -1."""
    if not isinstance(window_size, (tuple, list)) or len(window_size) != 2:
        raise TypeError(f"window_size: got {window_size!r}, allowed is a pair (left, right) of integers")
    for side, size in zip(("left", "right"), window_size):
        if isinstance(size, bool) or not isinstance(size, Integral):
            raise TypeError(f"window_size: got {side} {type(size).__name__} {size!r}, allowed is an integer")
        if size < UNLIMITED:
            raise ValueError(f"window_size: got {side} {size}, allowed is a number of tokens, or -1 for unlimited")
    return tuple(window_size)


def _check_real(name: str, value) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}: got {type(value).__name__} {value!r}, allowed is a number")
    return float(value)


def _check_name(name: str, value, allowed) -> None:
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name}: got {value!r}, allowed are {', '.join(allowed)}")


def _check_dtype(name: str, dtype, allowed: tuple, hint: str = "") -> None:
    if dtype not in allowed:
        raise TypeError(f"{name}: got dtype {dtype}, allowed are {', '.join(allowed)}{hint}")


def _bias_dtypes(dtype: str) -> tuple:
    return (dtype,) if dtype == "float32" else (dtype, "float32")


def _dims(name: str, shape: tuple, layout: str, head_dim: int | None) -> tuple:
    """(batch, heads, seq, head_dim) of one of query, key and value."""
    meaning = LAYOUTS[layout]
    if len(shape) != len(layout):
        raise ValueError(f"{name}: got rank {len(shape)} with shape {shape}, allowed is {meaning} for layout {layout}")
    if any(size < 1 for size in shape):
        raise ValueError(f"{name}: got the empty shape {shape}, allowed is {meaning} with every size at least 1")
    if layout == "BNSD":
        batch, heads, seq, dim = shape
    elif layout == "BSND":
        batch, seq, heads, dim = shape
    else:
        batch, seq = shape[:2] if layout == "BSH" else shape[1::-1]
        if head_dim is None:
            raise ValueError(f"head_dim: needed to split the last axis of {name} for layout {layout}")
        if shape[2] % head_dim:
            raise ValueError(
                f"{name}: got last axis {shape[2]} with layout {layout}, allowed is a multiple of head_dim {head_dim}"
            )
        heads, dim = shape[2] // head_dim, head_dim
    if head_dim is not None and dim != head_dim:
        raise ValueError(f"{name}: got head_dim {dim} in shape {shape}, allowed is the layer's head_dim {head_dim}")
    if dim > MAX_HEAD_DIM:
        raise ValueError(f"{name}: got head_dim {dim} in shape {shape}, allowed is 1 to {MAX_HEAD_DIM}")
    return batch, heads, seq, dim


def _broadcast_shape(shape: tuple, batch: int, heads: int, seq_q: int, seq_k: int) -> tuple | None:
    """`shape` when it is (batch or 1, heads or 1, seq_q or 1, seq_k), else None."""
    if len(shape) != 4 or shape[3] != seq_k:
        return None
    fits = all(size in (1, full) for size, full in zip(shape, (batch, heads, seq_q)))
    return tuple(shape) if fits else None


def _full_mask_shape(shape: tuple, batch: int, heads: int, seq_q: int, seq_k: int) -> tuple | None:
    """The rank-4 form of a full mask's shape, or None when it is not one."""
    if len(shape) == 2 and shape == (seq_q, seq_k):
        return 1, 1, seq_q, seq_k
    if len(shape) == 3 and shape[0] in (1, batch) and shape[1:] == (seq_q, seq_k):
        return shape[0], 1, seq_q, seq_k
    return _broadcast_shape(shape, batch, heads, seq_q, seq_k)


def _one_or(size: int) -> str:
    return "1" if size == 1 else f"{size} or 1"


def _mask_message(name: str, shape: tuple, batch: int, heads: int, seq_q: int, seq_k: int, tile: int) -> str:
    return (
        f"{name}: got shape {shape}, allowed are (seq_q, seq_k) = ({seq_q}, {seq_k}), (batch or 1, seq_q, seq_k) = "
        f"({_one_or(batch)}, {seq_q}, {seq_k}), (batch or 1, heads or 1, seq_q or 1, seq_k) = ({_one_or(batch)}, "
        f"{_one_or(heads)}, {_one_or(seq_q)}, {seq_k}), and the compact causal ({tile}, {tile}) or (1, {tile}, {tile})"
    )
