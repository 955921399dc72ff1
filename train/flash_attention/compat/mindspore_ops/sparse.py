"""`lightning_indexer` and `sparse_flash_attention`: choose keys for each query, and attention to these alone."""

from __future__ import annotations

from typing import Any

from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from flash_attention.backends import registry
from flash_attention.bridge.constants import filled, numbered
from flash_attention.bridge.parameters import EntryCell
from flash_attention.bridge.precision import fix_dtypes
from flash_attention.bridge.tensors import as_int32, compile_time, read_specs, remembered, spec, tensor_spec
from flash_attention.call.checks import INTEGERS, check_bool, check_dtype, check_int, check_name, check_real
from flash_attention.call.inputs import DTYPES, TensorSpec
from flash_attention.call.layout import UNKNOWN
from flash_attention.compat.mindspore_ops.operators import primitive_of
from flash_attention.compat.mindspore_ops.reshaped import reshaped
from flash_attention.compat.mindspore_ops.signatures import arguments_of
from flash_attention.functional import flash_attention
from flash_attention.paged import paged_attention

_LENGTHS = "actual_seq_lengths_query", "actual_seq_lengths_kv"
_RULES = "layout_query", "layout_kv", "sparse_mode"
_ATTENTION = (
    *("query", "key", "value", "sparse_indices", *_LENGTHS, "query_rope", "key_rope", "scale_value", *_RULES),
    *("sparse_block_size", "attention_mode", "return_softmax_lse"),
)
_INDEXER = ("query", "key", "weights", *_LENGTHS, *_RULES, "sparse_count")
_CAUSAL = 3  # sparse_mode: aligned bottom right


def sparse_flash_attention(*given, **named):
    """Compute `mindspore.ops.sparse_flash_attention`: each query sees the keys in `sparse_indices`.

    Indices count inside their sequence, and one that comes twice counts once. Backend `cpu` reads the listed keys only:
    `paged_attention` with pages of one key. Its gradient, and backend `math`, compute all scores under a mask.

    Args:
        query (Tensor): (B, S1, N1, D), or (T1, N1, D) in layout "TND"; float16, bfloat16 or float32.
        key, value (Tensor): (B, S2, 1, D) or (T2, 1, D).
        sparse_indices (Tensor): ints (B, S1, 1, count) or (T1, 1, count); numbers that are no key count for nothing.
        scale_value (float): factor on the scores.
        actual_seq_lengths_query, actual_seq_lengths_kv (Tensor): ints (B,), in "TND" the ends of the sequences.
        query_rope, key_rope (Tensor): like query and key, further columns of both.
        sparse_block_size (int): keys that an index stands for, one behind the other.
        layout_query, layout_kv (str): "BSND" or "TND", both alike.
        sparse_mode (int): 0, or 3: also causal, aligned bottom right.
        attention_mode (int): 2 with query_rope and key_rope.
        return_softmax_lse (bool): refused if True: maxima and sums are not computed.

    Returns:
        The output like query, as wide as value, and two Tensors of no use, ().

    Raises:
        TypeError, ValueError: an argument is not allowed.
    """
    found = arguments_of("sparse_flash_attention", _ATTENTION, given, named)
    query, key, value, indices, lengths_q, lengths_k, query_rope, key_rope = found[:8]
    tensors = spec(query), spec(key), spec(value), spec(indices), spec(lengths_q), spec(lengths_k)
    run = _prepared(found[8:], (*tensors, spec(query_rope), spec(key_rope)))
    return run(query, key, value, indices, lengths_q, lengths_k, query_rope, key_rope)


def lightning_indexer(*given, **named):
    """Compute `mindspore.ops.lightning_indexer`: the keys with the highest scores for each query.

    The score is the sum over heads of weight * relu(query @ key). It has no gradient through the indices.

    Args:
        query (Tensor): (B, S1, N1, D), or (T1, N1, D) in layout "TND"; float16, bfloat16 or float32.
        key (Tensor): (B, S2, 1, D) or (T2, 1, D).
        weights (Tensor): (B, S1, N1) or (T1, N1).
        actual_seq_lengths_query, actual_seq_lengths_key (Tensor): as in `sparse_flash_attention`.
        layout_query, layout_key (str): "BSND" or "TND", both alike.
        sparse_count (int): indices of each query.
        sparse_mode (int): 0, or 3: causal, aligned bottom right.
        return_value (bool): without effect.

    Returns:
        The indices in their sequence, int32 (B, S1, 1, sparse_count) or (T1, 1, sparse_count), falling by score, -1
        where there is no key; and the scores, dtype of query, -inf there.

    Raises:
        TypeError, ValueError: an argument is not allowed.
    """
    found = arguments_of("lightning_indexer", _INDEXER, given, named)
    query, key, weights, lengths_q, lengths_k = found[:5]
    tensors = spec(query), spec(key), spec(weights), spec(lengths_q), spec(lengths_k)
    return _prepared_index(found[5:], tensors)(query, key, weights, lengths_q, lengths_k)


