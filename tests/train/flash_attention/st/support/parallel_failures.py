"""Processes that surprise the others. msrun starts them; each prints "ERROR <seconds> <type> <message>"."""

import argparse
import os
import sys
import time

import mindspore as ms
import numpy as np
from flash_attention.context_parallel import GatherAttention, initialize
from mindspore import Tensor
from mindspore.common.api import _pynative_executor


def attend(seq: int) -> None:
    """Make one call."""
    query = Tensor(np.ones((1, 1, seq, 8), np.float32))
    GatherAttention(8, causal=True)(query, query, query).asnumpy()


def main() -> None:
    """Let the last process die or lag, and print what the others notice."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("dead", "slow"))
    options = parser.parse_args()
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    rank, world = initialize(timeout=8)
    attend(16)
    start = time.perf_counter()
    try:
        if rank == world - 1:
            # A dead one never comes back; its process stays, or msrun would end all the others too.
            time.sleep(16 if options.kind == "slow" else 600)
        attend(16)
        print("no error", flush=True)
    except RuntimeError as error:
        message = " ".join(str(error).split())
        print(f"ERROR {time.perf_counter() - start:.1f} {type(error).__name__} {message}", flush=True)
    # Neither side waits for the other at the end of the program.
    _pynative_executor.clear_res()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
