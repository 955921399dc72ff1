"""What a process of the ring holds for a sequence of --seq tokens, forward and backward. Started by msrun.

Prints "GREW <MB> of <MB>": by how much the peak of the process rose, and the size of one tensor of the whole sequence.
"""

import argparse
import resource

import mindspore as ms
import numpy as np
from flash_attention.parallel import RingAttention, SequenceSplit, finalize, initialize
from mindspore import Tensor, ops


def peak() -> float:
    """Peak resident size, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seq", type=int, default=32768)
    options = parser.parse_args()
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    rank, world = initialize(timeout=60)
    attention = RingAttention(64, causal=True, window_size=(64, -1))
    gradient = ops.GradOperation(get_all=True, sens_param=True)(attention)

    def run(seq):
        part = Tensor(np.ones((1, 8, SequenceSplit(world).chunk_length(seq) * 2, 64), np.float32))
        for tensor in gradient(part, part, part, part):
            tensor.asnumpy()

    run(256)  # what the first call takes once and for all
    before = peak()
    run(options.seq)
    print(f"GREW {peak() - before:.0f} of {options.seq * 8 * 64 * 4 / 2**20:.0f}", flush=True)
    finalize()


if __name__ == "__main__":
    main()
