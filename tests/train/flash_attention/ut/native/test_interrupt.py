"""Interrupts: a signal during a call leaves the process, the kernel and its threads usable."""

import os
import signal
import threading
import time

import numpy as np
from flash_attention.backends.cpu import library
from flash_attention.call import Call


def interrupted_call() -> None:
    """Run in a process of its own: two calls, the first with a Ctrl-C in its middle."""
    problem = Call(batch=1, heads=2, seq_q=1500, seq_k=1500, head_dim=64, dtype="float32")
    tensors = [np.random.default_rng(i).standard_normal(problem.shape_query()).astype(np.float32) for i in range(3)]
    expected, _ = library.forward(problem, *tensors)
    interrupted = False
    try:
        # Inside, because the thread may be faster than its start.
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        for _ in range(1000):
            output, _ = library.forward(problem, *tensors)
        time.sleep(10)
    except KeyboardInterrupt:
        interrupted = True
    assert interrupted
    output, _ = library.forward(problem, *tensors)
    np.testing.assert_array_equal(output, expected)
    print("usable")


def test_interrupt(run_python):
    assert "usable" in run_python("-c", f"from {__name__} import interrupted_call; interrupted_call()")
