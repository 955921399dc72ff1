"""Plan a call once per combination of shapes and rules: describe it, choose its backend, build the Cell that runs it.

In GRAPH mode and @jit that happens while the graph compiles. Shapes and rules are constants there, and `plan`, a
compile-time function, puts the chosen backend's Cell into the graph.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype
from mindspore.nn.cell import _pynative_executor

from flash_attention.backends import registry
from flash_attention.bridge.hiding import Hides
from flash_attention.bridge.parameters import EntryCell
from flash_attention.bridge.precision import fix_dtypes
from flash_attention.bridge.tensors import (
    ChangeLayout,
    NumberCheck,
    SelectInputs,
    WithSelectedInputs,
    compile_time,
    read_specs,
    remembered,
    tensor_spec,
)
from flash_attention.call import Call, TensorSpec
from flash_attention.call.checks import INT32, check_range
from flash_attention.call.layout import CALL_LAYOUTS, Layout
from flash_attention.call.names import Names, called
from flash_attention.call.optional import NAMES
from flash_attention.call.paged import check_counts, check_query, paged_call, true_widths
from flash_attention.call.paged import check_numbers as check_pages
from flash_attention.call.varlen import check_numbers as check_ends
from flash_attention.call.varlen import varlen_call
from flash_attention.sharding.shard import TENSOR, Shard, sharding

# The tensors that every call of a kind has, see `Call.kind`.
_TENSORS = {
    "dense": ("query", "key", "value"),
    "varlen": ("query", "key", "value", "cu_seqlens_q", "cu_seqlens_k"),
    "paged": ("query", "key_cache", "value_cache", "block_tables", "context_lens"),
}
# The options of a kind, in the order in which a graph passes them on.
_OPTIONS = {
    "dense": ("bias_grad", "input_layout", "head_dim", "value_head_dim", "batch", "return_lse"),
    "varlen": ("bias_grad", "head_dim", "value_head_dim", "return_lse"),
}


@compile_time
def plan(kind, tensors, inputs, names, rules, options, backend, shards=None, compiled_lse=False):
    """Return the Cell that runs a call. A graph passes on constants, so that all arguments are tuples of them.

    Args:
        kind: "dense", "varlen" or "paged".
        tensors: the tensors that every call of the kind has, as `spec` describes them.
        inputs: the optional inputs likewise, in the order of OPTIONAL.
        names: the caller's names of the arguments, see `flash_attention.call.names`.
        rules: validated AttentionRules.
        options: for a dense or varlen call the values of _OPTIONS; for a paged call see `_paged`.
        backend: the name that the caller gave, or None.
        shards: see `flash_attention`.
        compiled_lse: whether a graph returns the logsumexp.

    Raises:
        TypeError, ValueError: an input is not allowed.
        RuntimeError: no backend runs the call, or MindSpore cannot differentiate it.
    """
    with called(names):
        described = tuple(map(_read_tensor, _TENSORS[kind], tensors))
        given = read_specs(("attention_mask", *NAMES[1:]), inputs)
        forced, device = registry.forced_backend(backend), ms.get_context("device_target")
        # Mask, prefix, ids and lengths are looked at in every call, and errors then need the names. Without them, calls
        # of functions with other names share a plan.
        kept = names if kind != "dense" or given[0] or any(given[5:8]) else ()
        run = _PLANS[kind](described, given, kept, rules, options, forced, device, sharding(shards))
        # Both results of the kernel are parts of a pair. MindSpore then adds the gradients of its parts, even zeros.
        if compiled_lse and run.backend == "cpu" and lacks_operations(described[0]) and _pynative_executor.grad_flag():
            raise RuntimeError(
                "return_lse: got bfloat16 in a @jit function that PYNATIVE differentiates; its gradient needs an AddN, "
                "and MindSpore has none for bfloat16 on a CPU; allowed are float32 and float16, GRAPH mode, the "
                "gradient taken inside the @jit function, or no @jit"
            )
        return run


def _read_tensor(name: str, described):
    """Return a checked TensorSpec. Lengths of sequences may be a tuple or list of integers instead."""
    lengths = name.startswith("cu_seqlens") and isinstance(described, (tuple, list))
    if lengths and not (len(described) == 2 and isinstance(described[0], tuple)):
        return tuple(described)
    return tensor_spec(name, described)


@remembered
def _dense(tensors, inputs, names, rules, options, backend, device, shards) -> nn.Cell:
    call = Call.from_inputs(
        *tensors,
        rules=rules,
        training=rules.dropout_rate > 0,
        device=device,
        **dict(zip((*NAMES, *_OPTIONS["dense"]), (*inputs, *options))),
    )
    mask = inputs[0]
    shard = shards and shards.shard(call, mask and mask.shape)
    local = call if shard is None else shard.plan.local(call, shard.rank)
    chosen = registry.choose(local, backend, shard is not None)
    layout = call.layout if call.empty else chosen.layout(local, shard is not None)
    run = registry.build(replace(local, layout=layout), chosen, shard)
    mask_rank = 0 if mask is None or call.empty else len(mask.shape)
    wide_ids = "int64" in (one.dtype for one in inputs[6:8] if one is not None)
    return fix_dtypes(DenseCall(call, run, chosen.name, layout, mask_rank, names, wide_ids, shard))


@remembered
def _varlen(tensors, inputs, names, rules, options, backend, device, _) -> nn.Cell:
    call = varlen_call(
        *tensors,
        rules=rules,
        training=rules.dropout_rate > 0,
        device=device,
        **dict(zip((*NAMES, *_OPTIONS["varlen"]), (*inputs, *options))),
    )
    looks = device == "CPU" and (not call.varlen.constant or call.prefix)
    check = NumberCheck(functools.partial(check_ends, call), names) if looks else None
    return fix_dtypes(WithSelectedInputs(registry.build(call, backend), call, check))


@remembered
def _paged(tensors, inputs, names, rules, options, backend, device, _) -> nn.Cell:
    """Return the Cell of a paged call.

    Its options are max_length, (head_dim, value_head_dim), tokens as `spec` describes them, the side of padding, and
    whether the numbers in tables and lengths are checked.
    """
    max_length, (head_dim, value_head_dim), tokens, padding, looks = options
    query, key_cache, value_cache, tables, lengths = tensors
    if tokens is not None:
        check_counts("tokens", tensor_spec("tokens", tokens), lengths.shape[0])
    if max_length is not None:
        check_query(query, tables.shape[0], key_cache, head_dim)
    wide, value_head_dim = true_widths(query, key_cache, value_cache, value_head_dim)
    if rules.scale is None and wide is not query:
        rules = replace(rules, scale=query.shape[-1] ** -0.5)
    call = paged_call(
        *(wide, *tensors[1:]),
        **{name: spec for name, spec in zip(NAMES, inputs) if spec is not None},
        rules=rules,
        device=device,
        max_length=max_length,
        padding=None if tokens is None else padding,
    )
    check = None
    if looks and device == "CPU":
        check = NumberCheck(lambda tables, lengths, _: check_pages(call, tables, lengths), names)
    if call.empty:  # its cell reads no tensor
        empty = replace(call, value_dim=value_head_dim or call.value_dim)
        return fix_dtypes(WithSelectedInputs(registry.build(empty, backend), call, check))
    run = WithSelectedInputs(registry.build(call, backend), call, check)
    if wide is not query or value_head_dim is not None:
        run = _Widened(run, query.shape[-1], wide.shape[-1], value_head_dim)
    return fix_dtypes(run)


_PLANS = {"dense": _dense, "varlen": _varlen, "paged": _paged}


def lacks_operations(tensor: TensorSpec) -> bool:
    """Return True if compiled graphs lack Reshape, ExpandDims, Transpose and AddN for a tensor."""
    return tensor.dtype == "bfloat16" and ms.get_context("device_target") == "CPU"


class DenseCall(EntryCell):
    """Run one kind of call: a backend's cell, and steps that turn the caller's tensors into the backend's tensors."""

    def __init__(
        self,
        call: Call,
        run: nn.Cell,
        backend: str,
        layout: str,
        mask_rank: int,
        names: Names,
        wide_ids: bool,
        shard: Shard | None = None,
    ):
        super().__init__()
        self.run, self.backend = run, backend
        self.mask_rank = mask_rank
        compact = mask_rank and call.mask_shape is None
        self.check_triangle = _TriangleCheck(call.rules.tile, names) if compact else None
        self.present = SelectInputs(call)
        looks = call.device == "CPU" and not call.dynamic
        self.check_prefix = self.check_ids = None
        if looks and call.prefix:
            self.check_prefix = NumberCheck(lambda prefix: check_range("prefix", prefix, call.seq_k), names)
        if looks and wide_ids:
            self.check_ids = NumberCheck(_check_ids, names)
        # The caller's layout becomes the layout that the backend takes.
        given, taken = CALL_LAYOUTS[call.layout], CALL_LAYOUTS[layout]
        widens = call.device == "CPU" and call.dtype == "bfloat16"
        of_query = call.heads, call.head_dim
        of_key, of_value = (call.kv_heads, call.head_dim), (call.kv_heads, call.value_dim)
        self.turns = nn.CellList(
            [ChangeLayout(given, taken, *sizes, call.batch, widens) for sizes in (of_query, of_key, of_value)]
        )
        self.turn_back = ChangeLayout(taken, given, call.heads, call.value_dim, call.batch, widens)
        self.hides, self.expand = Hides(), (ops.ExpandDims(), ops.ExpandDims())
        self.sharded = shard is not None
        if shard is not None:
            self._give_strategies(shard, given)

    def _give_strategies(self, shard: Shard, given: Layout):
        """Give strategies to operations. MindSpore gathers the tensors of an operation without a strategy.

        Casts and reshapes take the strategies around them.
        """
        for turn in self.turns:
            turn.transpose = shard.glue(ops.Transpose(), given.split_sharding)
        self.turn_back.transpose = shard.glue(ops.Transpose(), TENSOR)
        if shard.mask_axes is not None:
            axes = {2: shard.mask_axes[2:], 3: (shard.mask_axes[0], *shard.mask_axes[2:]), 4: shard.mask_axes}
            self.hides.shard(shard, axes[self.mask_rank])
            last = axes[3] if self.mask_rank == 3 else (None, *shard.mask_axes[2:])
            shard.glue(self.expand[0], axes[2])
            shard.glue(self.expand[1], last)

    def construct(self, query, key, value, inputs):
        query, key, value = self.turns[0](query), self.turns[1](key), self.turns[2](value)
        if self.check_prefix is not None:
            self.check_prefix(inputs[5])
        if self.check_ids is not None:
            self.check_ids(inputs[6], inputs[7])
        present = self.present(inputs)
        if self.check_triangle is not None:
            self.check_triangle(inputs[0])
        elif self.mask_rank > 0:
            present = (self.rank_4(present[0]),) + present[1:]
        output, logsumexp = self.run(query, key, value, present)
        return self.turn_back(output), logsumexp

    def rank_4(self, mask):
        """Return a mask as backends take it."""
        if self.sharded and (mask.dtype == mstype.bool_ or mask.dtype == mstype.uint8):
            mask = ops.cast(mask, mstype.float16)  # cards gather neither of the two
        mask = self.hides(mask)
        if self.mask_rank == 2:
            mask = self.expand[0](mask, 0)
        if self.mask_rank < 4:
            mask = self.expand[1](mask, 1)
        return mask


