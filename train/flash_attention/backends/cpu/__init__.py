"""Backend `cpu`: the native C++ kernel, on any CPU and in every mode of MindSpore.

csrc/           the kernel; csrc/target-inl.h lists the parts of one instruction set
build.py        compiles it
library.py      finds it, gives it calls, also on NumPy arrays
operators.py    puts it into MindSpore as a Cell of custom primitives
paged.py        the same for a paged cache, and its update
rotary.py       rotary position embedding
"""

from __future__ import annotations

import os

from flash_attention.backends.base import KERNEL_INPUTS, KERNEL_RULES, Backend
from flash_attention.call import Call


class CpuBackend(Backend):
    """FlashAttention in C++: float32 sums, no score matrix in memory, all threads that OMP_NUM_THREADS allows."""

    name = "cpu"
    takes = KERNEL_INPUTS
    rules = KERNEL_RULES
    kinds = ("dense", "varlen", "paged")

    def refuse_sharded(self) -> None:
        return None

    def unavailable(self) -> str | None:
        from flash_attention.backends.cpu import library

        try:
            usable = library.instruction_sets()
        except OSError as error:
            return str(error)
        forced = os.environ.get(library.ISA_VARIABLE, "")
        if forced and forced not in usable:
            # Not a reason, with which the automatic choice would go on to the slow backend.
            raise ValueError(f"{library.ISA_VARIABLE}: got {forced!r}, allowed on this processor: {', '.join(usable)}")
        return None

    @property
    def dynamic(self) -> tuple[str, ...]:  # type: ignore[override]
        from flash_attention.bridge.versions import SHAPES_FROM_LIBRARY

        return self.kinds if SHAPES_FROM_LIBRARY else ()

    def refuse(self, call: Call) -> str | None:
        if call.device != "CPU":
            return f"it runs on CPU, and the device target is {call.device}"
        from flash_attention.bridge.versions import BFLOAT16

        if call.dtype == "bfloat16" and BFLOAT16 is None:
            return "this MindSpore has no bfloat16 on CPU (2.7 and later have)"
        return None

    def fate_of_hidden_tiles(self, call: Call) -> str:
        return "a hidden tile is skipped"

    def layout(self, call: Call, sharded: bool = False) -> str:
        return "BSH" if call.layout == "TH" else call.layout

    def build(self, call: Call, shard=None):
        from flash_attention.backends.composed.paged_end import with_end
        from flash_attention.backends.cpu.operators import attention
        from flash_attention.backends.cpu.paged import PagedAttention

        if call.kind == "paged":
            return with_end(PagedAttention, call, takes_max_length=True)
        return attention(call, shard)


BACKEND = CpuBackend()
