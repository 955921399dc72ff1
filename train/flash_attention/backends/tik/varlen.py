"""Run packed sequences by the TIK operators, as a MindSpore Cell. The Cell is the same for a device and for the
emulator.
"""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from flash_attention.backends.composed.varlen_loop import sequences_alone
from flash_attention.backends.tik import graph_integers
from flash_attention.backends.tik.cell import SpreadSinks, kernels
from flash_attention.backends.tik.constants import NOTHING_SEEN, MakePrimitive
from flash_attention.backends.tik.limits import MAX_KEEP_BYTES, refuse_on_910
from flash_attention.bridge.constants import filled
from flash_attention.call import Call
from flash_attention.kernels.tik import describe, layout, varlen
from flash_attention.kernels.tik.problem import Chip, padded


class VarlenOperators(nn.Cell):
    """One packed call; see Backend.build for the meaning of the tensors.

    MindSpore's own operations on small integer tensors make the kernels' work tables in the graph. Lengths that are on
    the device need not come to the host, and a graph serves all of them.

    Args:
        call: what to run.
        make_primitive: makes the primitive of a kernel.
        draw: a Cell that draws keep bits, draw(seed, ends_q, ends_k) -> uint8, see layout.keep_shape.
        chip: that the kernels are planned for.
        check: a Cell, check(lengths_q, lengths_k), that returns them, or fails if they are not allowed. Without it,
            lengths that are not allowed make the results NaN.
    """

    def __init__(
        self,
        call: Call,
        make_primitive: MakePrimitive,
        draw: nn.Cell | None,
        chip: Chip,
        check: nn.Cell | None = None,
    ):
        super().__init__()
        described = describe.kernel_problem(call, **chip._asdict())
        self.slopes = call.place("alibi_slopes")
        self.core = kernels(described, make_primitive, self.slopes is not None)
        given = not call.varlen.constant
        self.check = check if given else None
        self.allowed = None
        if given and check is None:
            self.allowed = nn.CellList([_Allowed(call.varlen.count, size) for size in (call.seq_q, call.seq_k)])
        self.sequences = call.varlen.count
        self.lengths_q, self.lengths_k = (
            None if lengths is None else Tensor(np.array(lengths, np.int32))
            for lengths in (call.varlen.ends_q, call.varlen.ends_k)
        )
        self.queries, self.keys = _Matrix(call.heads, call.head_dim), _Matrix(call.kv_heads, call.head_dim)
        self.values = _Matrix(call.kv_heads, call.value_dim)
        self.heads, self.value_dim, self.padded_dim = call.heads, call.value_dim, described.call.value_dim
        self.output_shape = call.laid_out(call.shape_output())
        self.return_lse = call.return_lse
        if call.return_lse:
            self.describe = (varlen.sequences(graph_integers, described),)
            self.stored = (varlen.stored_rows_of_tokens(graph_integers, described),)
        self.spread, self.draw = SpreadSinks(1, None), draw
        self.seed, self.sinks, self.prefix = map(call.place, ("seed", "sinks", "prefix"))
        self.nothing = Tensor(np.zeros(1, np.float16))
        self.no_prefix = Tensor(np.zeros(call.varlen.count, np.int32))

    def construct(self, query, key, value, lengths_q, lengths_k, inputs):
        lengths_q = lengths_q if self.lengths_q is None else self.lengths_q
        lengths_k = lengths_k if self.lengths_k is None else self.lengths_k
        if self.check is not None:
            lengths_q, lengths_k = self.check(lengths_q, lengths_k)
        ends_q, ends_k = self.ends(lengths_q), self.ends(lengths_k)
        factor = None
        if self.allowed is not None:
            (ends_q, factor), (ends_k, other) = self.allowed[0](ends_q), self.allowed[1](ends_k)
            factor = ops.stop_gradient(factor * other)
        keep, spread, prefix = self.nothing, self.nothing, self.no_prefix
        if self.seed is not None:
            keep = ops.stop_gradient(self.draw(inputs[self.seed], ends_q, ends_k))
        if self.sinks is not None:
            spread = self.spread(inputs[self.sinks])
        if self.prefix is not None:
            prefix = inputs[self.prefix]
        slopes = self.nothing
        if self.slopes is not None:
            slopes = ops.reshape(inputs[self.slopes], (-1,))
        others = (self.nothing, self.nothing, keep, spread, slopes, ends_q, ends_k, prefix)
        output, logsumexp = self.core(self.queries(query), self.keys(key), self.values(value), others)
        if self.padded_dim > self.value_dim:
            output = ops.reshape(output, (-1, self.heads, self.padded_dim))[:, :, : self.value_dim]
        if self.return_lse:
            rows = self.stored[0](self.describe[0](ends_q, ends_k, prefix))
            logsumexp = ops.gather(logsumexp[0], ops.stop_gradient(rows), 1)
        output = ops.reshape(output, self.output_shape)
        logsumexp = ops.masked_fill(logsumexp, logsumexp < NOTHING_SEEN, -float("inf"))
        if factor is not None:
            output, logsumexp = output * ops.cast(factor, output.dtype), logsumexp * factor
        return output, logsumexp

    def ends(self, lengths):
        """Return the sequences' ends as int32 (sequences,). A leading 0 is left out."""
        return ops.stop_gradient(ops.cast(lengths[lengths.shape[0] - self.sequences :], mstype.int32))


