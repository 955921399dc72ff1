"""FlashAttention-2 for the first-generation Ascend 910 as TIK programs.

The builders take a `KernelProblem` and the tik module, and return a `Kernel`, or the three of the backward operator.
Nothing here needs MindSpore; the same source runs under CANN (`from tbe import tik`) and under the emulator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flash_attention.kernels.tik.problem import KernelProblem, Request
from flash_attention.kernels.tik.tik_types import TikModule

if TYPE_CHECKING:
    from flash_attention.kernels.tik.operators import Backward, Kernel

__all__ = ["KernelProblem", "Request", "build_backward", "build_forward"]


def build_forward(problem: KernelProblem, tik: TikModule) -> Kernel:
    """Record and build the forward kernel, see operators.build."""
    from flash_attention.kernels.tik import operators

    return operators.build("forward", Request(problem), tik, "flash_attention_forward", True)


def build_backward(problem: KernelProblem, tik: TikModule, **asked: Any) -> Backward:
    """Record and build the backward kernels, see operators.build; `asked` are the other fields of a Request."""
    from flash_attention.kernels.tik import operators

    return operators.build_backward(Request(problem, **asked), tik, "flash_attention_backward", True)
