"""The card for a program in Python: its memory, and requests to the device process, as runtime/device.cc makes them."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tikemu

from .device.memory import NOWHERE, PAGE, Address, Memory
from .operator_call import OperatorCall

REGISTER, LAUNCH = 1, 2  # of device/__main__.py
_HEADER, _ANSWER, _ADDRESS = struct.Struct("=IIQQ"), struct.Struct("=qQ"), struct.Struct("=QQ")
_BASE = 1 << 40  # addresses of the card begin here, so none is an address of this process


class Card:
    """One card; the device process starts with it and ends with the program."""

    def __init__(self) -> None:
        size = int(os.environ.get("VIRTUAL_ASCEND_MEMORY", 32 << 30)) // PAGE * PAGE
        pages = size // PAGE
        file = os.memfd_create("virtual_ascend")
        os.ftruncate(file, size + pages)
        self.size, self.memory = size, Memory(file, size, pages)
        self.blocks: dict[int, int] = {}  # bytes by offset
        self.numbers = 0  # of kernels
        self.socket, other = socket.socketpair()
        folders = (str(Path(str(one)).parents[1]) for one in (__file__, tikemu.__file__))
        numbers = other.fileno(), file, size, pages
        subprocess.Popen(
            [sys.executable, "-m", "virtual_ascend.device", *map(str, numbers)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
            pass_fds=(other.fileno(), file),
            # Ctrl-C is for the program, also before the process has begun to ignore it.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        )
        other.close()

    def allocate(self, size: int) -> int | None:
        """Return the address of a new block, or None if there is no room."""
        start = PAGE
        for offset in sorted(self.blocks):
            if start + size + PAGE <= offset:
                break
            start = offset + (self.blocks[offset] + 2 * PAGE - 1) // PAGE * PAGE
        if start + size + PAGE > self.size:
            return None
        self.blocks[start] = size
        return _BASE + start

    def free(self, address: int) -> bool:
        """Free a block; False if none begins there."""
        return self.blocks.pop(address - _BASE, None) is not None

    def locate(self, address: int) -> Address:
        """Return the place of an address, and the bytes of its block from there on."""
        for offset, size in self.blocks.items():
            if offset <= address - _BASE < offset + size:
                return Address(address - _BASE, offset + size - address + _BASE)
        return Address(NOWHERE, 0)

    def view(self, address: int, size: int) -> np.ndarray:
        """Return the bytes of the card.

        Raises:
            KernelError: they do not lie in one block.
        """
        return self.memory.view(self.locate(address), np.dtype(np.uint8), (size,), "copy")

    def register(self, kernel: OperatorCall) -> int:
        """Return the number of a kernel that the device process has from now on."""
        self.numbers += 1
        self._ask(REGISTER, 0, self.numbers, kernel.dump())
        return self.numbers

    def launch(self, number: int, blocks: int, addresses: Sequence[int]) -> tuple[int, str]:
        """Run a kernel; returns the code of runtime/status.h, and what went wrong."""
        return self._ask(LAUNCH, blocks, number, b"".join(_ADDRESS.pack(*self.locate(one)) for one in addresses))

    def _ask(self, request: int, blocks: int, number: int, contents: bytes) -> tuple[int, str]:
        self.socket.sendall(_HEADER.pack(request, blocks, number, len(contents)) + contents)
        code, size = _ANSWER.unpack(self._read(_ANSWER.size))
        return code, self._read(size).decode()

    def _read(self, size: int) -> bytes:
        contents = b""
        while len(contents) < size:
            part = self.socket.recv(size - len(contents))
            if not part:
                raise RuntimeError("virtual-ascend: the device process has ended")
            contents += part
        return contents
