"""Compute a process's calls on another one's keys as MindSpore cells, and merge their results.

Softmax over a union of key sets follows from the outputs and logsumexps of the parts (Dao, "FlashAttention-2", 2023,
section 3.1; Liu et al., "Ring Attention with Blockwise Transformers", 2023). Backward, each part is differentiated with
the logsumexp and output of the whole, which makes its probabilities the probabilities of the whole.

Cells here run in GRAPH mode and PYNATIVE. Tensors are (batch, heads, seq, head_dim); sums are float32. Inputs may be of
a wider dtype than the attention, for devices that cannot cut up a tensor of the attention's dtype.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from flash_attention.backends import registry
from flash_attention.backends.base import Backend
from flash_attention.bridge.constants import filled
from flash_attention.call import Call, alibi_slopes
from flash_attention.call.visibility import UNLIMITED
from flash_attention.context_parallel.plan import BEFORE, SAME, Piece, pieces
from flash_attention.context_parallel.sequence import SequenceSplit

_NOTHING = -1e30  # logsumexp of a row that has seen nothing yet; finite, so that differences are


def piece_call(own: Call, piece: Piece) -> Call:
    """Return the Call of a piece. `own` has the process's tokens, and its rules hold in the whole sequence."""
    keys = piece.end_key - piece.first_key
    biased = own.rules.alibi and piece.side != SAME  # the distance to another chunk comes as a bias
    rules = replace(
        own.rules,
        causal=piece.right == 0,
        window_left=piece.left,
        window_right=UNLIMITED if piece.right == 0 else piece.right,
        prev_blocks=piece.prev_blocks,
        next_blocks=piece.next_blocks,
    )
    return replace(
        own,
        seq_q=piece.end_row - piece.first_row,
        seq_k=keys,
        sinks=False,  # `Start` has them
        prefix=own.prefix and piece.right == 0,
        segments=own.segments or piece.only_prefix,
        rules=rules,
        bias_shape=(1, own.heads, 1, keys) if biased else None,
        bias_dtype="float32" if biased else None,
    )


def distance_bias(call: Call, piece: Piece) -> tuple[np.ndarray, np.ndarray]:
    """Return ALiBi between chunks as two biases: of the key, (1, heads, 1, keys), and of the query, (1, heads, rows).

    All keys lie on one side of all queries, so -slope * |distance| is the sum of both. The query's bias adds to the
    logsumexp and does not change the softmax. Neither bias grows beyond the sum for the nearest key.
    """
    slopes = np.array(alibi_slopes(call))[None, :, None]
    rows, keys = np.arange(call.seq_q), np.arange(call.seq_k)
    if piece.side == BEFORE:
        of_key, of_query = keys - keys[-1], keys[-1] - piece.distance - rows
    else:
        of_key, of_query = -keys, rows + piece.distance
    return (slopes * of_key)[:, :, None].astype(np.float32), (slopes * of_query).astype(np.float32)


class PieceOptional(nn.Cell):
    """Select a call's prefix and segment ids, in the order of OPTIONAL.

    (prefix, row_ids, key_ids) -> the inputs among these three that the call has, for its rows and keys.
    Ids belong to the tokens that the two processes hold, (batch, seq). Inputs that the call lacks may be anything.
    If only the prefix is visible, other keys have an id that nobody sees.
    """

    def __init__(self, own: Call, piece: Piece, call: Call):
        super().__init__()
        self.prefixed, self.segmented, self.only_prefix = call.prefix, call.segments, piece.only_prefix
        self.given = own.segments
        self.first_row, self.end_row, self.first_key, self.end_key = piece[:4]
        self.position, self.keys = piece.position, call.seq_k
        if self.segmented:
            rows, keys = (np.zeros((own.batch, seq), np.int32) for seq in (call.seq_q, call.seq_k))
            self.row_ids, self.key_ids, self.unseen = Tensor(rows), Tensor(keys), Tensor(keys - 1)
            self.positions = Tensor(keys + np.arange(piece.position, piece.position + call.seq_k, dtype=np.int32))

    def construct(self, prefix, row_ids, key_ids):
        inputs = ()
        if self.prefixed:
            inputs = inputs + (ops.minimum(ops.maximum(prefix - self.position, 0), self.keys),)
        if self.segmented:
            rows, keys = self.row_ids, self.key_ids
            if self.given:
                rows, keys = row_ids[:, self.first_row : self.end_row], key_ids[:, self.first_key : self.end_key]
            if self.only_prefix:
                keys = ops.select(self.positions < ops.expand_dims(prefix, 1), keys, self.unseen)
            inputs = inputs + (rows, keys)
        return inputs


