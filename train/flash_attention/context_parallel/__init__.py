"""Context parallelism: one sequence split over processes.

sequence.py         which tokens of a sequence a process holds
plan.py             the work of a process on the keys of another process, as calls of the ordinary attention
pieces.py           those calls as MindSpore cells, and the merging of their results
communication.py    start of the process group, passing of tensors around the ring, with a time limit
ring.py             RingAttention: keys and values travel (PYNATIVE)
gather.py           GatherAttention: every process gathers all keys and values (GRAPH and PYNATIVE)
"""

import importlib

_EXPORTS = {
    "GatherAttention": "flash_attention.context_parallel.gather",
    "PeerError": "flash_attention.context_parallel.communication",
    "RingAttention": "flash_attention.context_parallel.ring",
    "SequenceSplit": "flash_attention.context_parallel.sequence",
    "finalize": "flash_attention.context_parallel.communication",
    "initialize": "flash_attention.context_parallel.communication",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name):
    if name not in _EXPORTS:
        raise AttributeError(f"module 'flash_attention.context_parallel' has no attribute {name!r}")
    value = getattr(importlib.import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted(set(globals()) | set(_EXPORTS))
