"""GatherAttention: one sequence over several processes, each of which gathers the keys of all. GRAPH and PYNATIVE."""

from __future__ import annotations

import functools

from mindspore import dtype as mstype
from mindspore import nn, ops

from flash_attention.bridge.constants import filled
from flash_attention.bridge.gradients import Differentiable, zeros_like
from flash_attention.bridge.tensors import compile_time, spec, tensor_spec
from flash_attention.call import AttentionRules
from flash_attention.context_parallel.pieces import (
    Pair,
    Share,
    SinksGradient,
    Sizes,
    SourceBackward,
    SourceForward,
    Start,
)
from flash_attention.context_parallel.plan import pieces
from flash_attention.context_parallel.sequence import SequenceSplit
from flash_attention.context_parallel.split_attention import SplitAttention, read_sizes


class GatherAttention(SplitAttention):
    """Compute attention of a sequence split over processes, by gathering all keys and values.

    It does what RingAttention does, and also works in GRAPH mode and `@jit`, which have no point-to-point operations.
    While the layer computes, a process holds the keys and values of the whole sequence (backward also their float32
    gradients). Of everything else it holds its part only. The backward pass gathers keys and values again.

    Arguments, inputs and outputs are as in RingAttention. Parts of different sizes on different processes are not
    found out here: MindSpore's AllGather fails or waits for its time limit, see `initialize`.
    """

    def attend(self, query, key, value, sinks, prefix, segment_ids):
        specs = spec(query), spec(key), spec(value)
        optional = spec(sinks), spec(prefix), spec(segment_ids)
        run = _gathering(specs, optional, self.place, self.constants, self.widths, self.backend)
        return run(query, key, value, self.present(sinks, prefix, segment_ids))[0]


class _Gathering(nn.Cell):
    """Hold the common parts of the forward and backward pass on tensors of one shape.

    Args:
        source_kind: class of the Cells that compute with the keys of one process.
    """

    def __init__(self, source_kind: type, place: tuple, rules: AttentionRules, sizes: Sizes, backend: str | None):
        super().__init__()
        self.rank, self.world, order = place
        split = SequenceSplit(self.world, order)
        length = sizes.seq // split.chunks_per_process
        found = [pieces(split, rules, length, self.rank, source, sizes.prefix) for source in range(self.world)]
        self.sources = nn.CellList([source_kind(sizes, rules, one, backend) for one in found])
        self.pair = Pair(sizes)
        self.shares = nn.CellList([Share(split.chunks(source), length, sizes) for source in range(self.world)])
        self.on_cpu = sizes.device == "CPU"
        self.shape = self.world, self.pair.size
        self.all_gather = ops.AllGather()
        self.dtype = getattr(mstype, sizes.dtype)
        self.moved = mstype.float32 if self.on_cpu and sizes.dtype == "bfloat16" else self.dtype

    def gather(self, key, value):
        """Return the pairs of key and value of all processes: (world, size of a pair)."""
        pair = self.pair.join(ops.cast(key, self.moved), ops.cast(value, self.moved))
        return ops.reshape(self.all_gather(pair), self.shape)

    def optional(self, prefix, ids):
        """Return the prefix and ids for the calls on the keys of each process."""
        shares = ()
        for source in range(self.world):
            shares = shares + ((prefix, self.shares[self.rank](ids), self.shares[source](ids)),)
        return shares


class _Forward(_Gathering):
    """(query, key, value, sinks, prefix, ids) -> (output, logsumexp)."""

    def __init__(self, place: tuple, rules: AttentionRules, sizes: Sizes, backend: str | None):
        super().__init__(SourceForward, place, rules, sizes, backend)
        self.start = Start(sizes)

    def construct(self, query, key, value, sinks, prefix, ids):
        output, logsumexp = self.start(sinks)
        optional = self.optional(prefix, ids)
        pairs = self.gather(key, value)
        query = ops.cast(query, self.moved)
        for source in range(self.world):
            output, logsumexp = self.sources[source](query, pairs[source], optional[source], output, logsumexp)
        return ops.cast(output, self.dtype), ops.cast(logsumexp, mstype.float32)


class _Backward(_Gathering):
    """The gradients of that forward pass, see `Differentiable`."""

    def __init__(self, place: tuple, rules: AttentionRules, sizes: Sizes, backend: str | None):
        super().__init__(SourceBackward, place, rules, sizes, backend)
        self.of_sinks = SinksGradient(sizes)
        # A CPU has no ReduceScatter. In graphs it also has no operation that cuts up bfloat16 (MindSpore 2.10).
        self.reduce = ops.AllReduce() if self.on_cpu else ops.ReduceScatter()

    def construct(self, query, key, value, output, logsumexp, d_output, d_logsumexp, sinks, prefix, ids):
        d_query = filled(query.shape, 0)
        pairs = self.gather(key, value)
        query, output = ops.cast(query, self.moved), ops.cast(output, self.moved)
        d_output = ops.cast(d_output, self.moved)
        optional = self.optional(prefix, ids)
        gradients = ()
        for source in range(self.world):
            d_query, d_pair = self.sources[source](
                query, pairs[source], optional[source], output, logsumexp, d_output, d_query
            )
            gradients = gradients + (d_pair,)
        if self.on_cpu:
            mine = self.reduce(ops.stack(gradients))[self.rank]
        else:
            mine = self.reduce(ops.concat(gradients))
        d_key, d_value = self.pair.split(mine)
        d_sinks = self.of_sinks(sinks, output, logsumexp, d_output)
        d_query, d_key = ops.cast(d_query, self.dtype), ops.cast(d_key, self.dtype)
        return (d_query, d_key, ops.cast(d_value, self.dtype), d_sinks) + zeros_like((prefix, ids))


@compile_time
def _gathering(specs, optional, place, constants, widths, backend):
    specs = tuple(tensor_spec(*named) for named in zip(("query", "key", "value"), specs))
    rules = AttentionRules(*constants)
    return _made(place, rules, read_sizes(specs, optional, SequenceSplit(*place[1:]), rules, *widths), backend)


@functools.lru_cache(maxsize=64)
def _made(place, rules, sizes, backend) -> Differentiable:
    given = place, rules, sizes, backend
    return Differentiable(_Forward(*given), _Backward(*given), "GatherAttention", count=3)
