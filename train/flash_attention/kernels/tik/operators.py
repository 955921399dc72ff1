"""The kernels as registered operators: types, arguments and the one attribute that describes the problem.

Every registration (MindSpore's in-process TBE compiler, an OPP package) comes from the table `OPERATORS`. A compile
calls `compile_operator` with the tensors as dictionaries, in the order of the table, absent ones as None or left out.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Callable

from flash_attention.kernels.tik.backward import kernel as backward
from flash_attention.kernels.tik.backward import preprocess
from flash_attention.kernels.tik.forward import kernel as forward
from flash_attention.kernels.tik.kernel import Kernel
from flash_attention.kernels.tik.problem import KernelProblem


@dataclass(frozen=True)
class Request:
    """What an operator is compiled for, the value of its attribute `request`.

    Attributes:
        problem: see KernelProblem.
        bias_gradient: the backward operators also give the gradient of a given bias.
        variant: of the backward operators, see backward.build.
    """

    problem: KernelProblem
    bias_gradient: bool = False
    variant: str = "deterministic"

    def to_text(self) -> str:
        """The request as the operators' string attribute."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))

    @staticmethod
    def from_text(text: str) -> Request:
        """Inverse of `to_text`.

        Raises:
            ValueError: the text is not what `to_text` writes.
        """
        try:
            fields = json.loads(text)
            problem = fields.pop("problem")
            return Request(KernelProblem(**{**problem, "slopes": tuple(problem["slopes"])}), **fields)
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"request: got {text!r}, allowed is what Request.to_text writes ({error})") from None


@dataclass(frozen=True)
class Argument:
    """A tensor of an operator.

    Attributes:
        formats: FRACTAL_NZ or ND; both where it depends on the kind of mask or bias.
        required: False where only some problems have it.
    """

    name: str
    dtype: str
    formats: tuple[str, ...] = ("ND",)
    required: bool = True


@dataclass(frozen=True)
class Operator:
    """An operator type.

    Attributes:
        type: name of the type; `name` is that of its Python function and file.
        build: records the kernel: build(request, tik, name, debug).
        inputs, outputs: in the order of the kernel's arguments.
    """

    type: str
    name: str
    build: Callable[[Request, object, str, bool], Kernel]
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]


def _forward(request: Request, tik, name: str, debug: bool) -> Kernel:
    return forward.build(request.problem, tik, name=name, debug=debug)


def _rows(request: Request, tik, name: str, debug: bool) -> Kernel:
    return preprocess.build(request.problem, tik, logsumexp_gradient=True, name=name, debug=debug)


def _main(request: Request, tik, name: str, debug: bool) -> Kernel:
    return backward.build_main(
        request.problem, tik, variant=request.variant, bias_gradient=request.bias_gradient, name=name, debug=debug
    )


def _finish(request: Request, tik, name: str, debug: bool) -> Kernel:
    return backward.build_finish(
        request.problem, tik, variant=request.variant, bias_gradient=request.bias_gradient, name=name, debug=debug
    )


_NZ = ("FRACTAL_NZ",)
_MASK = Argument("mask", "float16", ("FRACTAL_NZ", "ND"), required=False)
_BIAS = Argument("bias", "float16", ("FRACTAL_NZ", "ND"), required=False)
_KEEP = Argument("keep", "uint8", required=False)


def _required(dtype: str, *names: str, formats: tuple[str, ...] = ("ND",)) -> tuple[Argument, ...]:
    return tuple(Argument(name, dtype, formats) for name in names)


def _optional(**dtypes: str) -> tuple[Argument, ...]:
    return tuple(Argument(name, dtype, required=False) for name, dtype in dtypes.items())


FORWARD = Operator(
    "FlashAttentionForward",
    "flash_attention_forward",
    _forward,
    (
        *_required("float16", "query", "key", "value", formats=_NZ),
        *(_MASK, _BIAS, _KEEP),
        Argument("table", "int32"),
        *_optional(tiles="float16", slopes="float32", positions="float16", row_numbers="float32"),
    ),
    (Argument("output", "float16", _NZ), Argument("logsumexp", "float32")),
)
GRAD_ROWS = Operator(
    "FlashAttentionGradRows",
    "flash_attention_grad_rows",
    _rows,
    (
        *_required("float16", "output", "d_output", formats=_NZ),
        *_required("float32", "logsumexp", "d_logsumexp"),
        *_optional(slopes="float32", row_numbers="float32"),
    ),
    (Argument("row_lanes", "float16"),),
)
GRAD = Operator(
    "FlashAttentionGrad",
    "flash_attention_grad",
    _main,
    (
        *_required("float16", "query", "key", "value", "d_output", formats=_NZ),
        Argument("row_lanes", "float16"),
        *(_MASK, _BIAS, _KEEP),
        Argument("table", "int32"),
        *_optional(tiles="float16", one_hot="float16", positions="float16", distances="float16", slopes="float32"),
    ),
    (
        *_required("float16", "d_key", "d_value", formats=_NZ),
        Argument("d_query_sums", "float32"),
        Argument("d_bias", "float32", _NZ, required=False),
        *_optional(d_bias_sums="float32"),
    ),
)
GRAD_FINISH = Operator(
    "FlashAttentionGradFinish",
    "flash_attention_grad_finish",
    _finish,
    (Argument("d_query_sums", "float32"),),
    (Argument("d_query", "float16", _NZ),),
)
OPERATORS = (FORWARD, GRAD_ROWS, GRAD, GRAD_FINISH)


def compile_operator(operator: Operator, tensors: Iterable[Mapping | None], request: str, kernel_name: str) -> Kernel:
    """Compiles an operator for the tensors of one call; what a registered entry function does.

    Args:
        tensors: inputs and outputs in the order of the table, as dictionaries with "shape", "dtype" and, where it is
            known, "format".
        request: see `Request.to_text`.
        kernel_name: name of the kernel.

    Raises:
        ValueError, TypeError: the request or a tensor is not what the kernel takes.
    """
    from tbe import tik

    kernel = operator.build(Request.from_text(request), tik, kernel_name, False)
    check_tensors(kernel, [tensor for tensor in tensors if tensor is not None])
    return kernel


def check_tensors(kernel: Kernel, tensors: list[Mapping]) -> None:
    """Compares the tensors of a call with those that a kernel was built for."""
    expected = (*kernel.inputs, *kernel.outputs)
    if len(tensors) != len(expected):
        names = ", ".join(tensor.name for tensor in expected)
        raise ValueError(f"{kernel.name}: got {len(tensors)} tensors, allowed are {len(expected)}: {names}")
    for tensor, wanted in zip(tensors, expected):
        if not _same(tuple(tensor["shape"]), wanted.shape):
            raise ValueError(f"{wanted.name}: got shape {tuple(tensor['shape'])}, allowed is {wanted.shape}")
        if wanted.format == "FRACTAL_NZ" and tensor.get("format", wanted.format) != wanted.format:
            raise ValueError(f"{wanted.name}: got format {tensor['format']}, allowed is {wanted.format}")
        if tensor["dtype"].lower() != wanted.dtype:
            raise TypeError(f"{wanted.name}: got dtype {tensor['dtype']}, allowed is {wanted.dtype}")


def _same(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether a tensor lies in memory as wanted: its first axes may be several that make up the first one together."""
    first = len(shape) - len(wanted) + 1
    return first > 0 and (math.prod(shape[:first]), *shape[first:]) == wanted
