"""Entry functions for MindSpore's in-process TBE compiler (2.0 to 2.2): a file and a function per operator.

MindSpore registers a function name once, and finds the function by the name of its file. An entry is called in a
process of the compiler, from its file or from a copy of the function alone, as

    entry(*inputs, *outputs, problem, kernel_name, **others)

(`_extends/parallel_compile/tbe_compiler` of MindSpore 2.0), so it imports inside what it needs.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
from pathlib import Path
from typing import Callable

import flash_attention
from flash_attention.files import write_whole
from flash_attention.kernels.tik.signatures import Operator

_SOURCE = '''"""Entry of operator {type}; written by flash_attention {version}."""


def {function}(
    {parameters},
    kernel_name="{function}",
    **others,
):
    """Compiles the kernel for these tensors; `problem` is what KernelProblem.to_text writes."""
    import os
    import sys

    packages = {packages}
    if packages not in sys.path:
        sys.path.insert({place}, packages)
    from flash_attention.kernels.tik.operators import compile_entry

    tensors = dict({tensors})
    return compile_entry("{name}", tensors, problem, kernel_name)
'''


def folder() -> Path:
    """Return the folder of the files: FLASH_ATTENTION_ENTRIES, else in the user's cache folder.

    Raises:
        RuntimeError: neither it nor XDG_CACHE_HOME is set, and the user has no home.
    """
    chosen = os.environ.get("FLASH_ATTENTION_ENTRIES")
    if chosen:
        return Path(chosen)
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError as error:
        raise RuntimeError(f"{error} Set FLASH_ATTENTION_ENTRIES to a folder for the operators' entries") from None
    return cache / "flash-attention" / "entries"


def packages() -> str:
    """Return the folder that entries find flash_attention in."""
    return str(Path(flash_attention.__file__).resolve().parents[1])


def source(operator: Operator, function: str, packages: str, place: str, *attributes: str) -> str:
    """Return the source of an operator's entry.

    Args:
        function: name of the entry.
        packages: expression for the folder that it finds flash_attention in.
        place: expression for the place of that folder in sys.path.
        attributes: what comes behind the tensors, the problem among it.
    """
    names = [argument.name for argument in (*operator.inputs, *operator.outputs)]
    return _SOURCE.format(
        type=operator.type,
        version=flash_attention.__version__,
        name=operator.name,
        function=function,
        parameters=",\n    ".join((*names, *attributes)),
        packages=packages,
        place=place,
        tensors=", ".join(f"{name}={name}" for name in names),
    )


@functools.cache
def entry(operator: Operator) -> Callable:
    """Return the entry function of an operator. It is always the same function in a process.

    MindSpore's profiler and GE take its name for the operator's type.
    """
    return load(operator.type, source(operator, operator.type, repr(packages()), "len(sys.path)", "problem"))


def load(name: str, source: str) -> Callable:
    """Return the function `name` of a file with this source. A missing or different file is written."""
    installation = hashlib.sha256(f"{packages()}\n{flash_attention.__version__}".encode()).hexdigest()[:12]
    path = folder() / installation / f"{name}.py"
    try:
        if not path.exists() or path.read_bytes() != source.encode():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, source)  # other processes may write and read it too
    except OSError as error:
        raise RuntimeError(
            f"the operators' entries cannot be written: {error}; set FLASH_ATTENTION_ENTRIES to a folder that can"
        ) from error
    specification = importlib.util.spec_from_file_location(name, path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return getattr(module, name)
