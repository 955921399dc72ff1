"""Attention over several devices: sharded batch and heads, and one sequence split over processes.

strategy.py         how batch and heads of every tensor are split, as MindSpore's semi-automatic parallelism wants it
shard.py            the way of that from the layer to the primitives
sequence.py         which tokens of a sequence a process holds
plan.py             what a process computes with the keys of another one, as calls of the ordinary attention
pieces.py           those calls as MindSpore cells, and the merging of their results
communication.py    start of the process group, passing of tensors around the ring, with a time limit
ring.py             RingAttention: keys and values travel (PYNATIVE)
gather.py           GatherAttention: every process gathers all keys and values (GRAPH and PYNATIVE)
predict.py          predicted overlap of computing and passing on 910 clusters
"""

import importlib

_EXPORTS = {
    "GatherAttention": "flash_attention.parallel.gather",
    "PeerError": "flash_attention.parallel.communication",
    "RingAttention": "flash_attention.parallel.ring",
    "ShardPlan": "flash_attention.parallel.strategy",
    "SequenceSplit": "flash_attention.parallel.sequence",
    "finalize": "flash_attention.parallel.communication",
    "initialize": "flash_attention.parallel.communication",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name):
    if name not in _EXPORTS:
        raise AttributeError(f"module 'flash_attention.parallel' has no attribute {name!r}")
    value = getattr(importlib.import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted(set(globals()) | set(_EXPORTS))
