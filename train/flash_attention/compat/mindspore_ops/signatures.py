"""Name the arguments of MindSpore's operators in one table, and find them in a call.

A word is an argument: `name`, `name=default`, or `theirs:name` where MindSpore's name differs from ours. `!name` is
refused unless it has its default: quantisation, shared prefixes and paddings. What follows `*` has a keyword only.
"""

from __future__ import annotations

import ast
import functools
from typing import NamedTuple

from flash_attention.bridge.tensors import compile_time, spec

_TOKENS = f"pre_tokens={2**31 - 1} next_tokens={2**31 - 1}"
_QUANTISED = "!dequant_scale1 !quant_scale1 !dequant_scale2 !quant_scale2 !quant_offset2"
_SHARED = "!key_shared_prefix !value_shared_prefix !actual_shared_prefix_len"
_EACH = "!key_antiquant_scale !key_antiquant_offset !value_antiquant_scale !value_antiquant_offset"
_MODES = "!key_antiquant_mode=0 !value_antiquant_mode=0"
_HEADS = "num_key_value_heads=0"

# Settings, which a primitive takes when it is made.
_PROMPT = (
    f"num_heads=1 scale_value=1.0 pre_tokens={2**31 - 1} next_tokens=0 input_layout='BSH' {_HEADS} sparse_mode=0 "
    "inner_precise=1"
)
_INCRE = f"num_heads=1 input_layout='BSH' scale_value=1.0 {_HEADS} block_size=0 inner_precise=1"
_FUSED = f"{_TOKENS} input_layout='BSH' {_HEADS} sparse_mode=0 inner_precise=1 block_size=0 !antiquant_mode=0"

# Tensors, which a primitive takes when it is called.
_PROMPT_INPUTS = (
    "query key value attn_mask actual_seq_lengths actual_seq_lengths_kv pse_shift !deq_scale1 !quant_scale1 "
    "!deq_scale2 !quant_scale2 !quant_offset2"
)
_INCRE_INPUTS = (
    f"query key value attn_mask actual_seq_lengths:actual_seq_lengths_kv pse_shift {_QUANTISED} !antiquant_scale "
    "!antiquant_offset block_table"
)
_FUSED_INPUTS = f"actual_seq_lengths actual_seq_lengths_kv {_QUANTISED} !antiquant_scale !antiquant_offset"

_FAR = f"!pre_tokens={2**63 - 1} !next_tokens={2**63 - 1}"
_SPEED = (
    f"pse padding_mask atten_mask:attn_mask scale:scale_value=1.0 keep_prob=1.0 {_TOKENS} inner_precise=0 prefix "
    "actual_seq_qlen actual_seq_kvlen sparse_mode=0 gen_mask_parallel=True sync=False pse_type=1 !q_start_idx "
    "!kv_start_idx"
)
_SPARSE = (
    "!block_table actual_seq_lengths_query actual_seq_lengths_kv query_rope key_rope sparse_block_size=1 "
    f"layout_query='BSND' layout_kv='BSND' sparse_mode=3 {_FAR} attention_mode=0 return_softmax_lse=False"
)
_INDEXER = (
    "actual_seq_lengths_query actual_seq_lengths_key:actual_seq_lengths_kv !block_table layout_query='BSND' "
    f"layout_key:layout_kv='BSND' sparse_count=2048 sparse_mode=3 {_FAR} return_value=False"
)

