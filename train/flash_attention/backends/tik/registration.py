"""The TIK operators as MindSpore primitives.

MindSpore 2.0 to 2.2 compile the Python function of an operator in their own processes, see `entries`. Later versions
hand GE a node whose type is the name of that function, with prototype and inference of shapes of their own. CANN then
compiles the operator package's entry for the type, see `opp_package`.

Either way, MindSpore keeps the first description of a function's inputs and outputs for the whole process. So a
function has one list of arguments, all required. Stand-ins take the places of arguments that a problem lacks.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype
from mindspore.ops import DataType, TBERegOp

from flash_attention.backends.tik import entries
from flash_attention.bridge.custom import Custom
from flash_attention.kernels.tik.layout import TENSORS
from flash_attention.kernels.tik.problem import KernelProblem
from flash_attention.kernels.tik.signatures import GlobalTensor, Operator, Signature
from flash_attention.sharding.shard import ROWS, TENSOR, Shard

_MSTYPES = {"float16": mstype.float16, "float32": mstype.float32, "int32": mstype.int32, "uint8": mstype.uint8}
_FORMATS = {
    ("float16", "FRACTAL_NZ"): DataType.F16_FracNZ,
    ("float16", "ND"): DataType.F16_Default,
    ("float32", "FRACTAL_NZ"): DataType.F32_FracNZ,
    ("float32", "ND"): DataType.F32_Default,
    ("int32", "ND"): DataType.I32_Default,
    ("uint8", "ND"): DataType.U8_Default,
}


def primitive(
    operator: Operator,
    signature: Signature,
    problem: KernelProblem,
    shapes: Mapping[str, tuple],
    shard: Shard | None = None,
) -> ops.Custom | Filled:
    """Return the primitive of one operator, which takes and gives what the signature has.

    Args:
        shapes: by name of the outputs that MindSpore sees in another shape. FRACTAL_NZ is a storage format, not a
            shape.
        shard: whose part of a sharded call the kernel is for.
    """
    call = problem.call
    signature = operator.fill(signature)
    dtypes = [_MSTYPES[tensor.dtype] for tensor in signature.outputs]
    of_nz = {"FRACTAL_NZ": (1, 1)}  # of stand-ins
    seen = []
    for tensor in signature.outputs:
        own = of_nz.get(tensor.format) if tensor.absent else shapes.get(tensor.name)
        seen.append([int(size) for size in own or tensor.shape])
    shape, dtype = (seen[0], dtypes[0]) if len(seen) == 1 else (tuple(seen), tuple(dtypes))
    if shard is not None:
        inputs, outputs = ([_axes(tensor, shard) for tensor in side] for side in (signature.inputs, signature.outputs))
        first = signature.inputs[0]
        width = call.value_dim if first.name == "output" else call.head_dim
        of_first = (call.batch, call.heads, call.seq_q, width) if inputs[0] == TENSOR else first.shape
        shape = shard.infer_shapes(of_first, list(zip(seen, outputs)))
    result = Custom(
        entries.entry(operator), out_shape=shape, out_dtype=dtype, func_type="tbe", reg_info=_information(operator)
    )
    # The registration names only the last one.
    result.add_prim_attr("output_names", [tensor.name for tensor in signature.outputs])
    result.add_prim_attr("problem", problem.to_text())
    result = result if shard is None else shard.attach(result, inputs, outputs)
    absent = any(tensor.absent for tensor in (*signature.inputs, *signature.outputs))
    return Filled(result, signature) if absent else result


class Filled(nn.Cell):
    """Give a primitive stand-ins for the tensors that a problem lacks. The caller neither gives nor gets them."""

    def __init__(self, primitive: ops.Custom, signature: Signature):
        super().__init__()
        self.primitive = primitive
        self.present = tuple(not tensor.absent for tensor in signature.inputs)
        self.stand_ins = tuple(
            Tensor(np.zeros((1, 1) if t.format == "FRACTAL_NZ" else t.shape if t.absent else 1, t.dtype))
            for t in signature.inputs
        )
        self.wanted = tuple(index for index, tensor in enumerate(signature.outputs) if not tensor.absent)
        # MindSpore redistributes the result of a sharded primitive, but not the members of a tuple made of it.
        self.selects = len(self.wanted) < len(signature.outputs)

    def construct(self, *given):
        inputs, place = (), 0
        for present, stand_in in zip(self.present, self.stand_ins):
            if present:
                inputs = inputs + (given[place],)
                place = place + 1
            else:
                inputs = inputs + (stand_in,)
        results = self.primitive(*inputs)
        if not self.selects:
            return results
        wanted = ()
        for index in self.wanted:
            wanted = wanted + (results[index],)
        return wanted


def _axes(tensor: GlobalTensor, shard: Shard) -> tuple:
    """Return the axes along which a kernel's tensor is split. Constants, and tensors that only pass between kernels,
    count as whole.
    """
    if tensor.absent:
        return (None,) * (2 if tensor.format == "FRACTAL_NZ" else len(tensor.shape))
    if tensor.name in TENSORS:
        return TENSOR
    if tensor.name in ("logsumexp", "d_logsumexp", "d_sink_rows"):
        return ROWS
    if tensor.name in ("mask", "key_mask"):
        return shard.mask_axes
    if tensor.name == "sinks":
        return ("dp", "mp", None)
    if tensor.name == "key_bias":
        return (None, *shard.bias_axes)
    return shard.bias_axes if tensor.name in ("bias", "d_bias") else (None,) * len(tensor.shape)


def _information(operator: Operator) -> dict:
    register = (
        TBERegOp(operator.type)
        .fusion_type("OPAQUE")
        .async_flag(False)
        .binfile_name(f"{operator.type}.so")
        .compute_cost(10)
        .kernel_name(operator.type)
        .partial_flag(True)
        .attr("problem", "required", "str", "all")
    )
    for index, argument in enumerate(operator.inputs):
        register.input(index, argument.name, False, "required", "all")
    for index, argument in enumerate(operator.outputs):
        register.output(index, argument.name, False, "required", "all")
    return register.dtype_format(*_formats(operator)).get_op_info()


def _formats(operator: Operator) -> list:
    return [_FORMATS[argument.dtype, argument.format] for argument in (*operator.inputs, *operator.outputs)]
