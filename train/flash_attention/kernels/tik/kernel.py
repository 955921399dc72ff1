"""What a builder returns: the recorded kernel, which is its signature and more."""

from __future__ import annotations

from dataclasses import dataclass

from flash_attention.kernels.tik.hardware import Buffer, usage
from flash_attention.kernels.tik.language import Tik
from flash_attention.kernels.tik.plan import BlockPlan
from flash_attention.kernels.tik.problem import KernelProblem
from flash_attention.kernels.tik.signature import Signature


@dataclass(frozen=True)
class Kernel(Signature):
    """A recorded and built TIK kernel.

    Attributes:
        tik: the Tik instance, after BuildCCE.
        buffers: on-chip allocations.
        cores: blocks the kernel is launched with.
        units: (row block, key tile) steps of the busiest core, and of all cores together.
    """

    name: str
    tik: Tik
    problem: KernelProblem
    plan: BlockPlan
    buffers: tuple[Buffer, ...]
    cores: int
    units: tuple[int, int]

    def memory(self) -> dict[str, tuple[int, int]]:
        """Bytes used and available per memory of a core."""
        used = usage(list(self.buffers))
        return {name: (used[name], size) for name, size in self.problem.capacity.items()}
