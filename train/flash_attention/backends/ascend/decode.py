"""The decoding kernels as MindSpore Cells: few queries against many keys, and attention against a paged cache."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from mindspore import Tensor, nn, ops

from flash_attention.backends.ascend.stages import MakePrimitive, primitive_of
from flash_attention.backends.derivatives import refuse_gradient
from flash_attention.kernels.tik import host
from flash_attention.kernels.tik.decode import plan as tiling
from flash_attention.kernels.tik.decode import work as scheduler
from flash_attention.kernels.tik.problem import Chip, padded
from flash_attention.kernels.tik.signature import DECODE_STAGES, Request
from flash_attention.problem.paged import PagedProblem


class DecodeKernels(nn.Cell):
    """Both kernels.

    query (B, H, Sq, D), key (B, Hkv, Sk, D) and value (B, Hkv, Sk, Dv), or caches with tables and lengths as
    `PagedOperators` pads them; sinks (H,) float32, or anything where the problem has none. output (B, H, Sq, Dv),
    logsumexp (B, H, Sq padded to 16).
    """

    def __init__(self, request: Request, make_primitive: MakePrimitive):
        super().__init__()
        p, self.paged = request.problem, request.pages is not None
        plan = scheduler.choose(p, self.paged).plan
        shapes = {"output": (p.batch, p.heads, p.seq_q, p.value_dim)}
        main, merge = (primitive_of(name, request, make_primitive, shapes) for name in DECODE_STAGES)
        self.main, self.main_constants = main
        self.merge, self.merge_constants = merge
        self.blocks = (p.batch * p.kv_heads, plan.row_blocks, plan.rows)
        self.heads = (p.batch * p.kv_heads, plan.row_blocks * plan.group_heads * p.seq_q)
        self.rows = (p.batch, p.heads, p.seq_q)
        self.block_rows, self.group_rows = plan.group_heads * p.seq_q, p.group * p.seq_q
        self.padding = Tensor(np.zeros((p.batch, p.heads, padded(p.seq_q) - p.seq_q), np.float32))
        self.pads = padded(p.seq_q) > p.seq_q
        self.sinks = p.sinks
        self.sink_heads = Tensor(scheduler.head_rows(p, plan))

    def construct(self, query, key, value, sinks, tables=None, lengths=None):
        given, more = (), ()
        if self.paged:
            given, more = (tables, lengths), (lengths,)
        if self.sinks:
            more = more + (ops.gather(sinks, self.sink_heads, 0),)
        sums, statistics = self.main(query, key, value, *given, *self.main_constants)
        output, stored = self.merge(sums, statistics, *more, *self.merge_constants)
        stored = ops.reshape(ops.reshape(stored, self.blocks)[:, :, : self.block_rows], self.heads)
        logsumexp = ops.reshape(stored[:, : self.group_rows], self.rows)
        if self.pads:
            logsumexp = ops.concat((logsumexp, self.padding), 2)
        return output, logsumexp


class PagedOperators(nn.Cell):
    """`paged_attention` by the decoding kernels, see `Backend.build_paged`."""

    def __init__(self, problem: PagedProblem, make_primitive: MakePrimitive, chip: Chip):
        super().__init__()
        self.kernels = _PagedKernels(problem, make_primitive, chip)
        self.sinks = problem.whole.place("sinks")
        self.nothing = Tensor(np.zeros(1, np.float32))

    def construct(self, query, key_cache, value_cache, block_tables, context_lens, inputs):
        sinks = self.nothing if self.sinks is None else inputs[self.sinks]
        return self.kernels(query, key_cache, value_cache, block_tables, context_lens, sinks)


class _PagedKernels(nn.Cell):
    """The same where no input is None, which has no place in a gradient function.

    A kernel takes as many queries as a row block has rows. Those of a longer prompt come in parts: to each part the
    sequences end where its own queries end.
    """

    def __init__(self, problem: PagedProblem, make_primitive: MakePrimitive, chip: Chip):
        super().__init__()
        p = problem.whole
        most = tiling.rows_at_once(paged_request(problem, chip, 1).problem)
        self.part, self.seq_q = min(most, p.seq_q), p.seq_q
        rest = p.seq_q % self.part
        self.kernels = DecodeKernels(paged_request(problem, chip, self.part), make_primitive)
        self.rest_kernels = None
        if rest:
            self.rest_kernels = DecodeKernels(paged_request(problem, chip, rest), make_primitive)
        self.query_shape = (p.batch, p.seq_q, p.heads, p.head_dim)
        self.output_shape = problem.shape_output()
        entries = p.batch * (p.seq_k // problem.block_size)
        self.pads = entries % 8 > 0, p.batch % 8 > 0
        self.padding = tuple(Tensor(np.zeros(padded(size, 8) - size, np.int32)) for size in (entries, p.batch))

    def construct(self, query, key_cache, value_cache, block_tables, context_lens, sinks):
        tables, lengths = ops.reshape(block_tables, (-1,)), context_lens
        if self.pads[0]:
            tables = ops.concat((tables, self.padding[0]), 0)
        if self.pads[1]:
            lengths = ops.concat((lengths, self.padding[1]), 0)
        query = ops.transpose(ops.reshape(query, self.query_shape), (0, 2, 1, 3))
        outputs = ()
        for start in range(0, self.seq_q, self.part):
            end = min(start + self.part, self.seq_q)
            kernels = self.kernels if end - start == self.part else self.rest_kernels
            queries, ends = query[:, :, start:end], lengths - (self.seq_q - end)
            output, _ = kernels(queries, key_cache, value_cache, sinks, tables, ends)
            outputs = outputs + (output,)
        output = outputs[0] if len(outputs) == 1 else ops.concat(outputs, 2)
        return ops.reshape(ops.transpose(output, (0, 2, 1, 3)), self.output_shape)

    def bprop(self, query, key_cache, value_cache, block_tables, context_lens, sinks, out, dout):
        refuse_gradient("paged_attention")
        return query, key_cache, value_cache, block_tables, context_lens, sinks


def paged_request(problem: PagedProblem, chip: Chip, queries: int) -> Request:
    """What the kernels are built for, with so many queries at a time."""
    part = host.describe(replace(problem.whole, seq_q=queries), **chip._asdict())
    return Request(part, pages=(problem.blocks, problem.block_size))


def refuse_paged(problem: PagedProblem) -> str | None:
    """Why the decoding kernels cannot run a paged problem that the operators do not refuse otherwise, or None."""
    if problem.block_size < 16:
        return f"got blocks of {problem.block_size} keys, the decoding kernels take 16 and more"
    return scheduler.refuse(host.describe(replace(problem.whole, seq_q=1)))
