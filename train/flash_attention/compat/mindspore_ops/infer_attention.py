"""`prompt_flash_attention`, `incre_flash_attention`, `fused_infer_attention_score`: inference of prompts and steps."""

from __future__ import annotations

import mindspore as ms
from mindspore import dtype as mstype
from mindspore import nn, ops

from flash_attention.backends.composed.positional import counted
from flash_attention.backends.fused import BAND, DEFAULT_MASK, LEFT_UP_CAUSAL, PREFIX, RIGHT_DOWN_CAUSAL
from flash_attention.bridge.constants import filled, numbered
from flash_attention.bridge.hiding import Hides
from flash_attention.bridge.parameters import EntryCell
from flash_attention.bridge.precision import fix_dtypes
from flash_attention.bridge.tensors import as_int32, compile_time, int_tensor, read_specs, remembered, spec, tensor_spec
from flash_attention.call.checks import INTEGERS, check_bool, check_dtype, check_int, check_name, check_range
from flash_attention.call.inputs import DTYPES, TensorSpec, fits
from flash_attention.call.layout import UNKNOWN
from flash_attention.call.paged import product
from flash_attention.call_cells import NumberCheck
from flash_attention.compat.ascend910 import Operator
from flash_attention.compat.mindspore_ops.call import FusedCall, Settings, read_call
from flash_attention.compat.mindspore_ops.cells import Attend, Prepared
from flash_attention.compat.mindspore_ops.paged import PagedCell, read_paged
from flash_attention.compat.mindspore_ops.reshaped import filled_where, reads_hidden, reshaped
from flash_attention.compat.mindspore_ops.signatures import arguments_of

_INPUTS = (
    *("query", "key", "value", "attn_mask", "pse_shift", "actual_seq_lengths", "actual_seq_lengths_kv"),
    "block_table",
)
_SETTINGS = (
    *("num_heads", "scale_value", "pre_tokens", "next_tokens", "input_layout", "num_key_value_heads", "sparse_mode"),
    *("inner_precise", "block_size", "softmax_lse_flag"),
)
_LAYOUTS = {"prompt": ("BSH", "BNSD"), "incre": ("BSH", "BNSD"), "fused": ("BSH", "BNSD", "BSND", "BNSD_BSND")}
_MASKS = ("bool", "int8", "uint8", *DTYPES)


def prompt_flash_attention(*given, **named):
    """Compute `mindspore.ops.prompt_flash_attention`: attention of prompts, with its arguments, order and defaults.

    Without attn_mask, sparse_mode 0 shows every key, whatever the tokens are, as MindSpore's documentation says.
    pse_shift is added to the scaled scores. Quantised tensors are refused.

    Args:
        query, key, value (Tensor): in `input_layout`, float16, bfloat16 or float32.
        attn_mask (Tensor): not 0 = hidden; bool, int8, uint8 or floating. (S, T), (B or 1, S, T), (B or 1, 1, S, T); in
            sparse modes 2 to 4 (2048, 2048), whose contents are not looked at.
        actual_seq_lengths, actual_seq_lengths_kv (Tensor, tuple, list): ints (B,) or (1,). Keys behind a length are
            never read; queries behind it give 0. Sparse modes 3 and 4 align each sequence by its lengths.
        pse_shift (Tensor): (B or 1, N, S, T) or larger, added to the scaled scores.
        num_heads (int): heads of query.
        scale_value (float): factor on the scores.
        pre_tokens, next_tokens (int): the band of sparse modes 0, with a mask, and 4.
        input_layout (str): "BSH" or "BNSD".
        num_key_value_heads (int): heads of key; 0: as query.
        sparse_mode (int): 0 to 4, as in `flash_attention_score`.
        inner_precise (int): without effect.

    Returns:
        Tensor like query. A query that sees nothing gives 0.

    Raises:
        TypeError, ValueError: an argument is not allowed.
    """
    found = arguments_of("prompt_flash_attention", _INPUTS + _SETTINGS, given, named)
    return _run("prompt", found[:8], found[8:])[0]