SparseFlashAttention = primitive_of("SparseFlashAttention", sparse_flash_attention)


LightningIndexer = primitive_of("LightningIndexer", lightning_indexer)


@compile_time
def _prepared(settings, specs):
    required = tuple(map(tensor_spec, _ATTENTION[:4], specs[:4]))
    reads_lists = registry.serves_native() and registry.forced_backend() in (None, "cpu")
    return _cell(tuple(settings), (*required, *read_specs(_ATTENTION[4:8], specs[4:])), reads_lists)


@compile_time
def _prepared_index(settings, specs):
    required = tuple(map(tensor_spec, _INDEXER[:3], specs[:3]))
    return _index_cell(tuple(settings), (*required, *read_specs(_LENGTHS, specs[3:])))


@remembered
def _cell(settings: tuple, specs: tuple, reads_lists: bool) -> nn.Cell:
    scale, *rules, block, mode, with_lse = settings
    query, key, value, indices, *_, query_rope, key_rope = specs
    _check(rules, (("query", query), ("key", key), ("value", value)), specs[4:6])
    check_dtype("sparse_indices", indices.dtype, INTEGERS)
    if indices.shape[:-1] != (*query.shape[:-2], 1):
        allowed = (*query.shape[:-2], 1, "count")
        raise ValueError(f"sparse_indices: got shape {indices.shape}, allowed is {allowed}".replace("'", ""))
    check_int("sparse_block_size", block, 1)
    if check_bool("return_softmax_lse", with_lse):
        raise ValueError("return_softmax_lse: got True, allowed is False; maxima and sums are not computed")
    if (mode == 2) != (query_rope is not None) or (mode == 2) != (key_rope is not None) or mode not in (0, 2):
        raise ValueError(
            f"attention_mode: got {mode!r}, allowed are 2 with query_rope and key_rope, and 0 without both of them"
        )
    for name, rope, like in (("query_rope", query_rope, query), ("key_rope", key_rope, key)):
        if rope is not None and (rope.shape[:-1] != like.shape[:-1] or rope.dtype != query.dtype):
            raise ValueError(f"{name}: got {rope.dtype} {rope.shape}, allowed is {query.dtype} {like.shape[:-1]} + D")
    attend = (_Listed if reads_lists else _Hidden)(check_real("scale_value", scale))
    return fix_dtypes(_Sparse(attend, block, _Tokens(rules, query, key), value))


@remembered
def _index_cell(settings: tuple, specs: tuple) -> nn.Cell:
    *rules, count = settings
    query, key, weights = specs[:3]
    _check(rules, (("query", query), ("key", key)), specs[3:5])
    check_dtype("weights", weights.dtype, DTYPES)
    if weights.shape != query.shape[:-1]:
        raise ValueError(f"weights: got shape {weights.shape}, allowed is {query.shape[:-1]}")
    check_int("sparse_count", count, 1)
    return fix_dtypes(_Index(count, _Tokens(rules, query, key), query))


def _check(rules: list, tensors: tuple, lengths: tuple) -> None:
    layout, of_keys, mode = rules
    check_name("layout_query", layout, ("BSND", "TND"))
    check_name("layout_kv", of_keys, (layout,))
    if mode not in (0, _CAUSAL) or isinstance(mode, bool):
        raise ValueError(f"sparse_mode: got {mode!r}, allowed are 0 and 3")
    query, packed = tensors[0][1], layout == "TND"
    for name, one in tensors:
        check_dtype(name, one.dtype, DTYPES)
        if one.dtype != query.dtype:
            raise TypeError(f"{name}: got dtype {one.dtype}, but query is {query.dtype}; they must be equal")
        if UNKNOWN in one.shape:
            raise ValueError(f"{name}: got shape {one.shape} in a graph for dynamic shapes, allowed are known shapes")
        rank, heads = (3, 4)[not packed], name == "query" or one.shape[-2:-1] == (1,)
        if len(one.shape) != rank or not heads or not packed and one.shape[0] != query.shape[0]:
            allowed = "(T, N, D)" if packed else "(B, S, N, D)"
            raise ValueError(f"{name}: got shape {one.shape}, allowed is {allowed}, N = 1 but in query, and one batch")
    for name, one in zip(_LENGTHS, lengths):
        if one is None:
            if packed:
                raise ValueError(f"{name}: got None with layout 'TND', allowed are the ends of the sequences")
            continue
        check_dtype(name, one.dtype, INTEGERS)
        if len(one.shape) != 1 or not packed and one.shape != query.shape[:1]:
            raise ValueError(f"{name}: got shape {one.shape}, allowed is (B,)")