class _Piece(nn.Cell):
    """Hold the data of both passes of a call: its rows and keys, and the cells for prefix, segment ids and ALiBi."""

    def __init__(self, own: Call, piece: Piece, call: Call):
        super().__init__()
        self.optional = PieceOptional(own, piece, call)
        self.rows, self.keys = Span(*piece[0:2], own.seq_q), Span(*piece[2:4], own.seq_q)
        self.dtype = getattr(mstype, own.dtype)
        self.alibi = call.bias_shape is not None
        self.bias: tuple = ()
        if self.alibi:
            bias, self.row_bias = map(Tensor, distance_bias(call, piece))
            self.bias = (bias,)


class PieceForward(_Piece):
    """Add one call to the running result: (query, key, value, optional, output, logsumexp) -> (output, logsumexp).

    output is float32, logsumexp as `Start` makes it; `optional` are what PieceOptional takes.
    """

    def __init__(self, own: Call, piece: Piece, backend: str | None):
        call = piece_call(own, piece)
        super().__init__(own, piece, call)
        try:
            self.attention = registry.build(call, backend)
        except RuntimeError as error:
            if not self.alibi:
                raise
            raise RuntimeError(f"alibi: between parts of a sequence it is a bias in float32; {error}") from error

    def construct(self, query, key, value, optional, output, logsumexp):
        inputs = self.bias + self.optional(*optional)
        query = ops.cast(self.rows(query), self.dtype)
        key, value = ops.cast(self.keys(key), self.dtype), ops.cast(self.keys(value), self.dtype)
        part, part_sum = self.attention(query, key, value, inputs)
        if self.alibi:
            part_sum = part_sum + self.row_bias
        before, before_sum = self.rows(output), self.rows(logsumexp)
        part_sum = ops.cast(ops.maximum(part_sum, _NOTHING), before_sum.dtype)
        top = ops.maximum(before_sum, part_sum)
        weight, part_weight = ops.exp(before_sum - top), ops.exp(part_sum - top)
        total = weight + part_weight
        merged = before * _column(weight / total) + ops.cast(part, mstype.float32) * _column(part_weight / total)
        return self.rows.put(output, merged), self.rows.put(logsumexp, top + ops.log(total))


class PieceBackward(_Piece):
    """Add the gradients of one call, in float32.

    (query, key, value, optional, output, logsumexp, d_output, d_query, d_key, d_value) -> (d_query, d_key, d_value);
    output and logsumexp (float32) belong to the whole.
    """

    def __init__(self, own: Call, piece: Piece, backend: str | None):
        call = piece_call(own, piece)
        super().__init__(own, piece, call)
        chosen = registry.choose(call, backend)
        built = chosen.build_backward(call)
        self.gradients = _Differentiated(call, chosen) if built is None else built

    def construct(self, query, key, value, optional, output, logsumexp, d_output, d_query, d_key, d_value):
        logsumexp = self.rows(logsumexp)
        if self.alibi:
            logsumexp = logsumexp - self.row_bias
        of_query, of_key, of_value = self.gradients(
            ops.cast(self.rows(query), self.dtype),
            ops.cast(self.keys(key), self.dtype),
            ops.cast(self.keys(value), self.dtype),
            self.bias + self.optional(*optional),
            ops.cast(self.rows(output), self.dtype),
            logsumexp,
            ops.cast(self.rows(d_output), self.dtype),
        )
        return (
            self.rows.put(d_query, self.rows(d_query) + ops.cast(of_query, mstype.float32)),
            self.keys.put(d_key, self.keys(d_key) + ops.cast(of_key, mstype.float32)),
            self.keys.put(d_value, self.keys(d_value) + ops.cast(of_value, mstype.float32)),
        )


