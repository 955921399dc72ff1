"""Hold the common parts of the backends that run the TIK operators. One runs them on a device, one on the emulator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flash_attention.backends.base import Backend
from flash_attention.backends.tik.limits import layout_on_910, refuse_on_910
from flash_attention.kernels.tik.problem import Chip
from flash_attention.problem import AttentionProblem
from flash_attention.problem.packed import PackedProblem
from flash_attention.problem.paged import PagedProblem

if TYPE_CHECKING:
    from flash_attention.backends.tik.stages import MakePrimitive
    from flash_attention.sharding.shard import Shard


class OperatorBackend(Backend):
    """Subclasses say where primitives and keep decisions come from, and which chip there is."""

    takes = ("mask", "bias", "keep_bits", "seed", "sinks", "prefix", "segment_ids", "kv_segment_ids", "alibi_slopes")

    def chip(self) -> Chip:
        """Return the chip that kernels are planned for."""
        raise NotImplementedError

    def make_primitive(self, shard: Shard | None = None) -> MakePrimitive:
        """Make the primitive of a kernel, for a shard's part of a call."""
        raise NotImplementedError

    def draw(self, problem: AttentionProblem | PackedProblem, shard: Shard | None = None) -> Any:
        """A Cell that draws the keep bits of a problem, see `OperatorAttention` and `PackedOperators`."""
        raise NotImplementedError

    def check_lengths(self, problem: PackedProblem) -> Any:
        """A Cell that fails where lengths in tensors are not allowed, see `PackedOperators`; None: nothing does."""
        return None

    def refuse(self, problem: AttentionProblem) -> str | None:
        return refuse_on_910(problem)

    def layout(self, problem: AttentionProblem, sharded: bool = False) -> str:
        return layout_on_910(problem, sharded)

    def build(self, problem: AttentionProblem, shard: Shard | None = None):
        from flash_attention.backends.tik.cell import OperatorAttention
        from flash_attention.backends.tik.expanded import expands
        from flash_attention.backends.tik.explicit_mask import with_mask

        make_primitive = self.make_primitive(None if expands() else with_mask(shard, problem))
        return OperatorAttention(problem, make_primitive, self.draw(problem, shard), self.chip(), shard)

    def refuse_packed(self, problem: PackedProblem) -> str | None:
        from flash_attention.backends.tik.packed import refuse_packed

        return refuse_packed(problem)

    def build_packed(self, problem: PackedProblem):
        from flash_attention.backends.packed_loop import PackedLoop
        from flash_attention.backends.tik.packed import PackedOperators, runs_alone

        if runs_alone(problem):
            return PackedLoop(self, problem)
        draw, check = self.draw(problem), self.check_lengths(problem)
        return PackedOperators(problem, self.make_primitive(), draw, self.chip(), check)

    def refuse_paged(self, problem: PagedProblem) -> str | None:
        from flash_attention.backends.tik.decode import refuse_paged

        return refuse_paged(problem)

    def build_paged(self, problem: PagedProblem):
        from flash_attention.backends.tik.decode import PagedOperators

        return PagedOperators(problem, self.make_primitive(), self.chip())
