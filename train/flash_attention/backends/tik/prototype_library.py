"""Prototypes of the operators for GE, as a library of the operator package.

MindSpore registers prototypes of its own, so its users need none. It is for pyACL and torch_npu, if CANN refuses types
without one. Macros and classes are of CANN's guide to prototypes of custom operators.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

from flash_attention.kernels.tik.signatures import OPERATORS

HEADER = "graph/operator_reg.h"
_HEAD = """\
// Prototypes of the operators of flash_attention. Shapes of results are those that the caller gives.
// {compiled_by}
#include "{header}"

namespace ge {{
static graphStatus KeepShapes(Operator &) {{ return GRAPH_SUCCESS; }}
"""


def source(compiled_by: str) -> str:
    """Return the source of the library, with the command that compiles it."""
    parts = [_HEAD.format(compiled_by=compiled_by, header=HEADER)]
    for operator in OPERATORS:
        lines = [f"REG_OP({operator.type})"]
        lines += [f"    .INPUT({one.name}, TensorType::ALL())" for one in operator.inputs]
        lines += [f"    .OUTPUT({one.name}, TensorType::ALL())" for one in operator.outputs]
        lines += ["    .REQUIRED_ATTR(problem, String)", f"    .OP_END_FACTORY_REG({operator.type})"]
        lines += [f'static const InferShapeFuncRegister infer_{operator.name}("{operator.type}", KeepShapes);\n']
        parts.append("\n".join(lines))
    return "\n".join([*parts, "}  // namespace ge\n"])


def write(vendor: Path) -> None:
    """Write source and library into the vendor folder of an operator package.

    Raises:
        RuntimeError: there is no compiler, CANN's headers are missing, or with what the compiler says.
    """
    compiler = shlex.split(os.environ.get("CXX") or "g++")
    if shutil.which(compiler[0]) is None:
        raise RuntimeError(f"--prototypes: there is no {compiler[0]}: install g++, or set CXX")
    home = Path(os.environ.get("ASCEND_HOME_PATH") or os.environ.get("ASCEND_TOOLKIT_HOME") or ".")
    folder = next((one for one in (home, home / "compiler") if (one / "include" / HEADER).exists()), None)
    if folder is None:
        raise RuntimeError(f"--prototypes: there is no {home}/include/{HEADER} (source CANN's set_env.sh)")
    path, library = vendor / "op_proto/flash_attention.cc", vendor / "op_proto/libop_proto.so"
    words = [*compiler, "-std=c++17", "-shared", "-fPIC", f"-I{folder}/include", f"-L{folder}/lib64"]
    words += [str(path), "-o", str(library), "-lgraph"]
    path.parent.mkdir(parents=True)
    path.write_text(source(shlex.join(words)), encoding="utf-8")
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"--prototypes: {shlex.join(words)}\n{done.stderr[-4000:]}")
