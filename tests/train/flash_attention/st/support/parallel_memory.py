"""Measure the memory of one ring process, forward and backward; a part of parallel_ring.py."""

import resource

import mindspore as ms
import numpy as np
from flash_attention.context_parallel import RingAttention, SequenceSplit
from mindspore import Tensor, ops

SEQ = 16384


def peak() -> float:
    """Return the peak of the resident size, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def check(rank: int, world: int) -> float:
    """Return by how many MB SEQ tokens raise the peak of this process. To run before anything else."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    attention = RingAttention(64, causal=True, window_size=(64, -1))
    gradient = ops.GradOperation(get_all=True, sens_param=True)(attention)

    def run(seq):
        part = Tensor(np.ones((1, 8, SequenceSplit(world).chunk_length(seq) * 2, 64), np.float32))
        for tensor in gradient(part, part, part, part):
            tensor.asnumpy()

    run(256)  # memory that the first call takes, and later calls share
    before = peak()
    run(SEQ)
    return peak() - before
