"""What a builder returns: the recorded kernel with the names, shapes and formats of its global tensors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flash_attention.kernels.tik.core import TilePlan
from flash_attention.kernels.tik.hardware import CAPACITY, Buffer, usage
from flash_attention.kernels.tik.problem import KernelProblem


@dataclass(frozen=True)
class GlobalTensor:
    """An input or output of a kernel.

    Attributes:
        shape: of the stored array.
        format: "FRACTAL_NZ" or "ND".
        constant: the value, where it follows from the problem and the caller has nothing to say.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    format: str = "ND"
    constant: np.ndarray | None = None


@dataclass(frozen=True)
class Kernel:
    """A recorded and built TIK kernel.

    Attributes:
        tik: the Tik instance, after BuildCCE.
        inputs, outputs: in the order of the kernel's arguments.
        buffers: on-chip allocations.
        cores: blocks the kernel is launched with.
        units: (row block, key tile) steps of the busiest core, and of all cores together.
    """

    name: str
    tik: object
    problem: KernelProblem
    plan: TilePlan
    inputs: tuple[GlobalTensor, ...]
    outputs: tuple[GlobalTensor, ...]
    buffers: tuple[Buffer, ...]
    cores: int
    units: tuple[int, int]

    def feed(self, **arrays: np.ndarray) -> dict[str, np.ndarray]:
        """Arrays of all inputs by name, the constants included.

        Raises:
            ValueError, TypeError: an input is missing, unknown, or not of the stored shape and dtype.
        """
        result = {}
        for tensor in self.inputs:
            if tensor.constant is not None:
                result[tensor.name] = tensor.constant
                continue
            if tensor.name not in arrays:
                raise ValueError(f"{tensor.name}: missing, the kernel takes {', '.join(self.given)}")
            array = np.ascontiguousarray(arrays.pop(tensor.name))
            if array.shape != tensor.shape:
                raise ValueError(f"{tensor.name}: got shape {array.shape}, allowed is {tensor.shape} ({tensor.format})")
            if array.dtype != tensor.dtype:
                raise TypeError(f"{tensor.name}: got dtype {array.dtype}, allowed is {tensor.dtype}")
            result[tensor.name] = array
        if arrays:
            raise ValueError(f"{', '.join(arrays)}: not an input, the kernel takes {', '.join(self.given)}")
        return result

    @property
    def given(self) -> list[str]:
        """Names of the inputs that the caller provides."""
        return [tensor.name for tensor in self.inputs if tensor.constant is None]

    def memory(self) -> dict[str, tuple[int, int]]:
        """Bytes used and available per memory of a core."""
        used = usage(list(self.buffers))
        return {name: (used[name], CAPACITY[name]) for name in CAPACITY}
