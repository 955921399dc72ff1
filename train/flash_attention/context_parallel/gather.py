"""GatherAttention: one sequence over several processes, each of which gathers the keys of all. GRAPH and PYNATIVE."""

from __future__ import annotations

import functools

from mindspore import dtype as mstype
from mindspore import ops

from flash_attention.bridge.constants import filled
from flash_attention.bridge.gradients import Differentiable, zeros_like
from flash_attention.bridge.tensors import compile_time, spec, tensor_spec
from flash_attention.call import AttentionRules, Call
from flash_attention.context_parallel.pieces import SinksGradient, SourceBackward, SourceForward, Sources, Start
from flash_attention.context_parallel.sequence import SequenceSplit
from flash_attention.context_parallel.split_attention import SplitAttention, read_call


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


class _Gathering(Sources):
    """Hold the common parts of the forward and backward pass on tensors of one shape.

    Args:
        kind: class of the Cells that compute with the keys of one process.
    """

    def __init__(self, kind: type, split: SequenceSplit, rank: int, own: Call, backend: str | None):
        super().__init__(own, split, rank, list(range(split.world)), backend, kind)
        self.rank, self.world = rank, split.world
        self.on_cpu = own.device == "CPU"
        self.shape = self.world, self.pair.size
        self.all_gather = ops.AllGather()
        self.dtype = getattr(mstype, own.dtype)
        self.moved = mstype.float32 if self.on_cpu and own.dtype == "bfloat16" else self.dtype

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

    def __init__(self, split: SequenceSplit, rank: int, own: Call, backend: str | None):
        super().__init__(SourceForward, split, rank, own, backend)
        self.start = Start(own)

    def construct(self, query, key, value, sinks, prefix, ids):
        output, logsumexp = self.start(sinks)
        optional = self.optional(prefix, ids)
        pairs = self.gather(key, value)
        query = ops.cast(query, self.moved)
        for source in range(self.world):
            output, logsumexp = self.passes[0][source](query, pairs[source], optional[source], output, logsumexp)
        return ops.cast(output, self.dtype), ops.cast(logsumexp, mstype.float32)


class _Backward(_Gathering):
    """The gradients of that forward pass, see `Differentiable`."""

    def __init__(self, split: SequenceSplit, rank: int, own: Call, backend: str | None):
        super().__init__(SourceBackward, split, rank, own, backend)
        self.of_sinks = SinksGradient(own)
        # A CPU has no ReduceScatter. In graphs it also has no operation that cuts up bfloat16.
        self.reduce = ops.AllReduce() if self.on_cpu else ops.ReduceScatter()

    def construct(self, query, key, value, output, logsumexp, d_output, d_logsumexp, sinks, prefix, ids):
        d_query = filled(query.shape, 0)
        pairs = self.gather(key, value)
        query, output = ops.cast(query, self.moved), ops.cast(output, self.moved)
        d_output = ops.cast(d_output, self.moved)
        optional = self.optional(prefix, ids)
        gradients = ()
        for source in range(self.world):
            d_query, d_pair = self.passes[0][source](
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
    specs = tuple(map(tensor_spec, ("query", "key", "value"), specs))
    rank, split = place[0], SequenceSplit(*place[1:])
    return _made(split, rank, read_call(specs, optional, split, AttentionRules(*constants), *widths), backend)


@functools.lru_cache(maxsize=64)
def _made(*given) -> Differentiable:
    return Differentiable(_Forward(*given), lambda: _Backward(*given), "GatherAttention", count=3)
