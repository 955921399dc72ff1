"""What a builder returns, the recorded kernel, which is its signature and more; and what all builders do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Callable, TypeVar

from flash_attention.kernels.tik.arguments import Signature
from flash_attention.kernels.tik.common.work_split import TableOfWork
from flash_attention.kernels.tik.core import Core
from flash_attention.kernels.tik.hardware import Buffer, usage
from flash_attention.kernels.tik.language import RunTime, Tik, TikModule
from flash_attention.kernels.tik.plan import BlockPlan, Choice
from flash_attention.kernels.tik.problem import KernelProblem
from flash_attention.kernels.tik.request import Request

_Plan = TypeVar("_Plan", bound=BlockPlan)


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


@dataclass(frozen=True)
class Recording:
    """What is to be recorded, and how.

    Attributes:
        request: what to compute.
        arguments: what the kernel takes and gives.
        tik: the tik module: `from tbe import tik`.
        name: kernel name.
        debug: keep the kernel runnable by tikdb.
    """

    request: Request
    arguments: Signature
    tik: TikModule
    name: str
    debug: bool

    def of_table(
        self, choice: Choice[_Plan, TableOfWork], record: Callable[[Core[_Plan], RunTime], object], flags: int = 0
    ) -> Kernel:
        """`kernel` where a table deals the work."""
        units = max(choice.split.units), sum(choice.split.units)
        return self.kernel(choice.plan, choice.buffers, choice.split.cores, units, record, flags)

    def kernel(
        self,
        plan: _Plan,
        buffers: Sequence[Buffer],
        cores: int,
        units: tuple[int, int],
        record: Callable[[Core[_Plan], RunTime], object],
        flags: int = 0,
    ) -> Kernel:
        """Records and builds the kernel.

        Args:
            units: see Kernel.
            record: record(core, its number) records the statements of one core, whose buffers are there.
            flags: int32 numbers of the global tensor `flags`, for what a core notes for itself.
        """
        tik, problem, arguments = self.tik, self.request.problem, self.arguments
        instance = tik.Tik(disable_debug=not self.debug)
        gm = arguments.declare(tik, instance)
        if flags:
            gm["flags"] = instance.Tensor("int32", (flags,), tik.scope_gm, "flags", is_workspace=True)
        core = Core(tik, instance, problem, plan, gm)
        with instance.for_range(0, cores, name="core", block_num=cores) as index:
            core.allocate(buffers)
            record(core, index)
        arguments.build(instance, self.name, gm)
        return Kernel(
            arguments.inputs, arguments.outputs, self.name, instance, problem, plan, tuple(buffers), cores, units
        )
