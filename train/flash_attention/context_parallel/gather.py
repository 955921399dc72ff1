"""GatherAttention: one sequence over several processes, each of which gathers the keys of all. GRAPH and PYNATIVE.

A process's chunk of queries is one call on the keys of the whole sequence, with `AttentionRules.first_query`.
"""

from __future__ import annotations

from dataclasses import replace

import mindspore as ms
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from flash_attention.backends import registry
from flash_attention.bridge.parameters import results_in_graph_mode
from flash_attention.bridge.tensors import compile_time, constant, read_specs, refuse, spec, tensor_spec
from flash_attention.call import ALL_BLOCKS, AttentionRules, Call
from flash_attention.call.block_mask import BlockMask
from flash_attention.call.checks import check_int, check_name
from flash_attention.call.inputs import MAX_HEAD_DIM, MAX_VALUE_DIM, TensorSpec, read_tensors
from flash_attention.call.layout import LAYOUTS
from flash_attention.call.tiling import DEFAULT_STRATEGY
from flash_attention.context_parallel.communication import processes
from flash_attention.context_parallel.sequence import SequenceSplit
from flash_attention.functional import attend


class GatherAttention(nn.Cell):
    """Attention over a sequence of which each process holds a part (context parallelism).

    Every process computes the outputs of its own queries, and gathers the keys and values of all processes for it. It
    holds them until the backward pass, and then their gradients too. Of everything else it holds its part only.
    MindSpore 2.0 has AllGather in GRAPH mode only.

    Start the processes with `msrun`, call `flash_attention.context_parallel.initialize()` in each, and give each its
    part by `SequenceSplit(world, order).split(...)`. All parts have the same size. A part of another size is not found
    out here: MindSpore's AllGather fails or waits for its time limit, see `initialize`.

    Args:
        head_dim (int): size of a head, 1 to 576; on an Ascend 910 to 256.

    Keyword Args:
        order (str): "zigzag" or "contiguous", see `SequenceSplit`. Default: "zigzag".
        rules: causal, window_size, prev_block_num, next_block_num, tiling_stgy_name, alibi, scale, softcap,
            input_layout and backend, as of FlashAttention. Positions are those in the whole sequence.
        block_mask (BlockMask): of the whole sequence, as of FlashAttention. A chunk has whole tiles. Default: None.
        value_head_dim (int): size of a head of value and output. Default: None, head_dim for "BSH" and "SBH", else
            the width of the value.

    Inputs:
        - **query** (Tensor) - this process's part, (batch, heads, seq / world, head_dim) or as `input_layout` says.
        - **key**, **value** (Tensor) - likewise, with as many heads as query or a divisor of it.
        - **attention_mask**, **alibi_mask** - refused: they belong to a process that holds the whole sequence.
        - **sinks** (Tensor) - as of FlashAttention, the same in every process. The gradient is the share of this
          process's queries, like the gradient of any weight: the sum over processes is the whole.
        - **prefix** (Tensor or tuple), **segment_ids** (Tensor) - as of FlashAttention and of the whole sequence,
          ints (batch,) and (batch, seq), the same in every process.
        - **block_mask** (Tensor) - likewise, in place of the layer's own.

    Outputs:
        Tensor, dtype and shape of query, but as wide as the value.

    Raises:
        TypeError, ValueError: an argument or input is not allowed.
        RuntimeError: the process group has not been started, another process is dead or slower than the timeout of
            `initialize`, or the backend asked for refuses.
    """

    def __init__(
        self,
        head_dim: int,
        *,
        order: str = "zigzag",
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        prev_block_num: int = ALL_BLOCKS,
        next_block_num: int = ALL_BLOCKS,
        tiling_stgy_name: str = DEFAULT_STRATEGY,
        alibi: bool = False,
        scale: float | None = None,
        softcap: float = 0.0,
        input_layout: str = "BNSD",
        value_head_dim: int | None = None,
        block_mask: BlockMask | None = None,
        backend: str | None = None,
    ) -> None:
        rank, world = processes()
        super().__init__()
        split = SequenceSplit(world, order)
        rules = AttentionRules.from_arguments(
            causal=causal,
            window_size=window_size,
            prev_block_num=prev_block_num,
            next_block_num=next_block_num,
            tiling_stgy_name=tiling_stgy_name,
            alibi=alibi,
            scale=scale,
            softcap=softcap,
        )
        check_int("head_dim", head_dim, 1, MAX_HEAD_DIM)
        if value_head_dim is not None:
            check_int("value_head_dim", value_head_dim, 1, MAX_VALUE_DIM)
        check_name("input_layout", input_layout, LAYOUTS)
        if block_mask is not None and not isinstance(block_mask, BlockMask):
            raise TypeError(
                f"block_mask: got {type(block_mask).__name__}, allowed is a BlockMask; a Tensor is an input"
            )
        registry.forced_backend(backend)
        self.tiles: Tensor | None = None if block_mask is None else Tensor(block_mask.tiles)
        self.tile = 0 if block_mask is None else block_mask.tile
        self.backend, self.head_dim, self.value_head_dim = backend, head_dim, value_head_dim
        self.axis, self.input_layout = LAYOUTS[input_layout].axes.index("seq"), input_layout
        self.join = ops.Concat(self.axis)
        # Constants that a graph passes on while it is compiled.
        self.constants = rules.constants()
        self.options = world, order, self.constants, input_layout, head_dim, value_head_dim
        self.chunks = split.chunks(rank)
        self.on_cpu = ms.get_context("device_target") == "CPU"
        self.gather_key, self.gather_value = (Gather(split, rank, self.axis, self.on_cpu) for _ in range(2))

    def __call__(self, *arguments, **named):
        # Not by `EntryCell`, which may leave GRAPH mode.
        arguments, named = results_in_graph_mode(arguments, named)
        return super().__call__(*arguments, **named)

    def construct(
        self,
        query,
        key,
        value,
        attention_mask=None,
        alibi_mask=None,
        sinks=None,
        prefix=None,
        segment_ids=None,
        block_mask=None,
    ):
        if attention_mask is not None:
            refuse(
                "attention_mask: GatherAttention takes none, as no process holds the whole sequence; causal=True and "
                "windows are arguments of the layer"
            )
        if alibi_mask is not None:
            refuse(
                "alibi_mask: GatherAttention takes none, as no process holds the whole sequence; alibi=True computes "
                "ALiBi from the distance"
            )
        specs = spec(query), spec(key), spec(value)
        tiles, tile = self.tiles, self.tile
        if block_mask is not None:
            tiles, tile = block_mask, 0
        optional = spec(sinks), _spec_of_prefix(prefix), spec(segment_ids), spec(tiles)
        sizes = _sizes_of_a_chunk(specs, optional, self.options, tile)
        dtype = query.dtype
        if self.on_cpu:  # in graphs it neither cuts up nor joins bfloat16
            query = ops.cast(query, mstype.float32)
        if sinks is not None:
            sinks = ops.cast(sinks, mstype.float32)
        key, value = self.gather_key(key), self.gather_value(value)
        return self.attend_to_all(query, key, value, sinks, prefix, segment_ids, tiles, sizes, dtype)

    def attend_to_all(self, query, key, value, sinks, prefix, segment_ids, tiles, sizes, dtype):
        """Return the outputs of this process's queries, from the keys and values of all. `sizes` are the tokens of a
        chunk and of a tile.
        """
        tokens, tile = sizes
        others = (False, self.input_layout, self.head_dim, self.value_head_dim, None, False, tile, "")
        ids, tiles = constant(segment_ids), constant(tiles)
        outputs = ()
        for place, chunk in enumerate(self.chunks):
            first = chunk * tokens
            rows = query
            if len(self.chunks) > 1:
                rows = cut(query, self.axis, place * tokens, tokens)
            row_ids = None
            if ids is not None:
                row_ids = ids[:, first : first + tokens]
            row_tiles = None
            if tiles is not None:
                row_tiles = tiles[:, :, first // tile : (first + tokens + tile - 1) // tile]
            tensors = (ops.cast(rows, dtype), ops.cast(key, dtype), ops.cast(value, dtype))
            ours = {"sinks": sinks, "prefix": prefix, "segment_ids": row_ids, "kv_segment_ids": ids}
            rules = _rules(self.constants, first)
            output = attend(tensors, rules, others, self.backend, block_mask=row_tiles, **ours)
            outputs = outputs + (ops.cast(output, query.dtype),)
        if len(self.chunks) == 1:
            return ops.cast(outputs[0], dtype)
        return ops.cast(self.join(outputs), dtype)


class Gather(nn.Cell):
    """Gather a sequence's tensor from its parts, by operations that MindSpore differentiates.

    A CPU lacks ReduceScatter, the gradient of AllGather. There a sum puts the parts together, in float32.

    Args:
        axis: of the tokens.
        on_cpu: whether the device is a CPU.
    """

    def __init__(self, split: SequenceSplit, rank: int, axis: int, on_cpu: bool):
        super().__init__()
        self.axis, self.count = axis, split.chunks_per_process
        held = tuple(split.chunks(other) for other in range(split.world))
        # The process of each chunk, and the chunk's place there.
        self.places = tuple(
            next((other, chunks.index(chunk)) for other, chunks in enumerate(held) if chunk in chunks)
            for chunk in range(split.world * split.chunks_per_process)
        )
        self.rank, self.on_cpu = rank, on_cpu
        self.meet, self.join = ops.AllReduce() if self.on_cpu else ops.AllGather(), ops.Concat(axis)

    def construct(self, tensor):
        tokens, rows = tensor.shape[self.axis] // self.count, tensor.shape[0]
        chunks = ()
        if self.on_cpu:
            wide = ops.cast(tensor, mstype.float32)
            for process, place in self.places:
                chunk = cut(wide, self.axis, place * tokens, tokens)
                chunks = chunks + (chunk if process == self.rank else ops.zeros_like(chunk),)
            return self.meet(self.join(chunks))
        gathered = self.meet(tensor)
        for process, place in self.places:
            part = cut(gathered, 0, process * rows, rows)
            chunks = chunks + (cut(part, self.axis, place * tokens, tokens),)
        return self.join(chunks)


def cut(tensor, axis, first, count):
    """Return `count` tokens of a tensor from `first` on."""
    shape, before = tensor.shape, (0,) * axis
    begin, end = before + (first,), shape[:axis] + (first + count,)
    return ops.strided_slice(tensor, begin + (0,) * (len(shape) - axis - 1), end + shape[axis + 1 :], (1,) * len(shape))


@compile_time
def _rules(constants, first):
    """Return `AttentionRules.constants` of a chunk whose first query has position `first`."""
    return replace(AttentionRules(*constants), first_query=first).constants()


def _spec_of_prefix(prefix):
    """Describe a prefix, which may be a tuple of integers."""
    if isinstance(prefix, (tuple, list)):
        return (len(prefix),), "int32"
    return spec(prefix)


@compile_time
def _sizes_of_a_chunk(specs, optional, options, tile):
    """Check the inputs, and return the tokens of a chunk and of a tile."""
    world, order, constants, layout, head_dim, value_head_dim = options
    specs = tuple(map(tensor_spec, ("query", "key", "value"), specs))
    found = read_tensors(*specs, layout, head_dim, value_head_dim)
    if found.seq_q != found.seq_k:
        raise ValueError(
            f"key: got {found.seq_k} tokens, but query has {found.seq_q}; both are split alike over the processes"
        )
    split = SequenceSplit(world, order)
    if found.seq_q % split.chunks_per_process:
        raise ValueError(
            f"query: got {found.seq_q} tokens per process, allowed are multiples of {split.chunks_per_process} in "
            f"{order} order: a whole sequence of a multiple of {split.chunks_per_process * world} tokens over {world} "
            "processes"
        )
    sinks, prefix, ids, tiles = read_specs(("sinks", "prefix", "segment_ids", "block_mask"), optional)
    axis = LAYOUTS[layout].axes.index("seq")
    whole = (
        TensorSpec((*one.shape[:axis], world * one.shape[axis], *one.shape[axis + 1 :]), one.dtype) for one in specs
    )
    call = Call.from_inputs(
        *whole,
        **{"sinks": sinks, "prefix": prefix, "segment_ids": ids, "rules": AttentionRules(*constants)},
        **{"input_layout": layout, "head_dim": head_dim, "value_head_dim": value_head_dim},
        **{"block_mask": tiles, "block_mask_tile": tile},
    )
    tokens, tile = found.seq_q // split.chunks_per_process, call.block_mask_tile
    if tile and tokens < call.seq_q and tokens % tile:
        chunks = call.seq_q // tokens
        raise ValueError(
            f"block_mask: got tiles of {tile} tokens for chunks of {tokens}, allowed are chunks of whole tiles: in "
            f"{order} order a whole sequence of a multiple of {chunks * tile} tokens over {world} processes"
        )
    return tokens, tile