class _Differentiated(nn.Cell):
    """Compute gradients from the derivative of the forward cell. Serves backends without a backward pass of their own.

    The output of the whole is sum_i w_i output_i with w_i = exp(logsumexp_i - logsumexp). So the gradient of output_i
    is w_i d_output, and the gradient of logsumexp_i is w_i d_output . (output_i - output).
    """

    def __init__(self, call: Call, backend: Backend):
        super().__init__()
        self.attention = registry.build(call, backend)
        self.differentiate = ops.GradOperation(get_all=True, sens_param=True)
        self.precise = precise_dtype(call.device)

    def construct(self, query, key, value, inputs, output, logsumexp, d_output):
        attention = self.attention

        def run(query, key, value):  # no Cell: none is made in a graph
            return attention(query, key, value, inputs)

        part, part_sum = run(query, key, value)
        part_sum = ops.cast(ops.maximum(part_sum, _NOTHING), self.precise)
        weight = _column(ops.exp(part_sum - ops.cast(logsumexp, self.precise)))
        reaching = weight * ops.cast(d_output, mstype.float32)
        excess = ops.cast(part, mstype.float32) - ops.cast(output, mstype.float32)
        sensitivity = ops.cast(reaching, part.dtype), ops.sum(reaching * excess, -1)
        gradients = self.differentiate(run)(query, key, value, sensitivity)
        return gradients[0], gradients[1], gradients[2]


class SourceForward(nn.Cell):
    """All calls on the keys of one process: (query, pair, optional, output, logsumexp) -> (output, logsumexp).

    `pair` is that process's key and value, see `Pair`, and `optional` are what PieceOptional takes.
    """

    def __init__(self, own: Call, found: tuple[Piece, ...], backend: str | None):
        super().__init__()
        self.count = len(found)
        self.pair = Pair(own)
        self.pieces = nn.CellList([PieceForward(own, piece, backend) for piece in found])

    def construct(self, query, pair, optional, output, logsumexp):
        key, value = self.pair.split(pair)  # also if no call needs them: a graph wants the names
        for index in range(self.count):
            output, logsumexp = self.pieces[index](query, key, value, optional, output, logsumexp)
        return output, logsumexp


class SourceBackward(nn.Cell):
    """The gradients of these calls, in float32.

    (query, pair, optional, output, logsumexp, d_output, d_query) -> (d_query, d_pair).
    """

    def __init__(self, own: Call, found: tuple[Piece, ...], backend: str | None):
        super().__init__()
        self.count = len(found)
        self.pieces = nn.CellList([PieceBackward(own, piece, backend) for piece in found])
        self.pair = Pair(own)

    def construct(self, query, pair, optional, output, logsumexp, d_output, d_query):
        d_key, d_value = filled(self.pair.key, 0), filled(self.pair.value, 0)
        key, value = self.pair.split(pair)  # also if no call needs them: a graph wants the names
        for index in range(self.count):
            d_query, d_key, d_value = self.pieces[index](
                query, key, value, optional, output, logsumexp, d_output, d_query, d_key, d_value
            )
        return d_query, self.pair.join(d_key, d_value)


class Sources(nn.Cell):
    """Hold a process's calls on the keys of some processes, and the ids for them.

    Args:
        kinds: SourceForward, SourceBackward or both.
    """

    def __init__(self, own: Call, split: SequenceSplit, rank: int, sources: list[int], backend: str | None, *kinds):
        super().__init__()
        length = own.seq_q // split.chunks_per_process
        self.pair = Pair(own)
        self.shares = nn.CellList([Share(split.chunks(source), length, own) for source in sources])
        found = [pieces(split, own.rules, length, rank, source, own.prefix) for source in sources]
        self.passes = nn.CellList([nn.CellList([kind(own, one, backend) for one in found]) for kind in kinds])


