"""Decoding kernels as MindSpore Cells: few queries against many keys, and attention against a paged cache."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from mindspore import Tensor, nn, ops

from flash_attention.backends.tik.constants import NOTHING_SEEN, Constants, MakePrimitive
from flash_attention.bridge.gradients import refuse_gradient
from flash_attention.bridge.parameters import Compiled
from flash_attention.call import Call
from flash_attention.kernels.tik import describe, signatures
from flash_attention.kernels.tik.decode import schedule as scheduler
from flash_attention.kernels.tik.decode import tiling as tiling
from flash_attention.kernels.tik.problem import Chip, KernelProblem, padded
from flash_attention.kernels.tik.signatures import DECODE_STAGES


class DecodeKernels(nn.Cell):
    """Run both decoding kernels, the main kernel and the merging kernel.

    query (B, H, Sq, D), key (B, Hkv, Sk, D) and value (B, Hkv, Sk, Dv), or caches with tables and lengths as
    `PagedOperators` pads them; sinks (H,) and slopes (H,) or (B * H,) float32, or anything if the call
    has none. output (B, H, Sq, Dv), logsumexp (B, H, Sq padded to 16).
    """

    def __init__(self, p: KernelProblem, make_primitive: MakePrimitive, given_slopes: bool):
        call = p.call
        super().__init__()
        self.paged = p.pages is not None
        plan = scheduler.choose(p).plan
        shapes = {"output": (call.batch, call.heads, call.seq_q, call.value_dim)}
        head_rows = scheduler.head_rows(p, plan)
        slope_rows = scheduler.slope_rows(p, plan)
        made: list = []
        for stage in DECODE_STAGES:
            operator, signature = signatures.arguments(stage, p)
            made.append(make_primitive(operator, signature, p, shapes))
            made.append(Constants(p, signature, given_slopes, slope_rows))
        self.main, self.main_constants, self.merge, self.merge_constants = made
        self.blocks = (call.batch * call.kv_heads, plan.row_blocks, plan.rows)
        self.heads = (call.batch * call.kv_heads, plan.row_blocks * plan.group_heads * call.seq_q)
        self.rows = (call.batch, call.heads, call.seq_q)
        self.block_rows, self.group_rows = plan.group_heads * call.seq_q, call.group * call.seq_q
        self.pads = padded(call.seq_q) > call.seq_q
        more = call.batch, call.heads, padded(call.seq_q) - call.seq_q
        self.padding = Tensor(np.zeros(more, np.float32)) if self.pads else None
        self.sinks = call.sinks
        self.sink_heads = Tensor(head_rows)

    def construct(self, query, key, value, sinks, slopes, tables=None, lengths=None):
        given, more = (), ()
        if self.paged:
            given, more = (tables, lengths), (lengths,)
        if self.sinks:
            more = more + (ops.gather(sinks, self.sink_heads, 0),)
        sums, statistics = self.main(query, key, value, *given, *self.main_constants(slopes))
        output, stored = self.merge(sums, statistics, *more, *self.merge_constants(slopes))
        stored = ops.reshape(ops.reshape(stored, self.blocks)[:, :, : self.block_rows], self.heads)
        logsumexp = ops.reshape(stored[:, : self.group_rows], self.rows)
        if self.pads:
            logsumexp = ops.concat((logsumexp, self.padding), 2)
        return output, logsumexp


class PagedOperators(nn.Cell):
    """Compute `paged_attention` by the decoding kernels, see `Backend.build`."""

    def __init__(self, call: Call, make_primitive: MakePrimitive, chip: Chip):
        super().__init__()
        self.kernels = Compiled(_PagedKernels(call, make_primitive, chip))
        self.sinks, self.slopes = call.place("sinks"), call.place("alibi_slopes")
        self.nothing = Tensor(np.zeros(1, np.float32))

    def construct(self, query, key_cache, value_cache, block_tables, context_lens, inputs):
        sinks = self.nothing if self.sinks is None else inputs[self.sinks]
        slopes = self.nothing if self.slopes is None else ops.reshape(inputs[self.slopes], (-1,))
        return self.kernels(query, key_cache, value_cache, block_tables, context_lens, sinks, slopes)


class _PagedKernels(nn.Cell):
    """Run the decoding kernels without an input that is None. None has no place in a gradient function.

    A kernel takes as many queries as a row block has rows. The queries of a longer prompt come in parts. For each
    part, the sequences end at its own last query. Without causal they end at their own last key.
    """

    def __init__(self, call: Call, make_primitive: MakePrimitive, chip: Chip):
        super().__init__()
        most = tiling.rows_at_once(paged_problem(call, chip, 1))
        self.part, self.seq_q, self.causal = min(most, call.seq_q), call.seq_q, call.rules.causal
        rest = call.seq_q % self.part
        given_slopes = call.slopes_shape is not None
        self.kernels = DecodeKernels(paged_problem(call, chip, self.part), make_primitive, given_slopes)
        self.rest_kernels = None
        if rest:
            self.rest_kernels = DecodeKernels(paged_problem(call, chip, rest), make_primitive, given_slopes)
        self.return_lse = call.return_lse
        self.query_shape = (call.batch, call.seq_q, call.heads, call.head_dim)
        self.output_shape = call.laid_out(call.shape_output())
        entries = call.batch * (call.seq_k // call.paged.block_size)
        self.pads = entries % 8 > 0, call.batch % 8 > 0
        self.padding = tuple(Tensor(np.zeros(padded(size, 8) - size, np.int32)) for size in (entries, call.batch))

    def construct(self, query, key_cache, value_cache, block_tables, context_lens, sinks, slopes):
        tables, lengths = ops.reshape(block_tables, (-1,)), context_lens
        if self.pads[0]:
            tables = ops.concat((tables, self.padding[0]), 0)
        if self.pads[1]:
            lengths = ops.concat((lengths, self.padding[1]), 0)
        query = ops.transpose(ops.reshape(query, self.query_shape), (0, 2, 1, 3))
        outputs, logsumexps = (), ()
        for start in range(0, self.seq_q, self.part):
            end = min(start + self.part, self.seq_q)
            kernels = self.kernels if end - start == self.part else self.rest_kernels
            queries, ends = query[:, :, start:end], lengths
            if self.causal:
                ends = lengths - (self.seq_q - end)
            output, logsumexp = kernels(queries, key_cache, value_cache, sinks, slopes, tables, ends)
            outputs, logsumexps = outputs + (output,), logsumexps + (logsumexp[:, :, : end - start],)
        output = outputs[0] if len(outputs) == 1 else ops.concat(outputs, 2)
        output = ops.reshape(ops.transpose(output, (0, 2, 1, 3)), self.output_shape)
        if not self.return_lse:
            return output
        logsumexp = logsumexps[0] if len(logsumexps) == 1 else ops.concat(logsumexps, 2)
        return output, ops.masked_fill(logsumexp, logsumexp < NOTHING_SEEN, -float("inf"))

    def bprop(self, query, key_cache, value_cache, block_tables, context_lens, sinks, slopes, out, dout):
        refuse_gradient("paged_attention")
        return query, key_cache, value_cache, block_tables, context_lens, sinks, slopes


def paged_problem(call: Call, chip: Chip, queries: int) -> KernelProblem:
    """Return the problem of the decoding kernels, with so many queries at a time."""
    return describe.kernel_problem(replace(call, seq_q=queries), **chip._asdict())


def refuse_paged(call: Call) -> str | None:
    """Return why the decoding kernels cannot run a paged call, or None. The operators do not refuse the call
    otherwise.
    """
    if call.paged.block_size < 16:
        return f"got blocks of {call.paged.block_size} keys, the decoding kernels take 16 and more"
    described = describe.kernel_problem(replace(call, seq_q=1))
    reason, rules = scheduler.refuse(described), call.rules
    if call.head_dim % 16 or call.value_dim % 16:
        return f"{reason}; paged_caches makes caches that are wide enough"
    most = 0 if reason else tiling.rows_at_once(described)
    positional = rules.window_left >= 0 or rules.window_right >= 0 or rules.alibi
    if reason is None and not rules.causal and positional and call.seq_q > most:
        return (
            f"got {call.seq_q} queries without causal, with a window or ALiBi; the decoding kernels take "
            f"{most} of them at once, and know the positions of the last ones alone"
        )
    return reason
