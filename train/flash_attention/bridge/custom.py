"""Custom primitives that several threads may call in PYNATIVE.

MindSpore keeps what it compiled for an operation and its shapes, and hands each call's tensors over in that one object.
It guards neither against a second thread. Without a lock, two threads that call one operation with equal shapes read
each other's results without a word, mostly at its first call (MindSpore 2.10, also with its own operators that it
compiles so).
"""

from __future__ import annotations

import os
import threading

from mindspore import ops

# Held while an operation is handed over, not while it runs: MindSpore runs it later, in a thread of its own. A thread
# may come here again from inside, by an object that is destroyed meanwhile.
ONE_THREAD = threading.RLock()
os.register_at_fork(before=ONE_THREAD.acquire, after_in_parent=ONE_THREAD.release, after_in_child=ONE_THREAD.release)


class Custom(ops.Custom):
    """Hand over a Custom operation, one thread at a time."""

    def __call__(self, *tensors):
        # PYNATIVE calls a primitive and so lands here; a compiled graph contains the operation.
        with ONE_THREAD:
            return super().__call__(*tensors)
