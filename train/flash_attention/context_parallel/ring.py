"""RingAttention: one sequence over several processes, whose keys and values travel around a ring. PYNATIVE."""

from __future__ import annotations

import functools
from typing import Any

from mindspore import dtype as mstype
from mindspore import nn, ops
from mindspore.ops import constexpr

from flash_attention.context_parallel.communication import Ring
from flash_attention.context_parallel.pieces import Sizes, SourceBackward, SourceForward, Start, paired
from flash_attention.context_parallel.plan import pieces, steps
from flash_attention.context_parallel.split_attention import SplitAttention, read_sizes
from flash_attention.problem import AttentionRules
from flash_attention.problem.inputs import DTYPES, TensorSpec, read_tensors


class RingAttention(SplitAttention):
    """Attention over a sequence of which each process holds a part (context parallelism), in PYNATIVE.

    Every process computes the outputs of its own queries. Keys and values go around the ring, while the process
    computes with those that it has; backward, their gradients travel with them and end where they belong. No process
    ever holds more than its part of any tensor and a second part in passing. Liu et al., "Ring Attention with
    Blockwise Transformers for Near-Infinite Context" (2023).

    Start the processes with `msrun`, call `flash_attention.context_parallel.initialize()` in each, and give each its
    part by `SequenceSplit(world, order).split(...)`.

    Args:
        head_dim (int): size of a head, 1 to 256.

    Keyword Args:
        order (str): "zigzag" or "contiguous", see `SequenceSplit`. Default: "zigzag".
        causal, window_size, prev_block_num, next_block_num, tiling_stgy_name, alibi, scale, input_layout, backend: as
            of FlashAttention, positions being those in the whole sequence. Windows in tiles and in tokens exclude each
            other. What no process sees of another's keys is not passed on.

    Inputs:
        - **query** (Tensor) - this process's part, (batch, heads, seq / world, head_dim) or as `input_layout` says.
        - **key**, **value** (Tensor) - likewise, with as many heads as query or a divisor of it.

    Outputs:
        Tensor, shape and dtype of query.

    Raises:
        TypeError, ValueError: an argument or input is not allowed, or the parts differ between processes.
        PeerError: another process is dead or slower than the timeout of `initialize`.
        RuntimeError: used in a compiled graph, or the backend asked for refuses.
    """

    def __init__(self, head_dim: int, *, order: str = "zigzag", **rules: Any) -> None:
        super().__init__(head_dim, Ring(), order, **rules)
        self.pynative = _PynativeOnly()
        self.compared: set[tuple] = set()

    def attend(self, query, key, value):
        self.pynative()
        specs = tuple(TensorSpec(tuple(tensor.shape), str(tensor.dtype).lower()) for tensor in (query, key, value))
        self.compare(specs)
        sizes = read_sizes(specs, self.split, self.rules, self.head_dim)
        return _travel(self.ring, self.split, self.rules, self.backend, sizes)(query, key, value)[0]

    def compare(self, specs):
        """Raises when the parts of other processes have other sizes.

        MCCL would deliver a tensor of another size without a word, so a CPU compares at every call. On Ascend the
        comparison would hold up what runs ahead: only sizes that are new to the layer are compared there.
        """
        if specs in self.compared and not self.ring.on_cpu:
            return
        found = read_tensors(*specs, "BNSD", self.head_dim)
        everyone = self.ring.gather_integers((*found, DTYPES.index(specs[0].dtype)))
        if len(set(everyone)) > 1:
            lengths = [other[3] for other in everyone]
            raise ValueError(
                "query: every process must hold parts of the same sizes; (batch, heads, kv_heads, seq_q, seq_k, "
                f"head_dim, that of value, dtype) by process are {everyone}; a sequence of {sum(lengths)} tokens is "
                "split evenly by SequenceSplit, which names the lengths that can be"
            )
        self.compared.add(specs)


class _Travel(nn.Cell):
    """(query, key, value) -> (output, logsumexp) for tensors of one shape."""

    def __init__(self, ring: Ring, split, rules: AttentionRules, backend: str | None, sizes: Sizes):
        super().__init__()
        self.ring = ring
        self.start = Start(sizes)
        length = sizes.seq // split.chunks_per_process
        self.steps = steps(split, rules, length)
        found = [pieces(split, rules, length, ring.rank, (ring.rank - step) % ring.world) for step in self.steps]
        self.forward = nn.CellList([SourceForward(sizes, rules, one, backend) for one in found])
        self.backward = nn.CellList([SourceBackward(sizes, rules, one, backend) for one in found])

    def jumps(self) -> list[int]:
        """How far keys travel after each step to where the next one needs them; 0 after the last."""
        return [after - before for before, after in zip(self.steps, self.steps[1:])] + [0]

    def construct(self, query, key, value):
        output, logsumexp = self.start()
        pair = paired(key, value)
        for jump, compute in zip(self.jumps(), self.forward):
            passing = self.ring.shift(pair, jump) if jump else None
            output, logsumexp = compute(query, pair, output, logsumexp)
            pair = passing.received() if passing else None
        return ops.cast(output, query.dtype), ops.cast(logsumexp, mstype.float32)

    def bprop(self, query, key, value, out, d_out):
        output, logsumexp = out
        d_output = d_out[0]
        d_query = ops.zeros(query.shape, mstype.float32)
        pair = paired(key, value)
        coming = None  # gradients of `pair` so far, which arrive while this process computes its share of them
        for jump, compute in zip(self.jumps(), self.backward):
            passing = self.ring.shift(pair, jump) if jump else None
            d_query, d_pair = compute(query, pair, output, logsumexp, d_output, d_query)
            if coming is not None:
                d_pair = d_pair + coming.received()
            if passing is not None:
                pair = passing.received()
                coming = self.ring.shift(d_pair, jump)
        if self.steps[-1]:
            d_pair = self.ring.shift(d_pair, self.ring.world - self.steps[-1]).received()
        return ops.cast(d_query, query.dtype), ops.cast(d_pair[0], key.dtype), ops.cast(d_pair[1], value.dtype)


@functools.lru_cache(maxsize=64)
def _travel(ring, split, rules, backend, sizes) -> _Travel:
    return _Travel(ring, split, rules, backend, sizes)


class _PynativeOnly(nn.Cell):
    """Refuses compiled graphs: PYNATIVE calls a cell, a graph contains its `construct`."""

    def __call__(self):
        return None

    def construct(self):
        return _refuse_graph()


@constexpr(reuse_result=False)
def _refuse_graph():
    raise RuntimeError(
        "RingAttention passes keys on by point-to-point operations, which MindSpore has in PYNATIVE only; in GRAPH "
        "mode and @jit use flash_attention.context_parallel.GatherAttention"
    )
