"""Define a backend: a name, a reason to refuse a call, and a function for others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from flash_attention.call import Call

if TYPE_CHECKING:
    from mindspore.nn import Cell

    from flash_attention.sharding.shard import Shard


# The rules that together make the band of visible keys, see `AttentionRules.band`.
BAND_RULES = ("causal", "causal_alignment", "window_left", "window_right", "prev_blocks", "next_blocks", "tile")
# The inputs and rules of our own kernels, native and TIK. A new one stands here once both have it.
KERNEL_INPUTS = (
    *("mask", "bias", "keep_bits", "seed", "sinks", "prefix", "segment_ids", "kv_segment_ids", "alibi_slopes"),
    "block_mask",
)
KERNEL_RULES = (*BAND_RULES, "first_query", "alibi", "dropout_rate", "scale", "softcap")


class Backend(ABC):
    """One way to run attention. A backend's module exposes its only instance as `BACKEND`.

    Importing that module must be cheap, and must not fail if the backend cannot run. `unavailable` then says what is
    missing, in words that tell the user what to do.
    """

    name: str
    # The optional inputs that it knows, by name.
    takes: tuple[str, ...] = ()
    # The rules that it computes, by the names of their fields in AttentionRules. It refuses a call with any other rule.
    rules: tuple[str, ...] = ()
    # The kinds of calls that it knows, see `Call.kind`.
    kinds: tuple[str, ...] = ("dense",)
    # The kinds of calls for which `build` takes unknown sizes (call.dynamic), as graphs for dynamic shapes have them.
    # The cell then reads the sizes from its tensors at run time.
    dynamic: tuple[str, ...] = ()
    # Whether it prepares a block mask that is known, see `Call.block_mask_key`. For other backends every mask is data.
    prepares_block_masks = False

    def unavailable(self) -> str | None:
        """Return why this backend cannot run any call on this machine and device, or None."""
        return None

    def refuse_sharded(self) -> str | None:
        """Return why `build` takes no shard, or None."""
        return "has no shard strategies for semi-automatic parallelism"

    @abstractmethod
    def refuse(self, call: Call) -> str | None:
        """Return why this backend cannot run `call`, or None. Not called when `unavailable` gives a reason, or when the
        backend does not know the call's kind, one of its inputs or one of its rules.
        """

    def fate_of_hidden_tiles(self, call: Call) -> str:
        """Say what becomes of the tiles that a block mask hides, for `explain`."""
        return "a hidden tile is computed and then hidden"

    def layout(self, call: Call, sharded: bool = False) -> str:
        """Return the layout in which `build` takes a dense call. Callers bring the tensors into it, and name it there.

        Args:
            sharded: whether it is built with a shard.
        """
        return "BNSD"

    @abstractmethod
    def build(self, call: Call, shard: Shard | None = None) -> Cell:
        """Return the Cell that runs `call`. `flash_attention.prepare` keeps it for calls with equal arguments.

        The Cell holds no Parameters, and MindSpore can differentiate and compile it in GRAPH mode, PYNATIVE and @jit.
        In GRAPH mode it is built while the graph compiles, so its own `build` may use ordinary Python. A dense call:

            output, logsumexp = cell(query, key, value, inputs)

        query       (B, H, Sq, D)    in call.dtype; its axes as call.layout says, see `layout`
        key         (B, Hkv, Sk, D)  likewise
        value       (B, Hkv, Sk, Dv) likewise, Dv = call.value_dim
        inputs      a tuple of the tensors that `call.inputs` names, in that order; OPTIONAL says what they are
        output      (B, H, Sq, Dv)
        logsumexp   float32 (B, H, Sq): log of the sum of exp over visible keys of the scaled, biased scores, before
                    dropout; -inf for a row that sees nothing (its output and gradients are 0). May be None unless
                    call.return_lse.

        Packed sequences:

            output, logsumexp = cell(query, key, value, lengths_q, lengths_k, inputs)

        query       (Tq, H, D) or (Tq, H * D); key, value and output likewise
        lengths_q, lengths_k    int32 or int64 (sequences,) or (sequences + 1,), with or without the leading 0; None
                    if call.varlen has them
        inputs      likewise. A prefix is int32 (sequences,). Slopes of more than one item are float32 (sequences, H). A
                    bias is (1, H or 1, 1, Tk). keep_bits are uint8 (bytes,): (H, queries, ceil(keys / 8)) of one
                    sequence behind the other
        logsumexp   float32 (H, Tq)

        Keys in a paged cache, as in `paged_attention`, without a gradient:

            output = cell(query, key_cache, value_cache, block_tables, context_lens, inputs)

        With call.return_lse a pair of it and the logsumexp, as of a dense call. With left padding context_lens are a
        tuple of them and the numbers of keys that it hides.

        With a shard, `call` is one device's share of a call that MindSpore shards. The graph is written for the whole
        call, and every operation in it needs a strategy, see `flash_attention.sharding.shard`.

        Output and logsumexp are differentiable: the gradient of the logsumexp adds probability * d_logsumexp to the
        gradient of the scores. An optional input gets a gradient if `OPTIONAL` says so, else zeros.
        """
