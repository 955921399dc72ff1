"""The arguments of one kernel: global tensors with shapes, and constants where these follow from the problem."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flash_attention.kernels.tik.language import Tik, TikModule


@dataclass(frozen=True)
class GlobalTensor:
    """An input or output of a kernel.

    Attributes:
        shape: of the stored array.
        format: "FRACTAL_NZ" or "ND".
        constant: the value, where it follows from the problem and the caller has nothing to say.
        added: an output that the kernel adds to; it must be zero at the start.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    format: str = "ND"
    constant: np.ndarray | None = None
    added: bool = False


@dataclass(frozen=True)
class Signature:
    """The arguments of one kernel: those that it has, in order."""

    inputs: tuple[GlobalTensor, ...]
    outputs: tuple[GlobalTensor, ...]

    @property
    def given(self) -> list[str]:
        """Names of the inputs that the caller provides."""
        return [tensor.name for tensor in self.inputs if tensor.constant is None]

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

    def declare(self, tik: TikModule, instance: Tik) -> dict:
        """The arguments as tensors of a Tik instance, by name."""
        result = {t.name: instance.Tensor(t.dtype, t.shape, tik.scope_gm, t.name) for t in self.inputs}
        for t in self.outputs:
            result[t.name] = instance.Tensor(t.dtype, t.shape, tik.scope_gm, t.name, is_atomic_add=t.added)
        return result

    def build(self, instance: Tik, name: str, gm: dict) -> None:
        """BuildCCE of a recorded kernel with these arguments, `gm` being what `declare` gave."""
        inputs, outputs = ([gm[tensor.name] for tensor in side] for side in (self.inputs, self.outputs))
        instance.BuildCCE(kernel_name=name, inputs=inputs, outputs=outputs)
