"""Backend `cpu`: the native C++ kernel, on any CPU and in every mode of MindSpore.

csrc/           the kernel; csrc/target-inl.h lists what one instruction set is made of
build.py        compiles it
library.py      finds it, tells it a problem, calls it on NumPy arrays
operators.py    puts it into MindSpore as a Cell of custom primitives
packed.py       the same for packed sequences
paged.py        the same for a paged cache, and its update
rotary.py       rotary position embedding
"""

from __future__ import annotations

import functools
import os

from flash_attention.backends.base import Backend
from flash_attention.problem import AttentionProblem
from flash_attention.problem.packed import PackedProblem
from flash_attention.problem.paged import PagedProblem


class CpuBackend(Backend):
    """FlashAttention in C++: float32 sums, no score matrix in memory, all threads that OMP_NUM_THREADS allows."""

    name = "cpu"
    takes = ("mask", "bias", "keep_bits", "seed", "sinks", "prefix", "segment_ids", "kv_segment_ids", "alibi_slopes")
    takes_max_length = True

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
            return f"{library.ISA_VARIABLE} is {forced!r}, but this processor can run {', '.join(usable)}"
        return None

    @property
    def dynamic(self) -> bool:  # type: ignore[override]
        import mindspore

        # An operation of several outputs takes their shapes from the library in 2.7 and later, in 2.0 it does not.
        return tuple(map(int, mindspore.__version__.split(".")[:2])) >= (2, 7)

    dynamic_sequences = dynamic

    def refuse(self, problem: AttentionProblem) -> str | None:
        if problem.device != "CPU":
            return f"it runs on CPU, and the device target is {problem.device}"
        if problem.dtype == "bfloat16" and not _has_bfloat16():
            return "this MindSpore has no bfloat16 on CPU (2.7 and later have)"
        return None

    def layout(self, problem: AttentionProblem, sharded: bool = False) -> str:
        return "BSH" if problem.layout == "TH" else problem.layout

    def build(self, problem: AttentionProblem, shard=None):
        from flash_attention.backends.cpu.operators import attention

        return attention(problem, shard)

    def build_packed(self, problem: PackedProblem):
        from flash_attention.backends.cpu.packed import PackedAttention

        return PackedAttention(problem)

    def build_paged(self, problem: PagedProblem):
        from flash_attention.backends.cpu.paged import PagedAttention

        return PagedAttention(problem)

    def build_backward(self, problem: AttentionProblem):
        from flash_attention.backends.cpu.operators import Gradients

        return Gradients(problem)


@functools.cache
def _has_bfloat16() -> bool:
    import mindspore

    return hasattr(mindspore, "bfloat16")


BACKEND = CpuBackend()
