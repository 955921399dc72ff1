"""FlashAttention-2 for the first-generation Ascend 910 as TIK programs.

The builders take a `KernelProblem` and the tik module, and return a `Kernel`, or the three of the backward operator.
Nothing here needs MindSpore; the same source runs under CANN (`from tbe import tik`) and under the emulator.
"""

from __future__ import annotations

from .kernel import GlobalTensor, Kernel
from .problem import KernelProblem

__all__ = ["GlobalTensor", "Kernel", "KernelProblem", "build_backward", "build_forward"]


def build_forward(problem: KernelProblem, tik, **options) -> Kernel:
    """Forward kernel, see forward.build."""
    from .forward import build

    return build(problem, tik, **options)


def build_backward(problem: KernelProblem, tik, **options):
    """Kernels of the backward operator, see backward.build."""
    from .backward import build

    return build(problem, tik, **options)