_SIGNATURES = {
    "speed_fusion_attention": f"query key value head_num input_layout * {_SPEED}",
    "SpeedFusionAttention": f"query key value head_num input_layout seed offset {_SPEED}",
    "sparse_flash_attention": f"query key value sparse_indices scale_value {_SPARSE}",
    "lightning_indexer": f"query key weights {_INDEXER}",
    "prompt_flash_attention": f"{_PROMPT_INPUTS} {_PROMPT}",
    "PromptFlashAttention": _PROMPT,
    "PromptFlashAttention()": _PROMPT_INPUTS,
    "incre_flash_attention": f"{_INCRE_INPUTS} {_INCRE} !kv_padding_size",
    "IncreFlashAttention": _INCRE,
    "IncreFlashAttention()": f"{_INCRE_INPUTS} !kv_padding_size",
    "fused_infer_attention_score": (
        f"query key value * pse_shift atten_mask:attn_mask {_FUSED_INPUTS} {_EACH} block_table !query_padding_size "
        f"!kv_padding_size {_SHARED} num_heads=1 scale:scale_value=1.0 {_FUSED} {_MODES} softmax_lse_flag=False"
    ),
    "FusedInferAttentionScore": f"num_heads=1 scale_value=1.0 {_FUSED} softmax_lse_flag=False {_MODES}",
    "FusedInferAttentionScore()": (
        f"query key value pse_shift attn_mask {_FUSED_INPUTS} block_table !query_padding_size !kv_padding_size {_EACH} "
        f"{_SHARED}"
    ),
}


class _Argument(NamedTuple):
    theirs: str
    ours: str
    default: object
    refused: bool


@functools.cache
def _signature(operator: str) -> tuple[dict[str, _Argument], int]:
    """Return the arguments by MindSpore's names, and how many may be given by position."""
    words = _SIGNATURES[operator].split()
    positional = words.index("*") if "*" in words else len(words)
    arguments = {}
    for word in words:
        name, _, default = word.lstrip("!").partition("=")
        theirs, _, ours = name.partition(":")
        if word != "*":
            value = ast.literal_eval(default) if default else None
            arguments[theirs] = _Argument(theirs, ours or theirs, value, word[0] == "!")
    return arguments, positional


def arguments_of(operator, wanted, given, named):
    """Return the `wanted` arguments of a call, named as ours; None for others."""
    found = ()
    for place, name, default in _places(operator, wanted, len(given), tuple(named.keys())):
        value = default
        if place >= 0:
            value = given[place]
        elif name != "":
            value = named[name]
        found = found + (value,)
    for place, name in _refused(operator, len(given), tuple(named.keys())):
        if place >= 0:
            _check_absent(operator, name, spec(given[place]))
        else:
            _check_absent(operator, name, spec(named[name]))
    return found


@compile_time
def _places(operator, wanted, count, names):
    """Return where each wanted argument is: its position or -1, its name there or "", and its default."""
    arguments, positional = _signature(operator)
    if count > positional:
        raise TypeError(f"{operator}: got {count} positional arguments, allowed are {positional}")
    places = dict(zip(arguments, range(count)))
    for name in names:
        if name not in arguments:
            raise TypeError(f"{operator}: got an argument {name!r}, allowed are {', '.join(arguments)}")
        if name in places:
            raise TypeError(f"{name}: given by position and by keyword, allowed is one of them")
        places[name] = -1
    of_ours = {one.ours: one for one in arguments.values() if not one.refused}
    found = []
    for ours in wanted:
        one = of_ours.get(ours)
        if one is None or one.theirs not in places:
            found.append((-1, "", one and one.default))
        else:
            found.append((places[one.theirs], one.theirs, one.default))
    return tuple(found)


@compile_time
def _refused(operator, count, names):
    """Return position (or -1) and name of each argument that must have its default."""
    arguments, _ = _signature(operator)
    by_place = {name: place for place, name in enumerate(arguments) if place < count}
    return tuple((by_place.get(name, -1), name) for name in (*by_place, *names) if arguments[name].refused)


@compile_time
def _check_absent(operator, name, given):
    default = _signature(operator)[0][name].default
    if given != default:
        shown = "a Tensor" if isinstance(given, tuple) else repr(given)
        raise ValueError(
            f"{name}: got {shown}, allowed is {default}; quantisation, shared prefixes and paddings are "
            "out of scope, as are other arguments that must have their default"
        )
