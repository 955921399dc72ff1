"""The kernel in a process of its own: `Remote` takes the place of `library.Library`."""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path

import numpy as np
from flash_attention.backends.cpu import build
from flash_attention.backends.cpu.library import ISA_VARIABLE, dtype_name

DRIVER = Path(__file__).with_name("driver.cpp")


def build_driver(folder: Path, **options) -> Path:
    """Compile the kernel and driver.cpp into one program, with the options of `build.build`."""
    program = folder / "driver"
    build.build(program, main=DRIVER, **options)
    return program


class Remote:
    """Call the kernel inside a running driver.

    Args:
        command: starts the driver.
        environment: added to the variables of this process.
    """

    def __init__(self, command: list, **environment: str):
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment},
        )

    def close(self) -> None:
        """End the driver.

        Raises:
            AssertionError: it failed, or wrote to its standard error. The message has the written text.
        """
        _, errors = self.process.communicate()
        assert self.process.returncode == 0 and not errors, errors.decode(errors="replace")

    def instruction_sets(self) -> tuple[str, ...]:
        names = []
        while (name := self._ask("flash_attention_isa", len(names))) is not None:
            names.append(name)
        return tuple(names)

    def message(self, status: int) -> str:
        return self._ask("flash_attention_message", status)

    def call(self, function: str, inputs: list, outputs: list) -> int:
        tensors = [*inputs, *outputs]
        parts = [struct.pack("<i", len(tensors)), _text(function), _text(os.environ.get(ISA_VARIABLE, ""))]
        parts.append(struct.pack("<i", len(inputs)))
        for index, array in enumerate(tensors):
            shape = () if array is None else array.shape
            parts += [_text(dtype_name(array)), struct.pack(f"<i{len(shape)}q", len(shape), *shape)]
            parts.append(struct.pack("<q", -1 if array is None else array.nbytes))
            if array is not None and index < len(inputs):
                parts.append(array.tobytes())
        self._write(b"".join(parts))
        (status,) = struct.unpack("<i", self._read(4))
        for array in outputs:
            array[...] = np.frombuffer(self._read(array.nbytes), array.dtype).reshape(array.shape)
        return status

    def _ask(self, function: str, number: int) -> str | None:
        self._write(struct.pack("<i", number) + _text(function))
        (size,) = struct.unpack("<i", self._read(4))
        return None if size < 0 else self._read(size).decode()

    def _write(self, data: bytes) -> None:
        try:
            self.process.stdin.write(data)
            self.process.stdin.flush()
        except BrokenPipeError:
            self.close()
            raise

    def _read(self, size: int) -> bytes:
        data = self.process.stdout.read(size)
        if len(data) < size:
            self.close()
            raise AssertionError("the driver ended early")
        return data


def _text(text: str) -> bytes:
    """Return a string as the driver reads it: its length, then its bytes."""
    return struct.pack("<i", len(text)) + text.encode()
