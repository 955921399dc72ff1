"""FlashAttention-2 for the first-generation Ascend 910 as TIK programs: `operators.build` makes one of a `Request`.

Nothing here needs MindSpore; the same source runs under CANN (`from tbe import tik`) and under the emulator.
"""

from flash_attention.kernels.tik.problem import KernelProblem, Request

__all__ = ["KernelProblem", "Request"]
