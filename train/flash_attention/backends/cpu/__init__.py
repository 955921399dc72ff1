"""Backend `cpu`: the native C++ kernel, through MindSpore's interface for compiled operators."""

from __future__ import annotations

from flash_attention.backends.base import Backend
from flash_attention.problem import AttentionProblem


class CpuBackend(Backend):
    """Tiled attention in O(seq) memory on any CPU."""

    name = "cpu"

    def unavailable(self) -> str | None:
        import mindspore as ms

        from flash_attention.backends.cpu import library

        target = ms.get_context("device_target")
        if target != "CPU":
            return f"runs on a CPU, and the device target is {target}"
        try:
            if not library.instruction_sets():
                return "FLASH_ATTENTION_CPU_ISA names an instruction set that is unknown or missing on this processor"
        except OSError as error:
            return str(error)
        return None

    def refuse(self, problem: AttentionProblem) -> str | None:
        from flash_attention.backends.cpu.operators import DTYPES

        if DTYPES[problem.dtype] is None:
            return f"this MindSpore has no {problem.dtype}"
        return None

    def build(self, problem: AttentionProblem):
        from flash_attention.backends.cpu.operators import NativeAttention

        return NativeAttention(problem)


BACKEND = CpuBackend()
