"""Hold the common parts of the backends that run the TIK operators. One runs them on a device, one on the emulator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flash_attention.backends.base import KERNEL_INPUTS, KERNEL_RULES, Backend
from flash_attention.backends.tik.limits import layout_on_910, refuse_on_910
from flash_attention.call import Call
from flash_attention.call.paged import gathered_call
from flash_attention.call.varlen import without_sequences
from flash_attention.kernels.tik.describe import lists_tiles
from flash_attention.kernels.tik.problem import Chip

if TYPE_CHECKING:
    from flash_attention.backends.tik.constants import MakePrimitive
    from flash_attention.sharding.shard import Shard


class OperatorBackend(Backend):
    """Run the TIK operators. Subclasses say where primitives and keep decisions come from, and which chip there is."""

    takes = KERNEL_INPUTS
    rules = KERNEL_RULES
    kinds = ("dense", "varlen", "paged")
    prepares_block_masks = True

    def chip(self) -> Chip:
        """Return the chip that kernels are planned for."""
        raise NotImplementedError

    def make_primitive(self, shard: Shard | None = None) -> MakePrimitive:
        """Make the primitive of a kernel, for a shard's part of a call."""
        raise NotImplementedError

    def draw(self, call: Call, shard: Shard | None = None) -> Any:
        """Return a Cell that draws the keep bits of a call, see `OperatorAttention` and `VarlenOperators`."""
        raise NotImplementedError

    def check_lengths(self, call: Call) -> Any:
        """Return a Cell that fails if lengths in tensors are not allowed, see `VarlenOperators`. None: nothing
        fails.
        """
        return None

    def refuse(self, call: Call) -> str | None:
        from flash_attention.backends.tik.decode import refuse_paged
        from flash_attention.backends.tik.varlen import refuse_varlen

        if call.kind == "paged" and call.paged.left_padding:
            call = gathered_call(call, call.dtype)
        if call.kind == "varlen":
            return refuse_on_910(without_sequences(call)) or refuse_varlen(call)
        return refuse_on_910(call) or (refuse_paged(call) if call.kind == "paged" else None)

    def fate_of_hidden_tiles(self, call: Call) -> str:
        if not lists_tiles(call):
            return super().fate_of_hidden_tiles(call)
        return "a hidden tile is skipped" + (" if its neighbour is hidden too" if call.block_mask_tile == 64 else "")

    def layout(self, call: Call, sharded: bool = False) -> str:
        return layout_on_910(call, sharded)

    def build(self, call: Call, shard: Shard | None = None):
        from flash_attention.backends.composed.paged_end import with_end
        from flash_attention.backends.composed.paged_gather import PagedGather
        from flash_attention.backends.composed.varlen_loop import VarlenLoop
        from flash_attention.backends.tik.cell import OperatorAttention
        from flash_attention.backends.tik.decode import PagedOperators
        from flash_attention.backends.tik.explicit_mask import with_mask
        from flash_attention.backends.tik.varlen import VarlenOperators, runs_alone
        from flash_attention.bridge.versions import MORPH

        if call.kind == "paged" and call.paged.left_padding:
            return PagedGather(self, call, call.dtype)
        if call.kind == "paged":
            return with_end(lambda whole: PagedOperators(whole, self.make_primitive(), self.chip()), call)
        if call.kind == "dense":
            make_primitive = self.make_primitive(None if MORPH else with_mask(shard, call))
            return OperatorAttention(call, make_primitive, self.draw(call, shard), self.chip(), shard)
        if runs_alone(call):
            return VarlenLoop(self, call)
        draw, check = self.draw(call), self.check_lengths(call)
        return VarlenOperators(call, self.make_primitive(), draw, self.chip(), check)