def incre_flash_attention(*given, **named):
    """Compute `mindspore.ops.incre_flash_attention`: attention of one query for each sequence.

    Args:
        query (Tensor): (B, 1, H) or (B, N, 1, D).
        key, value (tuple, list, Tensor): one Tensor, (B, T, H) or (B, N, T, D); with block_table (blocks, size, H) or
            (blocks, N, size, D).
        attn_mask (Tensor): (B, T), (B, 1, T) or (B, 1, 1, T), not 0 = hidden.
        actual_seq_lengths (Tensor, tuple, list): ints (B,) or (1,), keys of each sequence; others are never read.
        pse_shift (Tensor): (B or 1, N, 1, T), added to the scaled scores.
        block_table (Tensor): ints (B, blocks of a sequence).
        num_heads, scale_value, input_layout, num_key_value_heads, inner_precise: as in `prompt_flash_attention`.
        block_size (int): tokens of a block, or 0.

    Returns:
        Tensor like query. A query that sees nothing gives 0.

    Raises:
        TypeError, ValueError: an argument is not allowed.
    """
    found = arguments_of("incre_flash_attention", _INPUTS + _SETTINGS, given, named)
    return _run("incre", found[:8], found[8:])[0]


def fused_infer_attention_score(*given, **named):
    """Compute `mindspore.ops.fused_infer_attention_score`: `incre_flash_attention` for one query, else prompts.

    Both have the arguments of `incre_flash_attention` and `prompt_flash_attention`. Layouts are also "BSND", and
    "BNSD_BSND", which turns the output. With one query, tokens, sparse_mode and actual_seq_lengths have no effect.

    Args:
        softmax_lse_flag (bool): also compute the logsumexp, not with block_table.

    Returns:
        The output, and the logsumexp, float32 (B, N, S, 1), -inf for a query that sees nothing; zeros of (1,) without
        the flag.

    Raises:
        TypeError, ValueError: an argument is not allowed.
    """
    found = arguments_of("fused_infer_attention_score", _INPUTS + _SETTINGS, given, named)
    return _run("fused", found[:8], found[8:])


class _Primitive(Operator):
    """Keep the settings of a primitive."""

    def __init__(self, *given, **named):
        super().__init__()
        self.settings = arguments_of(self.name, _SETTINGS, given, named)


@ms.jit_class
class PromptFlashAttention(_Primitive):
    """The primitive of `prompt_flash_attention`: settings when it is made, tensors when it is called."""

    def __call__(self, *given, **named):
        return _run("prompt", arguments_of("PromptFlashAttention()", _INPUTS, given, named), self.settings)[0]


@ms.jit_class
class IncreFlashAttention(_Primitive):
    """The primitive of `incre_flash_attention`."""

    def __call__(self, *given, **named):
        return _run("incre", arguments_of("IncreFlashAttention()", _INPUTS, given, named), self.settings)[0]


@ms.jit_class
class FusedInferAttentionScore(_Primitive):
    """The primitive of `fused_infer_attention_score`."""

    def __call__(self, *given, **named):
        return _run("fused", arguments_of("FusedInferAttentionScore()", _INPUTS, given, named), self.settings)


def _run(kind, inputs, settings):
    """Return the output and the logsumexp of a call."""
    query, mask, shift, tables = inputs[0], inputs[3], inputs[4], inputs[7]
    key, value = _one("key", inputs[1]), _one("value", inputs[2])
    lengths_q = _tensor_of("actual_seq_lengths", inputs[5])
    lengths_k = _tensor_of("actual_seq_lengths_kv", inputs[6])
    tensors = spec(query), spec(key), spec(value), spec(mask), spec(shift)
    run = _prepared(kind, settings, (*tensors, spec(lengths_q), spec(lengths_k), spec(tables)))
    return run(query, key, value, mask, shift, lengths_q, lengths_k, tables)


def _one(name, given):
    """Return the one tensor of a list."""
    if isinstance(given, (tuple, list)):
        _check_one(name, len(given))
        return given[0]
    return given


@compile_time
def _check_one(name, count):
    if count != 1:
        raise ValueError(f"{name}: got {count} Tensors, allowed is one for the whole batch")


def _tensor_of(name, given):
    """Return lengths as a Tensor."""
    if isinstance(given, (tuple, list)):
        return int_tensor(name, given, 0)
    return given


@compile_time
def _prepared(kind, settings, specs):
    specs = (*map(tensor_spec, _INPUTS, specs[:3]), *read_specs(_INPUTS[3:], specs[3:]))
    return _cell(kind, tuple(settings), specs, reads_hidden())


