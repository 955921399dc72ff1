"""Context parallelism: one sequence split over processes.

sequence.py         which tokens of a sequence a process holds
communication.py    start and end of the process group, with a time limit
gather.py           GatherAttention: every process gathers all keys and values
"""

import importlib

_EXPORTS = {
    "GatherAttention": "flash_attention.context_parallel.gather",
    "PeerError": "flash_attention.context_parallel.communication",
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
