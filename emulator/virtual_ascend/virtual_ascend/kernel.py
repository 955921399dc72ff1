"""A compiled kernel: what stands in the file NAME.o, which the compiler writes and the device process reads."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any, Optional, Union

from tikemu import ir

#: Tensors of one parameter: a description, None where an optional one is left out, several of a dynamic one.
Parameter = Union[dict[str, Any], None, tuple[dict[str, Any], ...]]


@dataclass
class Kernel:
    """One operator with its shapes.

    Attributes:
        name: of the kernel.
        type: of the operator, in CANN.
        function: its entry in CANN or in the user's module.
        inputs, outputs: descriptions of the tensors, with `shape`, `format`, `dtype`, `ori_shape`.
        attributes: by name.
        program: of an operator in TIK; None for a built-in one.
    """

    name: str
    type: str
    function: str
    inputs: list[Parameter]
    outputs: list[Parameter]
    attributes: dict[str, Any]
    program: Optional[ir.Program] = None

    def dump(self) -> bytes:
        """As the contents of a file."""
        return pickle.dumps(self, pickle.HIGHEST_PROTOCOL)


def load(contents: bytes) -> Kernel:
    """The kernel in a file of this program's own compiler."""
    kernel = pickle.loads(contents)
    if not isinstance(kernel, Kernel):
        raise ValueError(f"no kernel: {type(kernel).__name__}")
    return kernel


def tensors(parameters: list[Parameter]) -> list[dict[str, Any]]:
    """Descriptions of all tensors that are there, in order."""
    found: list[dict[str, Any]] = []
    for parameter in parameters:
        if parameter is not None:
            found.extend(parameter if isinstance(parameter, (list, tuple)) else [parameter])
    return found