@remembered
def _cell(kind: str, settings: tuple, specs: tuple, clears: bool) -> nn.Cell:
    heads, scale, before, after, layout, kv_heads, mode, precise, block_size, with_lse = settings
    check_name("input_layout", layout, _LAYOUTS[kind])
    check_int("num_heads", heads, 1)
    check_int("num_key_value_heads", kv_heads, 0)
    if with_lse is not None:
        check_bool("softmax_lse_flag", with_lse)
    mask, shift, *lengths, tables = specs[3:]
    if mask is not None:
        check_dtype("attn_mask", mask.dtype, _MASKS)
    if shift is not None:
        check_dtype("pse_shift", shift.dtype, DTYPES)
    for name, one in zip(("actual_seq_lengths", "actual_seq_lengths_kv"), lengths):
        if one is not None:
            check_dtype(name, one.dtype, INTEGERS)
            if len(one.shape) != 1 or one.shape[0] != 1 and not fits(one.shape[0], _batch(specs[0])):
                raise ValueError(f"{name}: got shape {one.shape}, allowed are (1,) and ({_batch(specs[0])},)")
    if kind == "incre" or kind == "fused" and _one_query(specs[0], layout, mode, mask):
        if not with_lse:
            return fix_dtypes(_Incremental(heads, scale, kv_heads or heads, layout, block_size, specs, clears))
        if mask is not None:
            mask = _mask_of_one(mask, specs)
        specs, mode, before, after = (*specs[:3], mask, shift, None, *specs[6:]), DEFAULT_MASK, 2**31 - 1, 2**31 - 1
    if tables is not None:
        raise ValueError("block_table: got one, allowed is None with softmax_lse_flag or more queries than one")
    check_int("sparse_mode", mode, 0, PREFIX - 1)
    fused = Settings(heads, 1.0, scale, before, after, precise, layout.partition("_")[0], mode, False)
    return fix_dtypes(_Prompt(fused, kv_heads or heads, specs, bool(with_lse), layout.endswith("_BSND"), clears))


def _batch(query: TensorSpec) -> int:
    return query.shape[0] if query.shape else 0


def _one_query(query: TensorSpec, layout: str, mode: int, mask: TensorSpec | None) -> bool:
    """Return True if a fused call is a step: it has one query for each sequence."""
    seq_q = query.shape[2 if layout.startswith("BNSD") else 1] if len(query.shape) > 2 else 0
    if seq_q == UNKNOWN and (mode not in (DEFAULT_MASK, RIGHT_DOWN_CAUSAL) or mask is not None):
        raise ValueError(
            f"query: got shape {query.shape} in a graph for dynamic shapes; allowed is a known length, unless "
            "sparse_mode is 3, or 0 without atten_mask"
        )
    return seq_q == 1


def _keys_shown(name: str, given: TensorSpec, shapes: tuple) -> None:
    """Raise unless the last axis is there and the others are one of these shapes."""
    if not any(len(one) + 1 == len(given.shape) and all(map(fits, one, given.shape)) for one in shapes):
        allowed = " or ".join(str((*one, "keys")) for one in shapes).replace("'", "")
        raise ValueError(f"{name}: got shape {given.shape}, allowed is {allowed}")


def _mask_of_one(mask: TensorSpec, specs: tuple) -> TensorSpec:
    """Return the mask of a step as prompts have it."""
    batch = _batch(specs[0])
    _keys_shown("attn_mask", mask, ((batch,), (batch, 1), (batch, 1, 1)))
    return mask._replace(shape=(batch, 1, 1, mask.shape[-1]))


class _Lengths(nn.Cell):
    """Check lengths in PYNATIVE on a CPU. In graphs, wrong ones give NaN."""

    def __init__(self, name: str, most: int):
        super().__init__()
        looks = ms.get_context("device_target") == "CPU" and most != UNKNOWN
        self.check = NumberCheck((lambda lengths: check_range(name, lengths, most)) if looks else None)

    def construct(self, lengths):
        self.check(lengths)
        return as_int32(lengths)


