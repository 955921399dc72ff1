"""Execute the definition of a tensor."""

from __future__ import annotations

from typing import Callable

from ..errors import TikBoundsError
from ..program import ir
from ..program.dtypes import size_of
from .runtime import Runtime


def define(runtime: Runtime, tensor: ir.TensorInfo) -> Callable[[int], None]:
    """Return ``f(copy)``, which gives fresh contents to a tensor when its definition is reached."""
    placement = runtime.plan.placements[tensor.uid]
    clear, kind = runtime.core.clear, tensor.memory
    base, stride, size = placement.address, placement.stride, placement.size

    def fresh(copy: int) -> None:
        start = base + copy * stride
        clear(kind, start, start + size)

    return fresh


def reserve(tensor: ir.TensorInfo) -> Callable[[int], None]:
    """Return ``f(elements)``, which checks the run-time size of a tensor when its definition is reached."""

    def check(elements: int) -> None:
        needed = elements * size_of(tensor.dtype)
        if needed > tensor.max_mem_size:
            raise TikBoundsError(space_message(tensor, needed))

    return check


def space_message(tensor: ir.TensorInfo, needed: int) -> str:
    """Return the debugger's message about a tensor that grows beyond its reserve."""
    return (
        f"The space required exceeds max_mem_size: tensor {tensor.name!r} needs {needed} bytes, max_mem_size is "
        f"{tensor.max_mem_size}"
    )
