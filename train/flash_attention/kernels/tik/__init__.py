"""FlashAttention-2 for the first-generation Ascend 910 as TIK programs: `operators.build` makes one of a
`KernelProblem`.

Nothing here needs MindSpore; the same source runs under CANN (`from tbe import tik`) and under the emulator.
"""

from flash_attention.kernels.tik.problem import KernelProblem

__all__ = ["KernelProblem"]
