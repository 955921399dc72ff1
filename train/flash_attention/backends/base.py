"""Define a backend: a name, a reason to refuse a problem, and a function for others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from flash_attention.problem import AttentionProblem
from flash_attention.problem.packed import PackedProblem
from flash_attention.problem.paged import PagedProblem

if TYPE_CHECKING:
    from mindspore.nn import Cell

    from flash_attention.sharding.shard import Shard


class Backend(ABC):
    """One way to run attention. A backend's module exposes its only instance as `BACKEND`.

    Importing that module must be cheap and must not fail where the backend cannot run: what is missing is the answer of
    `unavailable`, in words that tell the user what to do.
    """

    name: str
    # The optional inputs that it knows, by name.
    takes: tuple[str, ...] = ()
    # Whether `build` takes a problem with unknown sizes (problem.dynamic), met in graphs compiled for dynamic shapes;
    # the cell then reads the sizes from its tensors at run time.
    dynamic = False
    # Whether `build_packed` and `build_paged` take such problems.
    dynamic_sequences = False
    # Whether `build_paged` takes a problem with max_length; else it is cut to it around the cell (`PagedEnd`).
    takes_max_length = False

    def unavailable(self) -> str | None:
        """Why this backend cannot run any problem on this machine and device, or None."""
        return None

    def refuse_sharded(self) -> str | None:
        """Why `build` takes no shard, or None."""
        return "has no shard strategies for semi-automatic parallelism"

    @abstractmethod
    def refuse(self, problem: AttentionProblem) -> str | None:
        """Why this backend cannot run `problem`, or None. Not called when `unavailable` gives a reason."""

    def layout(self, problem: AttentionProblem, sharded: bool = False) -> str:
        """The layout in which `build` takes a problem: callers turn the tensors of `problem`, and name it there.

        Args:
            sharded: whether it is built with a shard.
        """
        return "BNSD"

    @abstractmethod
    def build(self, problem: AttentionProblem, shard: Shard | None = None) -> Cell:
        """The Cell that runs `problem`; called once per distinct problem, its result is cached.

        The Cell holds no Parameters, and MindSpore can differentiate and compile it in GRAPH mode, PYNATIVE and @jit.
        In GRAPH mode it is built while the graph compiles, so its own `build` may use ordinary Python:

            output, logsumexp = cell(query, key, value, inputs)

        query       (B, H, Sq, D)    in problem.dtype; its axes as problem.layout says, see `layout`
        key         (B, Hkv, Sk, D)  likewise
        value       (B, Hkv, Sk, Dv) likewise, Dv = problem.value_dim
        inputs      a tuple of the tensors that `problem.inputs` names, in that order; OPTIONAL says what they are
        output      (B, H, Sq, Dv)
        logsumexp   float32 (B, H, Sq): log of the sum of exp over visible keys of the scaled, biased scores, before
                    dropout; -inf for a row that sees nothing (its output and gradients are 0). May be None unless
                    problem.return_lse.

        With a shard, `problem` is the share of one device of a call that MindSpore shards: the graph is written for the
        whole, and every operation in it needs a strategy, see `flash_attention.sharding.shard`.

        Both outputs are differentiable: the gradient of the logsumexp adds probability * d_logsumexp to the gradient of
        the scores. Of the optional inputs those get a gradient that `OPTIONAL` says so of, others zeros.
        """

    def refuse_packed(self, problem: PackedProblem) -> str | None:
        """Why this backend cannot run packed sequences, or None. Called when it refuses neither itself nor the rows."""
        builds = type(self).build_packed is not Backend.build_packed
        return None if builds else "it takes no packed sequences (flash_attention_varlen)"

    def build_packed(self, problem: PackedProblem) -> Cell:
        """The Cell that runs a packed problem, otherwise as `build`.

            output, logsumexp = cell(query, key, value, lengths_q, lengths_k, inputs)

        query       (Tq, H, D) or (Tq, H * D); key, value and output likewise
        lengths_q, lengths_k    int32 or int64 (sequences,) or (sequences + 1,), with or without the leading 0; None
                    where problem.lengths_q or lengths_k has them
        inputs      the inputs of problem.rows.inputs, as for `build`; a prefix is int32 (sequences,), slopes of more
                    than one item are float32 (sequences, H), a bias is (1, H or 1, 1, Tk), and keep_bits are uint8
                    (bytes,), (H, queries, ceil(keys / 8)) of one sequence behind the other
        logsumexp   float32 (H, Tq)
        """
        raise NotImplementedError

    def refuse_paged(self, problem: PagedProblem) -> str | None:
        """Why this backend cannot run a paged problem, or None. Called when it does not refuse the whole."""
        return (
            None if type(self).build_paged is not Backend.build_paged else "it takes no paged cache (paged_attention)"
        )

    def build_paged(self, problem: PagedProblem) -> Cell:
        """Return the Cell that runs a paged problem, without a gradient. Inputs and output are as in `paged_attention`.

        output = cell(query, key_cache, value_cache, block_tables, context_lens, inputs)

        inputs are the tensors of problem.whole.inputs, as for `build`: sinks and alibi_slopes.
        """
        raise NotImplementedError

    def build_backward(self, problem: AttentionProblem) -> Cell | None:
        """Return the Cell of the backward pass alone, for attention put together from parts. A backend without such a
        Cell returns None, and callers then differentiate the cell of `build`. Called for problems without mask,
        dropout and sinks.

            d_query, d_key, d_value = cell(query, key, value, inputs, output, logsumexp, d_output)

        output and logsumexp belong to the whole: the probabilities are exp(scores - logsumexp). The rows' sums of
        probability times its gradient are the sums of d_output times output.
        """
        return None
