"""The kernels as registered operators: types, arguments and the one attribute that describes the problem.

Every registration (MindSpore's in-process TBE compiler, an OPP package) comes from the table `OPERATORS`. A compile
calls `compile_operator` with the tensors as dictionaries, in the order of the table, absent ones as None or left out.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Callable

from .kernel import Kernel
from .problem import KernelProblem


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
        build: "module:function" that records the kernel: function(problem, tik, name=..., debug=...).
        inputs, outputs: in the order of the kernel's arguments.
    """

    type: str
    name: str
    build: str
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]

    def builder(self) -> Callable[..., Kernel]:
        """The function that records the kernel."""
        module, function = self.build.split(":")
        return getattr(importlib.import_module(f".{module}", __package__), function)


_NZ = ("FRACTAL_NZ",)
_MASK = Argument("mask", "float16", ("FRACTAL_NZ", "ND"), required=False)
_BIAS = Argument("bias", "float16", ("FRACTAL_NZ", "ND"), required=False)
_KEEP = Argument("keep", "uint8", required=False)


def _optional(*pairs: tuple[str, str]) -> tuple[Argument, ...]:
    return tuple(Argument(name, dtype, required=False) for name, dtype in pairs)


FORWARD = Operator(
    "FlashAttentionForward",
    "flash_attention_forward",
    "forward:build",
    (
        *(Argument(name, "float16", _NZ) for name in ("query", "key", "value")),
        _MASK,
        _BIAS,
        _KEEP,
        Argument("table", "int32"),
        *_optional(
            ("tiles", "float16"), ("slopes", "float32"), ("positions", "float16"), ("row_numbers", "float32")
        ),
    ),
    (Argument("output", "float16", _NZ), Argument("logsumexp", "float32")),
)

OPERATORS = (FORWARD,)


def to_attribute(problem: KernelProblem) -> str:
    """The problem as the operators' string attribute `problem`."""
    return json.dumps(dataclasses.asdict(problem), separators=(",", ":"))


def from_attribute(text: str) -> KernelProblem:
    """Inverse of `to_attribute`.

    Raises:
        ValueError: the text is not what `to_attribute` writes.
    """
    try:
        fields = json.loads(text)
        return KernelProblem(**{**fields, "slopes": tuple(fields["slopes"])})
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"problem: got {text!r}, allowed is the text that to_attribute writes ({error})") from None


def compile_operator(operator: Operator, tensors: Iterable[Mapping | None], problem: str, kernel_name: str) -> Kernel:
    """Compiles an operator for the tensors of one call; what a registered entry function does.

    Args:
        tensors: inputs and outputs in the order of the table, as dictionaries with "shape" and "dtype".
        problem: see `to_attribute`.
        kernel_name: name of the kernel.

    Raises:
        ValueError, TypeError: the problem or a tensor is not what the kernel takes.
    """
    from tbe import tik

    kernel = operator.builder()(from_attribute(problem), tik, name=kernel_name, debug=False)
    check_tensors(kernel, [tensor for tensor in tensors if tensor is not None])
    return kernel


def check_tensors(kernel: Kernel, tensors: list[Mapping]) -> None:
    """Compares the tensors of a call with those that a kernel was built for."""
    expected = (*kernel.inputs, *kernel.outputs)
    if len(tensors) != len(expected):
        raise ValueError(f"{kernel.name}: got {len(tensors)} tensors, allowed are {', '.join(t.name for t in expected)}")
    for tensor, wanted in zip(tensors, expected):
        if tuple(tensor["shape"]) != wanted.shape:
            raise ValueError(f"{wanted.name}: got shape {tuple(tensor['shape'])}, allowed is {wanted.shape}")
        if tensor["dtype"].lower() != wanted.dtype:
            raise TypeError(f"{wanted.name}: got dtype {tensor['dtype']}, allowed is {wanted.dtype}")
