"""Operators that MindSpore asks for by name, as runtime/operators_api.cc describes them."""

from __future__ import annotations

import json
import re
from typing import Any, Callable

from ..operator_call import OperatorCall
from .aicpu import DTYPES
from .errors import KernelError

#: aclFormat by number.
FORMATS = {
    **{0: "NCHW", 1: "NHWC", 2: "ND", 3: "NC1HWC0", 4: "FRACTAL_Z", 16: "HWCN", 27: "NDHWC", 29: "FRACTAL_NZ"},
    30: "NCDHW",
}


def entry_of(kind: str) -> str:
    """Return the name of the entry of CANN's operator of this type: gelu_grad for GeluGrad, conv2d for Conv2D."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=.)(?=[A-Z][a-z])|(?<=V\d)(?=D$)", "_", kind).lower()


def type_of(entry: str) -> str:
    """Return MindSpore's type of the operator of this entry: GeluGrad for gelu_grad."""
    return "".join(map(str.capitalize, entry.split("_")))


def both_forms(**operators: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """Return operators under two names: entry with tensors, entry_d with attributes in their place."""
    return {name + ending: operator for name, operator in operators.items() for ending in ("", "_d")}


def attribute(kernel: OperatorCall, *names: str, otherwise: Any = None) -> Any:
    """Return the first of these attributes: by CANN's name, then by the name in calls by name."""
    return next((kernel.attributes[name] for name in names if name in kernel.attributes), otherwise)


def parse(message: bytes) -> tuple[OperatorCall, dict[int, bytes]]:
    """Return the kernel, and tensors that do not lie on the card by their place."""
    described = json.loads(message)
    constants: dict[int, bytes] = {}
    place = 0

    def tensor(given: Any) -> Any:
        nonlocal place
        if given is None:
            return None
        if given["format"] not in FORMATS or given["dtype"] not in DTYPES:
            raise KernelError(f"operator {described['type']}: format {given['format']}, dtype {given['dtype']}")
        if "contents" in given:
            constants[place] = bytes.fromhex(given.pop("contents"))
        place += 1
        return {**given, "format": FORMATS[given["format"]], "dtype": DTYPES[given["dtype"]]}

    inputs, outputs = ([tensor(given) for given in described[side]] for side in ("inputs", "outputs"))
    kind = described["type"]
    return OperatorCall(kind, kind, entry_of(kind), inputs, outputs, described["attributes"]), constants