def _check_ids(*ids) -> None:
    """Raise an error unless int32, the backends' dtype for ids, holds them all."""
    for name, numbers in zip(("segment_ids", "kv_segment_ids"), ids):
        check_range(name, numbers, INT32[1], INT32[0])


class _TriangleCheck(nn.Cell):
    """Refuse a compact mask that is not the strict upper triangle. Only PYNATIVE can: a graph sees no contents.

    Reading a tensor waits for all operations under way. So on a CPU, a mask that passed is compared in place, and read
    again only when it has moved. A write by an operation under way shows at the next call.
    """

    def __init__(self, tile: int, names: Names):
        super().__init__()
        self.tile, self.names = tile, names
        self.passed, self.address = None, 0
        self.memory, self.contents = None, b""  # of the mask that passed, and a copy

    def __call__(self, mask):
        address = mask.data_ptr() if hasattr(mask, "data_ptr") else None
        same_place = mask is self.passed and address == self.address
        if same_place and (self.memory is None or self.memory.tobytes() == self.contents):
            return
        contents = mask.astype(mstype.float32).asnumpy().reshape(self.tile, self.tile)
        if not np.array_equal(contents != 0, np.triu(np.ones_like(contents), 1) != 0):
            with called(self.names):
                raise ValueError(
                    f"attention_mask: shape {mask.shape} stands for the compact causal mask, which is 1 strictly above "
                    "the diagonal and 0 elsewhere, but the contents are different; give the full (seq_q, seq_k) mask "
                    "instead"
                )
        if address is None:
            return  # MindSpore 2.0 does not say where a tensor lies
        self.passed, self.address, self.memory = mask, address, None
        # NumPy has no bfloat16, so `asnumpy` gives a copy of such a mask.
        if ms.get_context("device_target") == "CPU" and mask.dtype != getattr(mstype, "bfloat16", None):
            self.memory = mask.asnumpy()
            self.contents = self.memory.tobytes()

    def construct(self, mask):
        return mask


class _Widened(EntryCell):
    """Run a paged call whose caches are wider than query and values."""

    def __init__(self, run: nn.Cell, head_dim: int, width: int, value_head_dim: int | None):
        super().__init__()
        self.run, self.pad, self.value_head_dim = run, Padding(head_dim, width), value_head_dim

    def construct(self, query, key_cache, value_cache, block_tables, context_lens, inputs):
        output = self.run(self.pad(query), key_cache, value_cache, block_tables, context_lens, inputs)
        if self.value_head_dim is not None:
            dtype = output.dtype
            output = ops.cast(ops.cast(output, mstype.float32)[..., : self.value_head_dim], dtype)
        return output


class Padding(EntryCell):
    """Append zeros to the last axis, through float32: a compiled graph on a CPU joins no bfloat16."""

    def __init__(self, size: int, width: int):
        super().__init__()
        self.missing = width - size
        self.zeros = Tensor(np.zeros(self.missing, np.float32))

    def construct(self, tensor):
        if self.missing == 0:
            return tensor
        wide = ops.cast(tensor, mstype.float32)
        zeros = ops.zeros_like(wide[..., :1]) + self.zeros
        return ops.cast(ops.concat((wide, zeros), -1), tensor.dtype)
