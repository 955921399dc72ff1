"""The loop of the device process: ``python -m virtual_ascend.device SOCKET MEMORY BYTES PAGES``.

The first two are file descriptors, the others the size of the memory and of the table of its pages.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import sys
import threading
import traceback
from pathlib import Path
from typing import Callable

import numpy as np

from ..operator_call import load
from . import aicpu, by_name, channels, collectives, nn
from .errors import KernelError, QueueEmpty, QueueFull
from .graph import Graphs
from .launch import Launcher
from .memory import Address, Memory
from .report import Report
from .watch import Watch

# Requests and codes of runtime/device.h and runtime/status.h.
REGISTER, LAUNCH, AICPU, OPERATOR, SEND, WAITING, GIVE, TAKE, GRAPH, RUN_GRAPH, NN, GO_ON = range(1, 13)
SUCCESS, QUEUE_EMPTY, QUEUE_FULL, KERNEL_FAILED = 0, 207013, 207014, 507015
_HEADER, _ANSWER, _ADDRESS = struct.Struct("=IIQQ"), struct.Struct("=qQ"), struct.Struct("=QQ")


class Server:
    """Answer the runtime, one request after the other."""

    def __init__(self, connection: socket.socket, launcher: Launcher) -> None:
        self.connection, self.launcher, self.graphs = connection, launcher, Graphs(launcher)
        self.failures: list[str] = []
        self.watch = Watch(self.give_up)
        self.launcher.begins = self.watch.begins
        self.answering = threading.Lock()
        self.given_up = ""
        self.handlers: dict[int, Callable[[int, int, bytes], str | None]] = {
            REGISTER: self.register,
            LAUNCH: self.launch,
            AICPU: self.launch_aicpu,
            OPERATOR: self.launch_operator,
            SEND: lambda _number, _count, contents: channels.send(contents),
            WAITING: lambda _number, _count, contents: str(channels.waiting(contents.decode())),
            GIVE: self.give,
            TAKE: self.take,
            GRAPH: lambda number, _count, contents: self.graphs.add(number, contents),
            NN: lambda _number, count, contents: nn.run(launcher.memory, *_split(count, contents)),
            RUN_GRAPH: lambda number, count, contents: self.graphs.run(number, *_split(count, contents)),
            GO_ON: lambda number, _count, _contents: self.graphs.go_on(number),
        }

    def serve(self) -> None:
        """Serve until the program has ended."""
        self.watch.start()
        while True:
            request, blocks, number, size = _HEADER.unpack(self.read(_HEADER.size))
            contents = self.read(size)
            code, text = SUCCESS, ""
            try:
                text = self.handlers[request](number, blocks, contents) or ""
            except QueueEmpty as error:
                code, text = QUEUE_EMPTY, str(error)
            except QueueFull:
                code = QUEUE_FULL
            except KernelError as error:
                code, text = KERNEL_FAILED, str(error)
            except Exception:
                code, text = KERNEL_FAILED, f"the device process met an error of its own\n{traceback.format_exc()}"
            self.watch.ends()
            with self.answering:
                if self.given_up:
                    return  # the watch has answered, and does so from now on
                self.answer(code, text)

    def answer(self, code: int, text: str) -> None:
        if code == KERNEL_FAILED:
            self.failures.append(text)
        answer = text.encode()
        self.connection.sendall(_ANSWER.pack(code, len(answer)) + answer)

    def give_up(self, text: str) -> None:
        """Answer in place of a kernel that does not end. Then refuse all requests until the program has ended."""
        with self.answering:
            if self.watch.kernel is None:
                return  # it has ended meanwhile
            self.given_up = text
        with contextlib.suppress(ConnectionError):
            while True:
                self.answer(KERNEL_FAILED, text)
                self.read(_HEADER.unpack(self.read(_HEADER.size))[-1])

    def read(self, size: int) -> bytes:
        contents = bytearray()
        while len(contents) < size:
            part = self.connection.recv(size - len(contents))
            if not part:
                sys.exit(0)
            contents += part
        return bytes(contents)

    def register(self, number: int, _blocks: int, contents: bytes) -> None:
        self.launcher.kernels[number] = load(contents)

    def launch(self, number: int, blocks: int, contents: bytes) -> None:
        self.launcher.launch(number, blocks, [Address(*pair) for pair in _ADDRESS.iter_unpack(contents)])

    def launch_aicpu(self, _number: int, count: int, contents: bytes) -> None:
        addresses, definition = _split(count, contents)
        self.launcher.launch_aicpu(aicpu.parse(definition), addresses)

    def launch_operator(self, _number: int, count: int, contents: bytes) -> None:
        addresses, description = _split(count, contents)
        kernel, constants = by_name.parse(description)
        self.launcher.launch_operator(kernel, addresses, constants)

    def give(self, graph: int, count: int, contents: bytes) -> None:
        """Run a collective of a graph: its tensors are there, and no addresses come."""
        addresses, description = _split(count, contents)
        call = collectives.parse(description)
        if count:
            found = collectives.given(self.launcher.memory, call, addresses[0])
        else:
            found = self.graphs.at[graph].given[: None if call.given else 0]  # of a broadcast the root alone gives
        collectives.give(call, found)

    def take(self, graph: int, count: int, contents: bytes) -> None:
        addresses, description = _split(count, contents)
        call = collectives.parse(description)
        result = collectives.taken(self.launcher.memory, call, addresses[1]) if count else self.graphs.at[graph].taken
        collectives.take(call, result)
        self.launcher.note_collective(call)


def _split(count: int, contents: bytes) -> tuple[list[Address], bytes]:
    """Return the addresses that a message begins with, and the rest."""
    end = count * _ADDRESS.size
    return [Address(*pair) for pair in _ADDRESS.iter_unpack(contents[:end])], contents[end:]


def _end_with(connection: socket.socket, report: Report | None, failures: list[str]) -> None:
    """End the process with the program, also while a kernel runs, and sum up launches.

    MindSpore's own messages hide the first failure behind a tail of others, so it comes once more, last.
    """
    poll = select.poll()
    poll.register(connection, select.POLLHUP)
    while not any(events & select.POLLHUP for _, events in poll.poll()):
        pass
    if report:
        report.summarize()
    if failures:
        print(f"virtual-ascend: the first failure was: {failures[0]}", file=sys.stderr, flush=True)
    os._exit(0)


def main() -> None:
    # Ctrl-C goes to all processes of a terminal. The program decides what to do, and this process ends with it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    descriptor, file, size, pages = map(int, sys.argv[1:5])
    connection = socket.socket(fileno=descriptor)
    folder = os.environ.get("VIRTUAL_ASCEND_REPORT")
    report = Report(Path(folder)) if folder else None
    np.seterr(all="ignore")  # infinities and NaN are part of the arithmetic
    processes, cards = (int(os.environ.get(f"VIRTUAL_ASCEND_{name}", "1")) for name in ("PROCESSES", "CARDS"))
    server = Server(connection, Launcher(Memory(file, size, pages), report, max(1, processes // cards)))
    # Not a daemon: the end waits for it.
    threading.Thread(target=_end_with, args=(connection, report, server.failures)).start()
    with contextlib.suppress(ConnectionError):  # the program has ended while its kernel ran
        server.serve()


if __name__ == "__main__":
    main()
