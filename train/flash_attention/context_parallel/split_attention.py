"""Hold the common parts of RingAttention and GatherAttention: arguments, checks, layouts."""

from __future__ import annotations

from dataclasses import replace

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype
from mindspore.ops import constexpr

from flash_attention.backends import registry
from flash_attention.bridge.parameters import results_in_graph_mode
from flash_attention.bridge.tensors import as_int32, constant, int_tensor, read_specs
from flash_attention.call import ALL_BLOCKS, AttentionRules, Call
from flash_attention.call.checks import check_int, check_name
from flash_attention.call.inputs import MAX_HEAD_DIM, MAX_VALUE_DIM, TensorSpec, read_tensors
from flash_attention.call.layout import LAYOUTS
from flash_attention.call.tiling import DEFAULT_STRATEGY
from flash_attention.call_cells import ChangeLayout
from flash_attention.context_parallel.communication import Processes
from flash_attention.context_parallel.plan import check_length
from flash_attention.context_parallel.sequence import SequenceSplit


class SplitAttention(nn.Cell):
    """Prepare calls of attention over a split sequence, as the base class of both layers. Subclasses define `attend` on
    (batch, heads, seq, head_dim) tensors, and how processes talk.
    """

    connection: type[Processes] = Processes

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
        backend: str | None = None,
    ) -> None:
        processes = self.connection()
        super().__init__()
        name = self.name = type(self).__name__
        self.processes = processes
        self.compared: set[tuple] = set()  # sizes that all processes are known to share
        self.split = SequenceSplit(processes.world, order)
        self.rules = AttentionRules.from_arguments(
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
        if self.rules.in_blocks and (self.rules.window_left, self.rules.window_right) != (-1, -1):
            raise ValueError(
                f"window_size: got {window_size} beside prev_block_num {prev_block_num} and next_block_num "
                f"{next_block_num}; {name} takes a window in tokens or one in tiles"
            )
        check_name("input_layout", input_layout, LAYOUTS)
        if value_head_dim is None and LAYOUTS[input_layout].merged:
            value_head_dim = head_dim
        registry.forced_backend(backend)
        self.backend = backend
        self.head_dim, self.value_head_dim, self.input_layout = head_dim, value_head_dim, input_layout
        # Constants that a graph passes on while it is compiled.
        self.place, self.constants = (processes.rank, processes.world, order), self.rules.constants()
        self.widths = head_dim, value_head_dim
        given, heads_first = LAYOUTS[input_layout], LAYOUTS["BNSD"]
        # Any number of heads is allowed. If a value may have any width, its layout shows it.
        self.turn_keys = ChangeLayout(given, heads_first, -1, head_dim)
        self.turn_values = ChangeLayout(given, heads_first, -1, value_head_dim or head_dim)
        self.turn_back = ChangeLayout(heads_first, given, -1, value_head_dim or head_dim)
        self.nothing, self.none = Tensor(np.zeros(1, np.float32)), Tensor(np.zeros(1, np.int32))

    def __call__(self, *arguments, **named):
        # Not by `EntryCell`, which may leave GRAPH mode.
        arguments, named = results_in_graph_mode(arguments, named)
        return super().__call__(*arguments, **named)

    def construct(
        self, query, key, value, attention_mask=None, alibi_mask=None, sinks=None, prefix=None, segment_ids=None
    ):
        if attention_mask is not None:
            _refuse_mask("attention_mask", self.name, "causal=True and windows are arguments of the layer")
        if alibi_mask is not None:
            _refuse_mask("alibi_mask", self.name, "alibi=True computes ALiBi from the distance")
        if isinstance(prefix, (tuple, list)):
            prefix = int_tensor("prefix", prefix, 0)
        query, key, value = self.turn_keys(query), self.turn_keys(key), self.turn_values(value)
        return self.turn_back(self.attend(query, key, value, sinks, prefix, segment_ids))

    def present(self, sinks, prefix, segment_ids):
        """Return the optional inputs, with stand-ins for None. A bprop cannot be written around None."""
        sinks = self.nothing if sinks is None else ops.cast(sinks, mstype.float32)
        prefix, segment_ids = constant(as_int32(prefix)), constant(as_int32(segment_ids))
        return sinks, self.none if prefix is None else prefix, self.none if segment_ids is None else segment_ids


def read_call(
    specs: tuple[TensorSpec, TensorSpec, TensorSpec],
    optional: tuple,
    split: SequenceSplit,
    rules: AttentionRules,
    head_dim: int,
    value_head_dim: int | None,
) -> Call:
    """Return the checked call of a process's tokens. It comes from the specs of its (batch, heads, seq, head_dim)
    tensors, and from `flash_attention.bridge.tensors.spec` of sinks, prefix and segment_ids.
    """
    found = read_tensors(*specs, "BNSD", head_dim, value_head_dim)
    if found.seq_q != found.seq_k:
        raise ValueError(
            f"key: got {found.seq_k} tokens, but query has {found.seq_q}; both are split alike over the processes"
        )
    check_length(split, rules, found.seq_q)
    sinks, prefix, ids = read_specs(("sinks", "prefix", "segment_ids"), optional)
    whole = (TensorSpec((*one.shape[:2], split.world * one.shape[2], one.shape[3]), one.dtype) for one in specs)
    fixed = {"device": ms.get_context("device_target"), "bias_grad": False, "return_lse": True}
    call = Call.from_inputs(*whole, sinks=sinks, prefix=prefix, segment_ids=ids, rules=rules, **fixed)
    return replace(call, seq_q=found.seq_q, seq_k=found.seq_k)


@constexpr(reuse_result=False)
def _refuse_mask(argument, name, instead):
    raise ValueError(f"{argument}: {name} takes none, as no process holds the columns of all keys; {instead}")
