"""A kernel of a chain as a primitive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Callable

from mindspore import Tensor, ops

from flash_attention.kernels.tik import operators
from flash_attention.kernels.tik.signature import Operator, Request, Signature

# make_primitive(operator, its signature, request, shapes of the outputs as MindSpore sees them) -> primitive
MakePrimitive = Callable[[Operator, Signature, Request, list], ops.Custom]


def primitive_of(name: str, request: Request, make_primitive: MakePrimitive, shapes: Mapping[str, tuple]) -> tuple:
    """(primitive of a stage, its last inputs: the constants).

    Args:
        shapes: of outputs that MindSpore sees otherwise than the kernel, by name.
    """
    operator, signature = operators.describe(name, request)
    seen = [shapes.get(tensor.name, tensor.shape) for tensor in signature.outputs]
    constants = tuple(Tensor(one.constant) for one in signature.inputs if one.constant is not None)
    return make_primitive(operator, signature, request, seen), constants