class _Prompt(EntryCell):
    """Attention of whole prompts by `flash_attention`."""

    def __init__(self, settings: Settings, kv_heads: int, specs: tuple, with_lse: bool, turns: bool, clears: bool):
        super().__init__()
        self.clears = clears
        query, key, value, mask, shift, lengths_q, lengths_k, _ = specs
        layout, compressed = settings.input_layout, settings.sparse_mode in (LEFT_UP_CAUSAL, RIGHT_DOWN_CAUSAL, BAND)
        self.mask_shape: tuple = ()
        if mask is not None:
            shape = mask.shape
            if compressed and len(shape) in (3, 4) and set(shape[:-2]) == {1}:
                shape = shape[-2:]
            elif len(shape) == 3:
                shape = (shape[0], 1, *shape[1:])
            self.mask_shape = tuple(-1 if size == UNKNOWN else size for size in shape)
            mask = TensorSpec(shape, "bool")
        call = read_call(settings, (query, key, value, None, None, mask), None)
        batch, _, seq_q, seq_k = call.sizes.scores
        if call.sizes.kv_heads != kv_heads:
            raise ValueError(
                f"num_key_value_heads: got {kv_heads} (0 is num_heads), but key has {call.sizes.kv_heads} heads"
            )
        self.takes_mask, self.hides = call.takes_mask, Hides()
        # Lengths align each sequence by itself.
        self.aligned = call.causal_alignment == "bottom_right" and (lengths_q is not None or lengths_k is not None)
        self.left, self.right = call.window_size if settings.sparse_mode == BAND else (-1, 0)
        if self.aligned:
            call = call._replace(causal=False, causal_alignment="top_left", window_size=(-1, -1))
        if shift is not None:
            _check_shift(shift, call)
        self.prepared, self.attend = Prepared(call, None), Attend(call, with_lse, False)
        self.lengths = nn.CellList([_Lengths("actual_seq_lengths", seq_q), _Lengths("actual_seq_lengths_kv", seq_k)])
        self.axis = 2 if layout == "BNSD" else 1
        self.between, self.behind = (layout == "BNSD", 1 if layout != "BSND" else 2)
        self.seq_q, self.seq_k = seq_q, seq_k
        self.scale, self.with_lse, self.turns = float(settings.scale_value), with_lse, turns
        self.wide = query.dtype != "bfloat16"

    def construct(self, query, key, value, mask, shift, lengths_q, lengths_k, tables):
        hidden, bias = None, None
        if self.takes_mask:
            hidden = self.hides(ops.reshape(mask, self.mask_shape))
        hidden = self.prepared(None, hidden)[0]
        if shift is not None:
            bias = ops.cast(shift[:, :, : query.shape[self.axis], : key.shape[self.axis]], mstype.float32)
        rows = columns = None
        if lengths_q is not None or lengths_k is not None:
            rows = ops.reshape(self.numbers(query, self.seq_q), (1, -1))
            columns = ops.reshape(self.numbers(key, self.seq_k), (1, -1))
        if self.aligned:
            hidden = self.or_hidden(hidden, self.out_of_band(rows, columns, lengths_q, lengths_k))
        if lengths_k is not None:
            lengths = ops.reshape(self.lengths[1](lengths_k), (-1, 1))
            behind = columns >= lengths
            hidden = self.or_hidden(hidden, ops.expand_dims(ops.expand_dims(behind, 1), 1))
            if self.clears:
                places = self.of_tensor(behind)
                key, value = filled_where(key, places, 0.0), filled_where(value, places, 0.0)
        output = self.attend(query, key, value, hidden, bias, None, None, None, None, self.scale, None)
        logsumexp = filled((1,), 0.0)
        if self.with_lse:
            output, logsumexp = output
        if lengths_q is not None:
            behind = rows >= ops.reshape(self.lengths[0](lengths_q), (-1, 1))
            output, logsumexp = self.filled(output, logsumexp, behind, 0.0, float("-inf"))
            output, logsumexp = self.marked(output, logsumexp, lengths_q, rows)
        if lengths_k is not None:
            output, logsumexp = self.marked(output, logsumexp, lengths_k, columns)
        if self.with_lse:
            logsumexp = ops.expand_dims(logsumexp, -1)
        if self.turns and self.wide:
            output = ops.transpose(output, (0, 2, 1, 3))
        elif self.turns:
            output = ops.cast(ops.transpose(ops.cast(output, mstype.float32), (0, 2, 1, 3)), output.dtype)
        return output, logsumexp

    def numbers(self, tensor, size):
        """Return the numbers of the tokens."""
        if size == UNKNOWN:
            return counted(tensor.shape[self.axis])
        return numbered(size)

    def or_hidden(self, hidden, more):
        if hidden is None:
            return more
        return ops.logical_or(hidden, more)

    def out_of_band(self, rows, columns, lengths_q, lengths_k):
        """Return (B or 1, 1, S, T), True outside the band of each sequence."""
        end_q, end_k = rows[:, -1:] + 1, columns[:, -1:] + 1
        if lengths_q is not None:
            end_q = ops.reshape(as_int32(lengths_q), (-1, 1))
        if lengths_k is not None:
            end_k = ops.reshape(as_int32(lengths_k), (-1, 1))
        position = ops.expand_dims(rows + end_k - end_q, 2)
        columns = ops.expand_dims(columns, 1)
        hidden = None
        if self.right >= 0:
            hidden = columns > position + self.right
        if self.left >= 0:
            hidden = self.or_hidden(hidden, columns < position - self.left)
        if hidden is None:
            hidden = ops.logical_and(columns > position, columns < position)
        return ops.expand_dims(hidden, 1)

    def of_tensor(self, tokens):
        """Return (B or 1, tokens) so that it broadcasts to a tensor in the layout."""
        if self.between:
            tokens = ops.expand_dims(tokens, 1)
        for _ in range(self.behind):
            tokens = ops.expand_dims(tokens, -1)
        return tokens

    def filled(self, output, logsumexp, tokens, number, of_lse):
        """Fill queries of both results."""
        if self.with_lse:
            logsumexp = ops.masked_fill(logsumexp, ops.expand_dims(tokens, 1), of_lse)
        return filled_where(output, self.of_tensor(tokens), number), logsumexp

    def marked(self, output, logsumexp, lengths, numbers):
        """Fill with NaN what has lengths that are not there."""
        lengths = ops.reshape(as_int32(lengths), (-1, 1))
        wrong = ops.logical_or(lengths < 0, lengths > numbers[:, -1:] + 1)
        return self.filled(output, logsumexp, wrong, float("nan"), float("nan"))


