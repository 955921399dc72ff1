"""Write a kernel and its description as CANN's compilers do."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from tikemu.machine.inputs import block_count

from ..operator_call import OperatorCall, arguments_of, shape_of, tensors
from . import answers


def write(kernel: OperatorCall, folder: Path, spelling: str = "kernel0") -> None:
    """Write the kernel, and its description for MindSpore.

    Args:
        spelling: of the function: "kernel0" (NAME__kernel0), "plain" (NAME), or "listed" (NAME_1 in `kernelList`), as
            CANN's compilers have them for static, AKG's and dynamic kernels.
    """
    folder.mkdir(parents=True, exist_ok=True)
    function = {"kernel0": f"{kernel.name}__kernel0", "plain": kernel.name, "listed": f"{kernel.name}_1"}[spelling]
    contents = kernel.dump(function)
    (folder / f"{kernel.name}.o").write_bytes(contents)
    description: dict[str, Any] = {
        "binFileName": kernel.name,
        "binFileSuffix": ".o",
        "blockDim": 1,
        "kernelName": kernel.name if spelling == "listed" else function,
        "magic": answers.MAGIC,
        "coreType": answers.CORE_TYPE,
        "parameters": [0] * len(tensors(kernel.inputs + kernel.outputs)),
        "sha256": hashlib.sha256(contents).hexdigest(),
    }
    program = kernel.program
    if program is not None:
        given = arguments_of(program)
        description["blockDim"] = block_count(program, {}) or 1
        # 1: MindSpore clears the tensor before the kernel.
        description["parameters"] = [int(tensor.is_atomic_add) for tensor in (*given, *program.workspaces)]
        sizes = [math.prod(shape_of(tensor)) * np.dtype(tensor.dtype).itemsize for tensor in program.workspaces]
        if sizes:
            description["workspace"] = {"num": len(sizes), "size": sizes, "type": [0] * len(sizes)}
    if spelling == "listed":
        description["kernelList"] = [{"kernelName": function}]
        description["parameters"] = [None] * len(description["parameters"])
    (folder / f"{kernel.name}.json").write_text(json.dumps(description))
