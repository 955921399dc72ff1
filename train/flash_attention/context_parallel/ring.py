"""RingAttention: one sequence over several processes, whose keys and values travel around a ring. PYNATIVE."""

from __future__ import annotations

import functools

from mindspore import dtype as mstype
from mindspore import ops
from mindspore.ops import constexpr

from flash_attention.bridge.constants import filled
from flash_attention.bridge.tensors import compiling, spec
from flash_attention.call import Call
from flash_attention.call.inputs import DTYPES, TensorSpec, read_tensors
from flash_attention.context_parallel.communication import Ring
from flash_attention.context_parallel.pieces import SinksGradient, SourceBackward, SourceForward, Sources, Start
from flash_attention.context_parallel.plan import steps
from flash_attention.context_parallel.sequence import SequenceSplit
from flash_attention.context_parallel.split_attention import SplitAttention, read_call


class RingAttention(SplitAttention):
    """Attention over a sequence of which each process holds a part (context parallelism), in PYNATIVE.

    Every process computes the outputs of its own queries. Keys and values go around the ring, while the process
    computes with the keys and values that it has. Backward, their gradients travel with them and end where they belong.
    No process ever holds more than its part of any tensor and a second part in passing. Liu et al., "Ring Attention
    with Blockwise Transformers for Near-Infinite Context" (2023).

    Start the processes with `msrun`, call `flash_attention.context_parallel.initialize()` in each, and give each its
    part by `SequenceSplit(world, order).split(...)`.

    Args:
        head_dim (int): size of a head, 1 to 576; on an Ascend 910 to 256.

    Keyword Args:
        order (str): "zigzag" or "contiguous", see `SequenceSplit`. Default: "zigzag".
        rules: causal, window_size, prev_block_num, next_block_num, tiling_stgy_name, alibi, scale, softcap,
            input_layout and backend, as of FlashAttention. Positions are those in the whole sequence. Windows in tiles
            and in tokens exclude each other. Keys that no query of another process sees are not passed on.
        value_head_dim (int): size of a head of value and output. Default: None, head_dim for "BSH" and "SBH", else
            the width of the value.

    Inputs:
        - **query** (Tensor) - this process's part, (batch, heads, seq / world, head_dim) or as `input_layout` says.
        - **key**, **value** (Tensor) - likewise, with as many heads as query or a divisor of it.
        - **attention_mask**, **alibi_mask** - refused: no process holds the columns of all keys.
        - **sinks** (Tensor) - as of FlashAttention, the same in every process. The gradient is the share of this
          process's queries, like the gradient of any weight: the sum over processes is the whole.
        - **prefix** (Tensor or tuple), **segment_ids** (Tensor) - as of FlashAttention and of the whole sequence,
          int32 (batch,) and (batch, seq), the same in every process. With a prefix, keys travel to every process.

    Outputs:
        Tensor, dtype and shape of query, but as wide as the value.

    Raises:
        TypeError, ValueError: an argument or input is not allowed, or the parts differ between processes.
        PeerError: another process is dead or slower than the timeout of `initialize`.
        RuntimeError: used in a compiled graph, or the backend asked for refuses.
    """

    connection = Ring

    def attend(self, query, key, value, sinks, prefix, segment_ids):
        if compiling():
            _refuse_graph()
        specs = tuple(TensorSpec(tuple(tensor.shape), str(tensor.dtype).lower()) for tensor in (query, key, value))
        self.compare(specs)
        optional = tuple(map(spec, (sinks, prefix, segment_ids)))
        own = read_call(specs, optional, self.split, self.rules, *self.widths)
        travel = _ring_call(self.processes, self.split, own, self.backend)
        return travel(query, key, value, *self.present(sinks, prefix, segment_ids))[0]

    def compare(self, specs):
        """Raise an error if the parts of other processes have other sizes.

        MCCL would deliver a tensor of another size without a word, so a CPU compares at every call. On Ascend the
        comparison would hold up what runs ahead: only sizes that are new to the layer are compared there.
        """
        if specs in self.compared and not self.processes.on_cpu:
            return
        found = read_tensors(*specs, "BNSD", self.head_dim, self.value_head_dim)
        everyone = self.processes.gather_integers((*found, DTYPES.index(specs[0].dtype)))
        if len(set(everyone)) > 1:
            lengths = [other[3] for other in everyone]
            raise ValueError(
                "query: every process must hold parts of the same sizes; (batch, heads, kv_heads, seq_q, seq_k, "
                f"head_dim, value_head_dim, dtype) by process are {everyone}; a sequence of {sum(lengths)} tokens is "
                "split evenly by SequenceSplit, which names the lengths that can be"
            )
        self.compared.add(specs)


