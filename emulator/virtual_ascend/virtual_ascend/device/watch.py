"""Watch how long a kernel runs.

A notice comes first, an error when MindSpore's op_timeout is over.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Callable

from ..operator_call import OperatorCall

#: op_timeout of MindSpore 2.0 if the program sets none.
DEFAULT_SECONDS = 1900


class Watch:
    """Watch the kernel that runs, from a thread of its own.

    Args:
        give_up: gets what is wrong, once a kernel has run too long. The kernel goes on, since nothing can end it.
    """

    def __init__(self, give_up: Callable[[str], None]) -> None:
        self.give_up = give_up
        self.limit = float(os.environ.get("VIRTUAL_ASCEND_KERNEL_SECONDS", DEFAULT_SECONDS))
        self.patience = float(os.environ.get("VIRTUAL_ASCEND_PATIENCE", 60))
        self.kernel: OperatorCall | None = None
        self.begin = 0.0

    def begins(self, kernel: OperatorCall) -> None:
        """Note that a kernel begins."""
        self.begin, self.kernel = time.monotonic(), kernel

    def ends(self) -> None:
        """Note that the kernel has ended."""
        self.kernel = None

    def start(self) -> None:
        """Start to watch. The process does not wait for the thread."""
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        noticed = None
        while True:
            time.sleep(0.25)
            kernel, begin = self.kernel, self.begin
            if kernel is None:
                continue
            passed, name = time.monotonic() - begin, f"kernel {kernel.name} ({kernel.type})"
            if self.limit and passed > self.limit:
                allowed = f"op_timeout of mindspore.set_context allows {self.limit:g}"
                return self.give_up(f"{name} has run for {passed:.0f} seconds and not ended; {allowed}")
            if passed > self.patience and noticed != begin:
                noticed = begin
                print(f"virtual-ascend: {name} has run for {passed:.0f} seconds", file=sys.stderr, flush=True)