class Span(nn.Cell):
    """Indices [start, stop) of axis 2 of a tensor: takes them, or puts others in their place."""

    def __init__(self, start: int, stop: int, size: int):
        super().__init__()
        self.start, self.stop, self.size = start, stop, size
        self.concatenate = ops.Concat(2)

    def construct(self, tensor):
        if self.stop - self.start == self.size:
            return tensor
        return tensor[:, :, self.start : self.stop]

    def put(self, tensor, part):
        """Return `tensor` with `part` in place of the span."""
        if self.stop - self.start == self.size:
            return part
        if self.start == 0:
            return self.concatenate((part, tensor[:, :, self.stop :]))
        if self.stop == self.size:
            return self.concatenate((tensor[:, :, : self.start], part))
        return self.concatenate((tensor[:, :, : self.start], part, tensor[:, :, self.stop :]))


class Start(nn.Cell):
    """The running result before the first call: zeros, and the logsumexp of nothing or of the sinks.

    So the sinks count once.
    """

    def __init__(self, own: Call):
        super().__init__()
        self.shape = own.batch, own.heads, own.seq_q
        self.value_dim, self.has_sinks = own.value_dim, own.sinks
        self.precise = precise_dtype(own.device)

    def construct(self, sinks):
        output = filled(self.shape + (self.value_dim,), 0)
        logsumexp = ops.cast(filled(self.shape, _NOTHING), self.precise)
        if self.has_sinks:
            logsumexp = ops.maximum(logsumexp, ops.reshape(ops.cast(sinks, self.precise), (1, -1, 1)))
        return output, logsumexp


class SinksGradient(nn.Cell):
    """Compute a process's part of the gradient of the sinks: (sinks, output, logsumexp, d_output) -> (heads,)."""

    def __init__(self, own: Call):
        super().__init__()
        self.has_sinks, self.precise = own.sinks, precise_dtype(own.device)

    def construct(self, sinks, output, logsumexp, d_output):
        if not self.has_sinks:
            return ops.zeros_like(sinks)
        sums = ops.sum(ops.cast(output, mstype.float32) * ops.cast(d_output, mstype.float32), -1)
        above = ops.reshape(ops.cast(sinks, self.precise), (1, -1, 1)) - ops.cast(logsumexp, self.precise)
        return -ops.cast(ops.sum(ops.exp(above) * ops.cast(sums, self.precise), (0, 2)), mstype.float32)


class Share(nn.Cell):
    """Select the ids of a process's tokens, (batch, seq), from the whole sequence's ids."""

    def __init__(self, chunks: tuple[int, ...], length: int, own: Call):
        super().__init__()
        self.given = own.segments
        self.spans = tuple((chunk * length, (chunk + 1) * length) for chunk in chunks)

    def construct(self, ids):
        if not self.given:
            return ids
        parts = ()
        for first, end in self.spans:
            parts = parts + (ids[:, first:end],)
        return ops.concat(parts, 1)


class Pair(nn.Cell):
    """Join key and value of a process to one flat tensor. It travels at once, whatever the widths."""

    def __init__(self, own: Call):
        super().__init__()
        rows = own.batch, own.kv_heads, own.seq_q
        self.key, self.value = (*rows, own.head_dim), (*rows, own.value_dim)
        self.border = int(np.prod(self.key))
        self.size = self.border + int(np.prod(self.value))

    def join(self, key, value):
        """Join a key and a value to a pair. On a CPU, Stack takes no bfloat16 (2.10)."""
        return ops.concat((ops.reshape(key, (-1,)), ops.reshape(value, (-1,))))

    def split(self, pair):
        """Split a pair into (key, value)."""
        return ops.reshape(pair[: self.border], self.key), ops.reshape(pair[self.border :], self.value)


def precise_dtype(device: str):
    """Return the dtype in which logsumexps are merged: MindSpore's float32 exp errs by up to 7e-6 on a CPU (2.10)."""
    return mstype.float64 if device == "CPU" else mstype.float32


def _column(rows):
    """Reshape (batch, heads, rows) to float32 (batch, heads, rows, 1)."""
    return ops.expand_dims(ops.cast(rows, mstype.float32), -1)