class _Tokens(nn.Cell):
    """Say which keys each query may see. Packed tokens are one batch item."""

    def __init__(self, rules: list, query: TensorSpec, key: TensorSpec):
        super().__init__()
        self.packed, self.causal = rules[0] == "TND", rules[2] == _CAUSAL
        self.seq_q, self.seq_k = query.shape[-3], key.shape[-3]

    def construct(self, lengths_q, lengths_k):
        """Return the first key of each query's sequence, and the end of its visible keys.

        Both are (B or 1, S1, 1).
        """
        row = ops.reshape(numbered(self.seq_q), (1, -1, 1))
        if self.packed:
            begin_q, end_q = self.around(row, lengths_q)
            begin, end = self.around(row, lengths_q, lengths_k)
            behind = row - begin_q + begin + (end - begin) - (end_q - begin_q) + 1
        else:
            begin, end_q, end = row * 0, row * 0 + self.seq_q, row * 0 + self.seq_k
            if lengths_q is not None:
                end_q = row * 0 + ops.reshape(as_int32(lengths_q), (-1, 1, 1))
            if lengths_k is not None:
                end = row * 0 + ops.reshape(as_int32(lengths_k), (-1, 1, 1))
            behind = row + end - end_q + 1
            end = ops.select(row < end_q, end + end_q * 0, (end + end_q) * 0)
        if self.causal:
            end = ops.minimum(end, behind)
        return begin, end

    def around(self, row, ends, others=None):
        """Return begin and end of each row's sequence, or of its `others`."""
        ends = ops.reshape(ops.cast(ends, mstype.float32), (1, 1, -1))
        begins = ops.concat((ends[..., :1] * 0, ends[..., :-1]), -1)
        wide = ops.cast(row, mstype.float32)
        mine = ops.cast(ops.logical_and(wide >= begins, wide < ends), mstype.float32)
        if others is not None:
            ends = ops.reshape(ops.cast(others, mstype.float32), (1, 1, -1))
            begins = ops.concat((ends[..., :1] * 0, ends[..., :-1]), -1)
        begin, end = (mine * begins).sum(-1), (mine * ends).sum(-1)
        return ops.expand_dims(ops.cast(begin, mstype.int32), -1), ops.expand_dims(ops.cast(end, mstype.int32), -1)


