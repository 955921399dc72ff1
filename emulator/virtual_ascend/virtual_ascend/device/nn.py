"""Functions of aclnn: single operators, with which MindSpore from 2.3 on works on tensors outside of graphs.

One table maps the name of a function to its arguments, a letter each, and to its computation. The last tensors are
results. If the name begins with Inplace, the first tensor is the result.

    t tensor   l list of tensors   s scalar   a array of integers   i int64   c int8   b bool   d double   y dtype
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

import numpy as np

from .aicpu import DTYPES
from .errors import KernelError
from .memory import Address, Memory
from .numerics import convert, notice_overflow, wide
from .operators.elementwise import gelu, gelu_gradient, sigmoid, silu_gradient
from .operators.indexing import scattered_sum
from .operators.normalisation import log_softmax, log_softmax_gradient, softmax, softmax_gradient
from .operators.reduce import of_scalar


class Function(NamedTuple):
    """Letters of the arguments, and the computation on them without the results."""

    arguments: str
    compute: Callable[..., Any]


def _reduce(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, axes, keep, *_dtype: function(x, axis=of_scalar(x, tuple(axes)) or None, keepdims=bool(keep))


_ONE: dict[str, Callable[..., Any]] = {
    **{"Exp": np.exp, "Log": np.log, "LogicalNot": np.logical_not, "Neg": np.negative, "Gelu": gelu},
    "Rsqrt": lambda x: 1 / np.sqrt(x),
    "Silu": lambda x: x * sigmoid(x),
}
_TWO: dict[str, Callable[..., Any]] = {
    **{"Div": np.true_divide, "FloorDivide": np.floor_divide, "LogicalAnd": np.logical_and, "LogicalOr": np.logical_or},
    **{"Maximum": np.maximum, "Minimum": np.minimum, "Mul": np.multiply, "SiluBackward": silu_gradient},
    **{"EqTensor": np.equal, "NeTensor": np.not_equal, "LtTensor": np.less, "LeTensor": np.less_equal},
    **{"GtTensor": np.greater, "GeTensor": np.greater_equal},
    "GeluBackward": lambda gradient, x: gelu_gradient(gradient, x, x),
}
_REDUCE: dict[str, Callable[..., Any]] = {"ReduceSum": np.sum, "Mean": np.mean}

TABLE: dict[str, Function] = {
    **{name: Function("tt", function) for name, function in _ONE.items()},
    **{name: Function("ttt", function) for name, function in _TWO.items()},
    **{name: Function("tabyt", _reduce(function)) for name, function in _REDUCE.items()},
    **dict.fromkeys(("BatchMatMul", "Matmul", "Mm"), Function("tttc", lambda x, y: x @ y)),
    "Add": Function("ttst", lambda x, y, factor: x + factor * y),
    "Adds": Function("tsst", lambda x, y, factor: x + factor * y),
    "Amax": Function("tabt", _reduce(np.max)),
    "Amin": Function("tabt", _reduce(np.min)),
    "Cast": Function("tyt", lambda x, _dtype: x),
    "Cat": Function("lit", lambda arrays, axis: np.concatenate(arrays, axis)),
    "Gather": Function("titt", lambda x, axis, index: np.take_along_axis(x, index, axis)),
    "InplaceCopy": Function("tt", lambda _x, y: y),
    "InplaceMaskedFillTensor": Function("ttt", lambda x, mask, value: np.where(mask, value, x)),
    "InplaceOne": Function("t", np.ones_like),
    "InplaceZero": Function("t", np.zeros_like),
    "LogSoftmax": Function("tit", log_softmax),
    "LogSoftmaxBackward": Function("ttit", log_softmax_gradient),
    "Repeat": Function("tat", np.tile),
    "SWhere": Function("tttt", np.where),
    "ScatterAdd": Function("tittt", lambda x, axis, index, y: scattered_sum(x.copy(), axis, index, y)),
    "Softmax": Function("tit", softmax),
    "SoftmaxBackward": Function("ttit", softmax_gradient),
    "Sub": Function("ttst", lambda x, y, factor: x - factor * y),
    "Subs": Function("tsst", lambda x, y, factor: x - factor * y),
}
_C_TYPES = {"i": "int64_t", "c": "int8_t", "b": "bool", "d": "double", "y": "int32_t"}
_ADDED_AS = {"t": "Tensor", "l": "Tensors", "s": "Scalar", "a": "Array"}


def source() -> str:
    """Return the functions in C++, two for each name: one collects a call, one launches it (see ge/nn_api.h)."""
    lines = ['#include "nn_api.h"', "using virtual_ascend::Executor;", 'extern "C" {']
    for name, function in TABLE.items():
        letters = list(enumerate(function.arguments))
        parameters = ", ".join(f"{_C_TYPES.get(letter, 'const void *')} a{index}" for index, letter in letters)
        calls = " ".join(f"made->Add{_ADDED_AS.get(letter, 'Number')}(a{index});" for index, letter in letters)
        lines += [
            f"int aclnn{name}GetWorkspaceSize({parameters}, uint64_t *size, Executor **executor) {{",
            f'  auto made = new Executor("{name}"); {calls} *size = 0; *executor = made; return 0;',
            "}",
            f"int aclnn{name}(void *, uint64_t, const Executor *executor, void *stream) {{",
            "  const int status = executor->Launch(stream); delete executor; return status;",
            "}",
        ]
    return "\n".join([*lines, "}", ""])


def run(memory: Memory, addresses: Sequence[Address], message: bytes) -> None:
    """Do what a call describes.

    Raises:
        KernelError: it fails, or a tensor does not lie in one block of memory.
    """
    call = json.loads(message)
    name, function, places = call["name"], TABLE[call["name"]], iter(addresses)

    def value(letter: str, given: Any) -> Any:
        if given is None:
            return None
        if letter == "t":
            return _view(memory, given, next(places), name)
        if letter == "l":
            return [_view(memory, one, next(places), name) for one in given]
        if letter == "s":
            return np.array(given["bytes"], np.uint8).view(DTYPES[given["dtype"]])[0]
        return int(given) if letter in "icby" else given

    arguments = [value(*pair) for pair in zip(function.arguments, call["arguments"])]
    target = arguments[0] if name.startswith("Inplace") else arguments[function.arguments.rindex("t")]
    given = [argument for argument in arguments if argument is not target or name.startswith("Inplace")]
    given = given[: len(given) - function.arguments.count("c")]
    try:
        result = np.asarray(function.compute(*(wide(one) if isinstance(one, np.ndarray) else one for one in given)))
        notice_overflow([result], [one for one in given if isinstance(one, np.ndarray)])
        target[...] = convert(result, target.dtype)
    except (TypeError, ValueError, IndexError) as error:
        raise KernelError(f"aclnn{name} failed: {error}; its arguments were {call['arguments']}") from error


def _view(memory: Memory, tensor: dict[str, Any], address: Address, name: str) -> np.ndarray:
    """Return a tensor with strides, in elements, that begins so many elements behind its address."""
    dtype, shape, strides = np.dtype(DTYPES[tensor["dtype"]]), tensor["shape"], tensor["strides"]
    count = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides)) if all(shape) else 0
    skipped = tensor["offset"] * dtype.itemsize
    place = Address(address.offset + skipped, max(0, address.room - skipped))
    flat = memory.view(place, dtype, (count,), f"aclnn{name}")
    return np.lib.stride_tricks.as_strided(flat, shape, [stride * dtype.itemsize for stride in strides])
