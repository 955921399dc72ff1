"""Prepare a call once per combination of shapes and rules: describe it, choose its backend, build its Cell.

In GRAPH mode and @jit that happens while the graph compiles. Shapes and rules are constants there, and `prepare`, a
compile-time function, puts the chosen backend's Cell into the graph.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import mindspore as ms
from mindspore import nn

from flash_attention.backends import registry
from flash_attention.bridge.precision import fix_dtypes
from flash_attention.bridge.tensors import (
    Exact,
    cached,
    compile_time,
    lengths_spec,
    read_specs,
    recording,
    remembered,
    tensor_spec,
)
from flash_attention.call import AttentionRules, Call, TensorSpec
from flash_attention.call.names import called
from flash_attention.call.optional import KV_SEGMENT_IDS, MASK, NAMES, PREFIX, SEGMENT_IDS
from flash_attention.call.paged import check_counts, check_query, paged_call, true_widths
from flash_attention.call.paged import check_numbers as check_pages
from flash_attention.call.rules import RULE_ARGUMENTS
from flash_attention.call.varlen import check_numbers as check_ends
from flash_attention.call.varlen import varlen_call
from flash_attention.call_cells import DenseCall, NumberCheck, Widened, WithSelectedInputs
from flash_attention.sharding.shard import sharding

# The tensors that every call of a kind has, see `Call.kind`.
_TENSORS = {
    "dense": ("query", "key", "value"),
    "varlen": ("query", "key", "value", "cu_seqlens_q", "cu_seqlens_k"),
    "paged": ("query", "key_cache", "value_cache", "block_tables", "context_lens"),
}
# The options of a kind, in the order in which a graph passes them on.
_OPTIONS = {
    "dense": (
        *("bias_grad", "input_layout", "head_dim", "value_head_dim", "batch", "return_lse"),
        *("block_mask_tile", "block_mask_key"),
    ),
    "varlen": ("bias_grad", "head_dim", "value_head_dim", "return_lse"),
}


@compile_time
def read_rules(names, *arguments):
    """Return `AttentionRules.constants` of arguments of the public functions, in the order of RULE_ARGUMENTS. A graph
    passes on constants, and not every object.
    """
    with called(names):
        return _rules(*arguments)


@remembered
def _rules(*arguments) -> tuple:
    return AttentionRules.from_arguments(**dict(zip(RULE_ARGUMENTS, arguments))).constants()


@compile_time
def prepare(kind, tensors, inputs, names, rules, options, backend, shards=None, compiled_lse=False):
    """Return the Cell that runs a call. A graph passes on constants, so that all arguments are tuples of them.

    Args:
        kind: "dense", "varlen" or "paged".
        tensors: the tensors that every call of the kind has, as `spec` describes them.
        inputs: the optional inputs likewise, in the order of OPTIONAL.
        names: the caller's names of the arguments, see `flash_attention.call.names`.
        rules: `AttentionRules.constants`.
        options: for a dense or varlen call the values of _OPTIONS; for a paged call see `_paged`.
        backend: the name that the caller gave, or None.
        shards: see `flash_attention`.
        compiled_lse: whether a graph returns the logsumexp.
    """
    with called(names):
        described = tuple(
            (lengths_spec if name.startswith("cu_seqlens") else tensor_spec)(name, tensor)
            for name, tensor in zip(_TENSORS[kind], tensors)
        )
        given = read_specs(("attention_mask", *NAMES[1:]), inputs)
        forced, device = registry.forced_backend(backend), ms.get_context("device_target")
        # Mask, prefix, ids and lengths are looked at in every call, and errors then need the names. Without them, calls
        # of functions with other names share a Cell.
        looked_at = any(given[place] for place in (MASK, PREFIX, SEGMENT_IDS, KV_SEGMENT_IDS))
        kept = names if kind != "dense" or looked_at else ()
        if kind == "dense" and options[-1] and not registry.prepares_block_masks(forced, device):
            options = *options[:-1], ""  # the mask is data, so that calls with other masks share a Cell
        run = _KINDS[kind](described, given, kept, rules, Exact(options), forced, device, sharding(shards))
        # Both results of the kernel are parts of a pair. MindSpore then adds the gradients of its parts, even zeros.
        if compiled_lse and run.backend == "cpu" and lacks_operations(described[0]) and recording():
            raise RuntimeError(
                "return_lse: got bfloat16 in a @jit function that PYNATIVE differentiates; its gradient needs an AddN, "
                "and MindSpore has none for bfloat16 on a CPU; allowed are float32 and float16, GRAPH mode, the "
                "gradient taken inside the @jit function, or no @jit"
            )
        return run


@cached
def _dense(tensors, inputs, names, rules, options, backend, device, shards) -> nn.Cell:
    rules = AttentionRules(*rules)
    call = Call.from_inputs(
        *tensors,
        rules=rules,
        training=rules.dropout_rate > 0,
        device=device,
        **dict(zip((*NAMES, *_OPTIONS["dense"]), (*inputs, *options))),
    )
    mask = inputs[MASK]
    shard = shards and shards.shard(call, mask and mask.shape)
    local = call if shard is None else shard.grid.local(call, shard.rank)
    chosen = registry.choose(local, backend, shard is not None)
    layout = chosen.layout(local, shard is not None)
    run = chosen.build(replace(local, layout=layout), shard)
    mask_rank = 0 if mask is None or call.empty else len(mask.shape)
    wide_ids = "int64" in (one.dtype for one in (inputs[SEGMENT_IDS], inputs[KV_SEGMENT_IDS]) if one is not None)
    return fix_dtypes(DenseCall(call, run, chosen.name, layout, mask_rank, names, wide_ids, shard))


@cached
def _varlen(tensors, inputs, names, rules, options, backend, device, _) -> nn.Cell:
    rules = AttentionRules(*rules)
    call = varlen_call(
        *tensors,
        rules=rules,
        training=rules.dropout_rate > 0,
        device=device,
        **dict(zip((*NAMES, *_OPTIONS["varlen"]), (*inputs, *options))),
    )
    looks = device == "CPU" and (not call.varlen.constant or call.prefix)
    check = NumberCheck(functools.partial(check_ends, call), names) if looks else None
    return fix_dtypes(WithSelectedInputs(registry.choose(call, backend).build(call), call, check))


@cached
def _paged(tensors, inputs, names, rules, options, backend, device, _) -> nn.Cell:
    """Return the Cell of a paged call.

    Its options are max_length, (head_dim, value_head_dim), tokens as `spec` describes them, the side of padding,
    whether the numbers in tables and lengths are checked, whether there is left padding, and whether the logsumexp is
    wanted.
    """
    max_length, (head_dim, value_head_dim), tokens, padding, looks, left_padding, return_lse = options
    rules, (query, key_cache, value_cache, tables, lengths) = AttentionRules(*rules), tensors
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
        left_padding=left_padding,
        return_lse=return_lse,
    )
    check = None
    if looks and device == "CPU":
        check = NumberCheck(lambda tables, lengths, _: check_pages(call, tables, lengths), names)
    if call.empty:  # its cell reads no tensor
        empty = replace(call, value_dim=value_head_dim or call.value_dim)
        return fix_dtypes(WithSelectedInputs(registry.choose(empty, backend).build(empty), call, check))
    run = WithSelectedInputs(registry.choose(call, backend).build(call), call, check)
    if wide is not query or value_head_dim is not None:
        run = Widened(run, query.shape[-1], wide.shape[-1], value_head_dim, return_lse)
    return fix_dtypes(run)


_KINDS = {"dense": _dense, "varlen": _varlen, "paged": _paged}


def lacks_operations(tensor: TensorSpec) -> bool:
    """Return True if compiled graphs lack Reshape, ExpandDims, Transpose and AddN for a tensor."""
    return tensor.dtype == "bfloat16" and ms.get_context("device_target") == "CPU"