class _Allowed(nn.Cell):
    """Give the ends of sequences, int32 (sequences,), and float32 (1,), which is 1.

    If the ends do not ascend from 0 to the number of rows, all rows belong to the first sequence. The number is then
    NaN.
    """

    def __init__(self, sequences: int, rows: int):
        super().__init__()
        self.before = Tensor(np.maximum(np.arange(sequences) - 1, 0).astype(np.int32))
        self.rows, self.zero, self.unit = (Tensor(np.array([number], np.int32)) for number in (rows, 0, 1))
        self.last = Tensor(np.array([sequences - 1], np.int32))
        self.good, self.nan = (Tensor(np.array([number], np.float32)) for number in (1, np.nan))

    def construct(self, ends):
        descends = ends < ops.gather(ends, self.before, 0)
        wrong = graph_integers.count_true(ops.reshape(descends, (1, -1)))
        wrong = wrong + ops.maximum(self.zero - ops.gather(ends, self.zero, 0), self.zero)
        last = ops.gather(ends, self.last, 0)
        wrong = ops.minimum(wrong + ops.maximum(self.rows - last, last - self.rows), self.unit)
        return ends + wrong * (self.rows - ends), ops.select(wrong > 0, self.nan, self.good)


class _Matrix(nn.Cell):
    """Make (T, heads, size) or (T, heads * size) the kernels' matrix of tokens. Heads are padded to 16 columns."""

    def __init__(self, heads: int, size: int):
        super().__init__()
        self.heads, self.size, self.missing = heads, size, padded(size) - size

    def construct(self, tensor):
        rows = tensor.shape[0]
        if self.missing > 0:
            tensor = ops.reshape(tensor, (rows, self.heads, self.size))
            columns = ops.cast(filled((rows, self.heads, self.missing), 0), tensor.dtype)
            tensor = ops.concat((tensor, columns), 2)
        return ops.reshape(tensor, (rows, -1))


def runs_alone(call: Call) -> str | None:
    """Return the property that work tables of packed sequences cannot hold, or None. Each sequence is then a call of
    its own.
    """
    given = {"bias": call.bias_shape, "keep_bits": call.keep_bits, "windows in blocks": call.rules.in_blocks}
    return next((name for name, it in given.items() if it), None)


def refuse_varlen(call: Call) -> str | None:
    """Return why the operators cannot run these packed sequences, whose rows they take, or None."""
    alone = runs_alone(call)
    if alone and not call.varlen.constant:
        return (
            f"of packed sequences whose lengths are data the TIK operators take no {alone}: with it they run sequence "
            "by sequence, each by kernels for its lengths; allowed are lengths in tuples"
        )
    if alone:
        reasons = (refuse_on_910(one) for one in sequences_alone(call) if one is not None)
        return next((reason for reason in reasons if reason is not None), None)
    keep_bytes = layout.keep_shape(describe.kernel_problem(call))[0] if call.dropout_threshold else 0
    if keep_bytes > MAX_KEEP_BYTES:
        return (
            f"dropout takes its keep decisions packed, up to {keep_bytes} bytes for these sequences, whose lengths are "
            f"{'known' if call.varlen.constant else 'data'}; allowed are {MAX_KEEP_BYTES}"
        )
    return None
