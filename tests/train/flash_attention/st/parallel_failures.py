"""Processes that do not do what the others expect. Started by msrun; prints "ERROR <seconds> <type> <message>"."""

import argparse
import os
import sys
import time

import mindspore as ms
import numpy as np
from flash_attention.parallel import RingAttention, initialize
from mindspore import Tensor
from mindspore.common.api import _pynative_executor


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("dead", "slow", "uneven", "one-sided"))
    options = parser.parse_args()
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    rank, world = initialize(timeout=4)
    attention = RingAttention(8, causal=True)

    def attend(seq):
        query = Tensor(np.ones((1, 1, seq, 8), np.float32))
        attention(query, query, query).asnumpy()

    attend(16)
    other = rank == world - 1
    start = time.perf_counter()
    try:
        if options.kind == "dead" and other:
            # Gone from the ring for good; the process itself stays, or msrun would end all the others too.
            time.sleep(8)
            return
        if options.kind == "slow" and other:
            time.sleep(7)
        seq = {"uneven": 15 if other else 32, "one-sided": 20 if other else 16}
        attend(seq.get(options.kind, 16))
        print("no error", flush=True)
    except (RuntimeError, ValueError) as error:
        message = " ".join(str(error).split())
        print(f"ERROR {time.perf_counter() - start:.1f} {type(error).__name__} {message}", flush=True)
    # Neither side waits for the other at the end of the program.
    _pynative_executor.clear_res()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
