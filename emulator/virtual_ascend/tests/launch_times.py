"""Measure the cost of a launch, and what several processes save: on the card, launch_times.py [CALLS].

    export PYTHONPATH=emulator:emulator/virtual_ascend
    virtual-ascend --processes 2 -- python emulator/virtual_ascend/tests/launch_times.py

It prints the milliseconds of one launch of a small operator in a graph, and of its computation alone. For an operator
of 32 blocks it prints the milliseconds of each call, the processes that execute blocks, and a checksum of the result.
"""

import sys
import time
from pathlib import Path

import mindspore as ms
import numpy as np
import tik_entries
import tikemu
from failing_programs import custom
from mindspore import Tensor, nn

SMALL, LARGE, COUNT = 256, 32 * 8192, 100


class Chain(nn.Cell):
    """An operator on its own result, repeated `count` times."""

    def __init__(self, function, count):
        super().__init__()
        self.operator, self.count = custom(function), count

    def construct(self, x):
        for _ in range(self.count):
            x = self.operator(x)
        return x


def milliseconds(function, rounds=20):
    """Return the least time of a call, after one that compiles."""
    function()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def children(pid):
    """Return the process ids."""
    return [
        int(word) for task in Path(f"/proc/{pid}/task").iterdir() for word in (task / "children").read_text().split()
    ]


def workers():
    """Return the number of processes of the device process."""
    devices = [pid for pid in children("self") if b"virtual_ascend.device" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return sum(len(children(pid)) for pid in devices)


def main(calls):
    """Print the figures."""
    x = Tensor(np.zeros(SMALL, np.float16))
    chains = [Chain(tik_entries.twice, count) for count in (1, 1 + COUNT)]
    one, many = (milliseconds(lambda chain=chain: chain(x).asnumpy()) for chain in chains)
    program, options = tik_entries.twice(None, None), tikemu.Options(strict=True, progress=False)
    computed = milliseconds(lambda: tikemu.run(program, {"x": x.asnumpy()}, timing=False, options=options))
    print(f"launch {(many - one) / COUNT:.2f} ms computation {computed:.2f} ms")
    x, chain = Tensor(np.linspace(-9, 9, LARGE).astype(np.float16)), Chain(tik_entries.many_blocks, 1)
    for _ in range(calls):
        start = time.perf_counter()
        result = chain(x).asnumpy()
        duration = time.perf_counter() - start
        right = np.array_equal(result, x.asnumpy() + np.float16(1))
        print(f"32 blocks {1e3 * duration:.0f} ms workers {workers()} right {right}")


if __name__ == "__main__":
    ms.set_context(mode=ms.GRAPH_MODE, device_target="Ascend")
    main(int(sys.argv[1]) if sys.argv[1:] else 4)
