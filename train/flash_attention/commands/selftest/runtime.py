"""Run the experiments on a card by CANN's compiler and runtime alone: no operator package, no GE, no operator store.

TIK compiles each kernel in a process of its own. The runtime's C functions register and launch the object, as MindSpore
1.10 and 2.0 do with kernels of this chip. Memory, streams and events are pyACL's. Not tried on a card.

    python -m flash_attention.commands.selftest.runtime SOC KERNEL NAME [PROBLEM]

compiles an operator for a problem, or a program of the self-test, in the working folder.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flash_attention.commands.selftest import elf
from flash_attention.commands.selftest.loops import ALL_PROGRAMS
from flash_attention.commands.selftest.pyacl import Acl, DeviceCall
from flash_attention.kernels.tik import operators, signatures
from flash_attention.kernels.tik.problem import KernelProblem
from flash_attention.kernels.tik.signatures import GlobalTensor
from flash_attention.measuring.timing import environment

MAGIC = 0x43554245  # RT_DEV_BINARY_MAGIC_ELF of the runtime's headers


class Binary(ctypes.Structure):
    """The runtime's rtDevBinary_t."""

    _fields_ = [
        ("magic", ctypes.c_uint32),
        ("version", ctypes.c_uint32),
        ("data", ctypes.c_void_p),
        ("length", ctypes.c_uint64),
    ]


def function_of(described: dict[str, Any], functions: Sequence[str]) -> str:
    """Return which of an object's functions to launch, by its description in JSON.

    Three spellings exist: the kernel's name, with "__kernel0" behind it, and with numbers that `kernelList` has. So
    the name is looked up and never made. Of an object without symbols the description alone decides.

    Raises:
        RuntimeError: the description names none of the object's functions, and the object has not exactly one.
    """
    named = [described.get("kernelName"), *(one.get("kernelName") for one in described.get("kernelList", ()))]
    for name in (*named, *(functions if len(functions) == 1 else ())):
        if name and (name in functions or not functions):
            return name
    raise RuntimeError(f"the description names the functions {named}, the object has {list(functions)}")


def read_compiled(folder: Path) -> tuple[dict[str, Any], bytes]:
    """Return description and object of the kernel that was compiled in a folder."""
    objects = sorted(folder.rglob("*.o"))
    described = [path for path in objects if path.with_suffix(".json").exists()]
    if len(described) != 1:
        names = ", ".join(path.name for path in objects) or "no object"
        raise RuntimeError(f"CANN wrote {names}, expected is one object with a description (.json) of its name")
    (path,) = described
    return json.loads(path.with_suffix(".json").read_text(encoding="utf-8")), path.read_bytes()


class KernelCall(DeviceCall):
    """Compile a kernel by TIK alone, and launch it by the runtime."""

    card: Runtime

    def __init__(self, card: Runtime, kind: str, inputs: Sequence[tuple], outputs: Sequence[GlobalTensor], *words: str):
        self.words = words
        super().__init__(card, kind, inputs, outputs)

    def prepare(self, inputs: Sequence[GlobalTensor]) -> None:
        key = self.kind, *self.words
        compiled = self.card.compiled
        if key not in compiled:
            compiled[key] = self._compile()
        self.described, contents = compiled[key]
        # "parameters" has a number or null for each tensor, the inputs first. 1: it must be zero at the start.
        flags = [flag == 1 for flag in (self.described.get("parameters") or [])[len(self.given) :]]
        flags += [False] * (len(self.outputs) - len(flags))
        self.outputs = [replace(one, added=one.added or flag) for one, flag in zip(self.outputs, flags)]
        space = self.described.get("workspace") or {}
        spaces = [self.card.allocate(size, self.space) for size in space.get("size", ())]
        places = [*self.given, *self.addresses, *spaces]
        self.arguments = (ctypes.c_uint64 * len(places))(*places)
        self.function = function_of(self.described, elf.read(contents).functions).encode()
        self.contents = ctypes.create_string_buffer(contents, len(contents))  # the runtime may read it later
        binary, handle = Binary(MAGIC, 0, ctypes.addressof(self.contents), len(contents)), ctypes.c_void_p()
        runtime, check = self.card.library, self.card.check
        check("rtDevBinaryRegister", runtime.rtDevBinaryRegister(ctypes.byref(binary), ctypes.byref(handle)))
        self.space.callback(runtime.rtDevBinaryUnRegister, handle)
        self.stub = ctypes.create_string_buffer(1)  # its address stands for the function
        name = f"flash_attention_{ctypes.addressof(self.stub)}".encode()
        registered = runtime.rtFunctionRegister(handle, ctypes.byref(self.stub), name, self.function, 0)
        check(f"rtFunctionRegister of {self.function.decode()}", registered)

    def _compile(self) -> tuple[dict[str, Any], bytes]:
        """Return the kernel's description and object."""
        command = [sys.executable, "-m", __name__, self.card.soc, self.kind, *self.words]
        with tempfile.TemporaryDirectory(prefix="flash_attention_") as folder:
            done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"{self.kind} was not compiled, status {done.returncode}: {done.stderr[-4000:]}")
            return read_compiled(Path(folder))

    def launch(self) -> None:
        blocks, size = int(self.described["blockDim"]), ctypes.sizeof(self.arguments)
        stub, stream = ctypes.byref(self.stub), ctypes.c_void_p(self.card.stream)
        launched = self.card.library.rtKernelLaunch(stub, blocks, ctypes.byref(self.arguments), size, None, stream)
        self.card.check(f"rtKernelLaunch of {self.kind}", launched)


class Runtime(Acl):
    """Use the first card, without an operator package."""

    through, library_name = "runtime", "libruntime.so"
    compiled: dict[tuple[str, ...], tuple[dict[str, Any], bytes]]  # descriptions and objects

    def missing(self) -> str | None:
        return None

    def prepare(self) -> None:
        self.compiled = {}

    def stage_call(
        self, operator: signatures.Operator, problem: str, inputs: Sequence[tuple], outputs: Sequence[GlobalTensor]
    ) -> DeviceCall:
        return KernelCall(self, operator.name, inputs, outputs, problem)

    def program_call(self, name: str, inputs: Sequence[tuple], outputs: Sequence[GlobalTensor]) -> DeviceCall:
        return KernelCall(self, f"selftest_{name}", inputs, outputs)


def main() -> None:
    soc, name, *problems = sys.argv[1:]
    from tbe.common import platform

    platform.set_current_compile_soc_info(soc)
    from tbe import tik

    if not problems:
        ALL_PROGRAMS[name[len("selftest_") :]].build(tik, name, False)
        return
    stage = next(one.stage for one in signatures.OPERATORS if one.name == name)
    operator, signature = signatures.arguments(stage, KernelProblem.from_text(problems[0]))
    tensors = operator.fill(signature).as_entries_get()
    operators.compile_entry(name, tensors, problems[0], name)


if __name__ == "__main__":
    main()