class _RingCall(Sources):
    """(query, key, value) -> (output, logsumexp) for tensors of one shape."""

    def __init__(self, ring: Ring, split: SequenceSplit, own: Call, backend: str | None):
        self.ring = ring
        self.steps = steps(split, own.rules, own.seq_q // split.chunks_per_process, own.prefix)
        sources = [(ring.rank - step) % ring.world for step in self.steps]
        super().__init__(own, split, ring.rank, sources, backend, SourceForward, SourceBackward)
        self.start, self.of_sinks = Start(own), SinksGradient(own)

    def jumps(self) -> list[int]:
        """Return the distance of the keys' travel after each step; 0 after the last."""
        return [after - before for before, after in zip(self.steps, self.steps[1:])] + [0]

    def optional(self, prefix, ids) -> list[tuple]:
        """Return the prefix and ids for the calls of each step. The first step is on the process's own keys."""
        shares = [share(ids) for share in self.shares]
        return [(prefix, shares[0], share) for share in shares]

    def construct(self, query, key, value, sinks, prefix, ids):
        output, logsumexp = self.start(sinks)
        pair = self.pair.join(key, value)
        for jump, compute, optional in zip(self.jumps(), self.passes[0], self.optional(prefix, ids)):
            passing = self.ring.shift(pair, jump) if jump else None
            output, logsumexp = compute(query, pair, optional, output, logsumexp)
            pair = passing.received() if passing else None
        return ops.cast(output, query.dtype), ops.cast(logsumexp, mstype.float32)

    def bprop(self, query, key, value, sinks, prefix, ids, out, d_out):
        output, logsumexp = out
        d_output = d_out[0]
        d_query = filled(query.shape, 0)
        pair = self.pair.join(key, value)
        coming = None  # gradients of `pair` so far, which arrive while this process computes its share of them
        for jump, compute, optional in zip(self.jumps(), self.passes[1], self.optional(prefix, ids)):
            passing = self.ring.shift(pair, jump) if jump else None
            d_query, d_pair = compute(query, pair, optional, output, logsumexp, d_output, d_query)
            if coming is not None:
                d_pair = d_pair + coming.received()
            if passing is not None:
                pair = passing.received()
                coming = self.ring.shift(d_pair, jump)
        if self.steps[-1]:
            d_pair = self.ring.shift(d_pair, self.ring.world - self.steps[-1]).received()
        d_key, d_value = self.pair.split(d_pair)
        d_sinks = self.of_sinks(sinks, output, logsumexp, d_output)
        gradients = ops.cast(d_query, query.dtype), ops.cast(d_key, key.dtype), ops.cast(d_value, value.dtype)
        return (*gradients, d_sinks, ops.zeros_like(prefix), ops.zeros_like(ids))


_ring_call = functools.lru_cache(maxsize=64)(_RingCall)


@constexpr(reuse_result=False)
def _refuse_graph():
    raise RuntimeError(
        "RingAttention passes keys on by point-to-point operations, which MindSpore has in PYNATIVE only; in GRAPH "
        "mode and @jit use flash_attention.context_parallel.GatherAttention"
    )