def _check_shift(shift: TensorSpec, call: FusedCall) -> None:
    batch, heads, seq_q, seq_k = call.sizes.scores
    shape = shift.shape
    if len(shape) != 4 or shape[0] not in (1, batch) or shape[1] != heads or shape[2] < seq_q or shape[3] < seq_k:
        raise ValueError(
            f"pse_shift: got shape {shape}, allowed are ({batch} or 1, {heads}, {seq_q}, {seq_k}) and longer last axes"
        )


class _Incremental(EntryCell):
    """Attention of one query for each sequence, by the cell of `PagedAttention`.

    Sequences of (B, T, H) are blocks of a cache. With the heads in front, each head is a sequence of its own.
    """

    def __init__(
        self, heads: int, scale: float, kv_heads: int, layout: str, block_size: int, specs: tuple, clears: bool
    ):
        super().__init__()
        query, key, value, mask, shift, _, lengths, tables = specs
        batch, self.shape = _batch(query), query.shape
        layout, _, after = layout.partition("_")
        self.turns = after != ""
        wanted = {"BSH": (batch, 1, -1), "BNSD": (batch, heads, 1, -1), "BSND": (batch, 1, heads, -1)}[layout]
        dim = query.shape[-1] // heads if layout == "BSH" else query.shape[-1]
        if len(query.shape) != len(wanted) or query.shape[:-1] != wanted[:-1] or query.shape[-1] % dim:
            raise ValueError(f"query: got shape {query.shape}, allowed is one query, {wanted}, in layout {layout}")
        check_int("num_key_value_heads", kv_heads, 1, heads)
        self.apart = layout == "BNSD" if tables is None else len(key.shape) == 4
        forms = [(-1, -1, kv_heads * dim)], [(-1, -1, kv_heads, dim)], [(-1, kv_heads, -1, dim)]
        allowed = forms[2] if self.apart else forms[1] if layout == "BSND" and tables is None else forms[0]
        for name, tensor in (("key", key), ("value", value)):
            check_dtype(name, tensor.dtype, (query.dtype,))
            if not _keys_fit(tensor.shape, allowed[0]) or not _keys_fit(tensor.shape, key.shape):
                raise ValueError(f"{name}: got shape {tensor.shape}, allowed is {allowed[0]} of key and value alike")
        size = key.shape[2 if self.apart else 1]
        if tables is not None and block_size not in (0, size):
            raise ValueError(f"block_size: got {block_size}, allowed are 0 and the tokens of a block of key, {size}")
        if tables is not None and lengths is None:
            raise ValueError("actual_seq_lengths_kv: got None with block_table, allowed is a length for each sequence")
        if tables is None and not fits(key.shape[0], batch):
            raise ValueError(f"key: got batch {key.shape[0]}, but query has batch {batch}; they must be equal")
        self.kv_heads, self.batch, self.keys, self.pages = kv_heads, batch, size, tables is not None
        self.cache = (-1, *((1, dim) if self.apart else (kv_heads, dim)))
        self.tail = (1, heads // kv_heads * dim) if self.apart else (1, heads * dim)
        self.biased, self.hides, self.heads = mask is not None or shift is not None, Hides(), heads
        times = kv_heads if self.apart else 1
        inner = heads // times
        rows = product((batch, times))
        bias = None
        if self.biased:
            bias = self._read_bias(mask, shift, (rows, inner, 1), heads)
        self.masked = mask is not None
        stored = TensorSpec((product((key.shape[0], times)), size, *self.cache[1:]), key.dtype)
        columns = 1 if tables is None else tables.shape[-1]
        self.check = _Lengths("actual_seq_lengths_kv", size if tables is None else product((size, columns)))
        self.paged = PagedCell(
            read_paged(
                (inner, scale, "DEFAULT", "MASK_DEFAULT", 0),
                (
                    *(TensorSpec((rows, *self.tail), query.dtype), stored, stored),
                    *(TensorSpec((rows, columns), "int32"), TensorSpec((rows,), "int32"), bias, None),
                ),
                self.biased,
            ),
            clears,
        )
        self.rows = (rows, inner, 1)

    def _read_bias(self, mask: TensorSpec | None, shift: TensorSpec | None, rows: tuple, heads: int) -> TensorSpec:
        if UNKNOWN in self.shape:
            raise ValueError(
                f"query: got shape {self.shape} in a graph for dynamic shapes beside attn_mask or pse_shift, allowed "
                "are known shapes there"
            )
        batch = self.batch
        if mask is not None:
            _keys_shown("attn_mask", mask, ((batch,), (batch, 1), (batch, 1, 1)))
        if shift is not None:
            _keys_shown("pse_shift", shift, ((batch, heads, 1), (1, heads, 1)))
        lengths = {one.shape[-1] for one in (mask, shift) if one is not None}
        if len(lengths) > 1:
            raise ValueError(f"pse_shift: got {shift and shift.shape[-1]} keys, allowed are {mask and mask.shape[-1]}")
        return TensorSpec((*rows, lengths.pop()), "float32")

    def construct(self, query, key, value, mask, shift, lengths_q, lengths, tables):
        numbers = counted(query.shape[0]) if self.batch == UNKNOWN else numbered(self.batch)
        if lengths is None:
            lengths = numbers * 0 + self.length(key)
        else:
            lengths = self.check(lengths)
            if lengths.shape[0] != self.batch:
                lengths = lengths + numbers * 0
        if not self.pages:
            tables = ops.reshape(numbers, (-1, 1))
        bias = None
        if self.biased:
            bias = self.bias(mask, shift)
        shape = key.shape[:2]
        if self.apart:
            of_head = ops.reshape(numbered(self.kv_heads), (1, -1, 1))
            tables = ops.expand_dims(as_int32(tables), 1) * self.kv_heads + of_head
            tables = ops.reshape(tables, (-1, tables.shape[-1]))
            lengths = ops.reshape(ops.expand_dims(lengths, 1) + of_head[0, :, 0] * 0, (-1,))
            shape = (-1, key.shape[2])
        key, value = reshaped(key, shape + self.cache[1:]), reshaped(value, shape + self.cache[1:])
        rows = reshaped(query, (-1,) + self.tail)
        output = self.paged(rows, key, value, tables, lengths, bias, None)
        shape = query.shape
        if self.turns:
            shape = (shape[0], 1, self.heads, shape[3])
        return reshaped(output, shape), filled((1,), 0.0)

    def length(self, key):
        return key.shape[2] if self.apart else key.shape[1]

    def bias(self, mask, shift):
        """Return what is added to the scores, -inf where a key is hidden."""
        bias = filled((self.batch, self.heads, 1, 1), 0.0)
        if shift is not None:
            bias = bias + ops.cast(shift, mstype.float32)
        if self.masked:
            hidden = ops.reshape(self.hides(mask), (self.batch, 1, 1, -1))
            bias = ops.masked_fill(bias + ops.cast(hidden, mstype.float32) * 0, hidden, float("-inf"))
        return ops.reshape(bias, self.rows + (-1,))


def _keys_fit(shape: tuple, allowed: tuple) -> bool:
    return len(shape) == len(allowed) and all(map(fits, shape, allowed))
