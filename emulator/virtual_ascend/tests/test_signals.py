"""The device process and Ctrl-C, which a terminal sends to all its processes."""

import os
import signal
import socket
import subprocess
import sys
import tempfile

from emulator.virtual_ascend.tests.card import PACKAGES

VARIABLES = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, PACKAGES))}
# Requests as runtime/device.h has them: how many batches wait in a channel.
WAITING, ANSWER = 6, 16


def test_the_device_process_outlives_an_interrupt_and_ends_with_the_program():
    ours, theirs = socket.socketpair()
    with ours, tempfile.TemporaryFile() as memory:
        memory.truncate(2 * 65536)
        words = theirs.fileno(), memory.fileno(), 65536, 65536
        command = [sys.executable, "-m", "virtual_ascend.device", *map(str, words)]
        device = subprocess.Popen(command, env=VARIABLES, pass_fds=words[:2], stderr=subprocess.PIPE, text=True)
        theirs.close()
        ours.settimeout(60)
        try:
            for _ in range(2):
                name = b"channel"
                request = b"".join(
                    number.to_bytes(size, sys.byteorder) for number, size in ((WAITING, 4), (0, 4), (0, 8))
                )
                ours.sendall(request + len(name).to_bytes(8, sys.byteorder) + name)
                assert len(ours.recv(ANSWER, socket.MSG_WAITALL)) == ANSWER
                assert ours.recv(1) == b"0"
                device.send_signal(signal.SIGINT)
            ours.close()
            assert device.wait(30) == 0 and device.stderr.read() == ""
        finally:
            device.kill()
            device.wait()