class _Sparse(EntryCell):
    """List the keys of each query, and attend to these."""

    def __init__(self, attend: nn.Cell, block: int, tokens: _Tokens, value: TensorSpec):
        super().__init__()
        self.attend, self.block, self.tokens = attend, block, tokens
        self.nothing = Tensor(float("nan"), getattr(mstype, value.dtype))

    def construct(self, query, key, value, indices, lengths_q, lengths_k, query_rope, key_rope):
        if query_rope is not None:
            query, key = self.joined(query, query_rope), self.joined(key, key_rope)
        begin, end = self.tokens(lengths_q, lengths_k)
        rows = (query, key, value)
        if self.tokens.packed:
            rows = tuple([reshaped(one, (1,) + one.shape) for one in rows])
            indices = ops.expand_dims(indices, 0)
        output = self.attend(*rows, *self.listed(ops.squeeze(as_int32(indices), 2), begin, end))
        if self.tokens.packed:
            output = reshaped(output, output.shape[1:])
        return output, self.nothing, self.nothing

    def listed(self, indices, begin, end):
        """Return the keys of each query without repeats, and their number.

        The shapes are (B, S1, most) and (B, S1).
        """
        keys, blocks = self.tokens.seq_k, -(-self.tokens.seq_k // self.block)
        absent = ops.logical_or(indices < 0, indices >= blocks)
        first = ops.select(absent, indices * 0 + keys, indices * self.block + begin)
        key = ops.expand_dims(first, -1) + numbered(self.block)
        key = ops.reshape(key, indices.shape[:2] + (indices.shape[2] * self.block,))
        # The column behind the last key takes what is none.
        key = ops.select(key < end, key, key * 0 + keys)
        place = key * 0 + numbered(key.shape[2])
        owner = scattered(key, place, keys)
        kept = ops.logical_and(key < keys, ops.equal(ops.gather_elements(owner, 2, key), place))
        counted = ops.cumsum(ops.cast(kept, mstype.float32), 2)
        place = ops.select(kept, ops.cast(counted, mstype.int32) - 1, place * 0 + key.shape[2])
        listed = scattered(place, key, key.shape[2])[..., : min(key.shape[2], keys)]
        return listed, ops.cast(counted[..., -1], mstype.int32)

    def joined(self, tensor, columns):
        wide = ops.concat((ops.cast(tensor, mstype.float32), ops.cast(columns, mstype.float32)), -1)
        return ops.cast(wide, tensor.dtype)


def scattered(places, numbers, columns):
    """Return int32 (B, S1, columns + 1), 0 where no number has its place."""
    zeros = ops.cast(filled(places.shape[:2] + (columns + 1,), 0.0), mstype.int32)
    return ops.tensor_scatter_elements(zeros, places, numbers, 2)


class _Hidden(nn.Cell):
    """Attention under a mask of what is in no list."""

    def __init__(self, scale: float):
        super().__init__()
        self.rules: dict[str, Any] = {"scale": scale, "input_layout": "BSND"}

    def construct(self, query, key, value, listed, counts):
        keys = key.shape[1]
        counts = ops.expand_dims(counts, -1)
        places = ops.select(numbered(listed.shape[2]) < counts, listed, listed * 0 + keys)
        hidden = ops.equal(scattered(places, places * 0 + 1, keys)[..., :keys], 0)
        return flash_attention(query, key, value, ops.expand_dims(hidden, 1), **self.rules)


class _Listed(nn.Cell):
    """Attention that reads the keys in the lists alone. Its gradient is the gradient of `_Hidden`."""

    def __init__(self, scale: float):
        super().__init__()
        self.scale, self.hidden = scale, _Hidden(scale)
        self.gradient = ops.GradOperation(get_all=True, sens_param=True)

    def construct(self, query, key, value, listed, counts):
        sequence = ops.reshape(numbered(key.shape[0]), (-1, 1, 1)) * key.shape[1]
        tables = ops.reshape(listed + sequence, (-1, listed.shape[2]))
        caches = [reshaped(one, (-1, 1) + one.shape[2:]) for one in (key, value)]
        rows = reshaped(query, (-1,) + query.shape[2:])
        output = paged_attention(rows, *caches, tables, ops.reshape(counts, (-1,)), scale=self.scale, causal=False)
        return reshaped(output, query.shape[:-1] + output.shape[-1:])

    def bprop(self, query, key, value, listed, counts, out, dout):
        return self.gradient(self.hidden)(query, key, value, listed, counts, dout)


class _Index(EntryCell):
    """Score all keys, one head after the other, and take the best."""

    def __init__(self, count: int, tokens: _Tokens, query: TensorSpec):
        super().__init__()
        self.count, self.tokens, self.heads = count, tokens, query.shape[-2]
        self.product = ops.BatchMatMul(transpose_b=True)

    def construct(self, query, key, weights, lengths_q, lengths_k):
        dtype = query.dtype
        query, key, weights = (ops.cast(one, mstype.float32) for one in (query, key, weights))
        if self.tokens.packed:
            query, key, weights = (ops.expand_dims(one, 0) for one in (query, key, weights))
        key, scores = key[:, :, 0], None
        for head in range(self.heads):
            one = ops.relu(self.product(query[:, :, head], key)) * weights[:, :, head : head + 1]
            scores = one if scores is None else scores + one
        begin, end = self.tokens(lengths_q, lengths_k)
        column = ops.reshape(numbered(self.tokens.seq_k), (1, 1, -1))
        hidden = ops.logical_or(column < begin, column >= end)
        scores = ops.masked_fill(scores, hidden, float("-inf"))
        most = min(self.count, self.tokens.seq_k)
        values, indices = ops.topk(scores, most)
        absent = ops.equal(values, float("-inf"))
        indices = ops.select(absent, indices * 0 - 1, indices - begin)
        if most < self.count:
            rest = filled(indices.shape[:2] + (self.count - most,), float("-inf"))
            values = ops.concat((values, rest), -1)
            indices = ops.concat((indices, ops.cast(rest * 0, mstype.int32) * 0 - 1), -1)
        shape = indices.shape[1:2] if self.tokens.packed else indices.shape[:2]
        shape = shape + (1, self.count)
        return ops.reshape(indices, shape), ops.cast(ops.reshape(values, shape), dtype)
