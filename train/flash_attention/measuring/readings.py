"""Readings of the evidence on a first-generation 910: values for the constants that the evidence leaves open.

Published measurements decide some constants of the timing model (docs/emulator.md), but not these. The first reading is
the model as it is, the fastest. `SLOWEST` takes every open question against the kernels.
"""

from __future__ import annotations

#: Readings by name: other values for constants of tikemu's timing model.
READINGS: dict[str, dict[str, float]] = {
    "model": {},
    "head 5": {"vector_head": 5},
    "head 11": {"vector_head": 11},
    "head 14": {"vector_head": 14},
    "mask drain": {"mask_drain": 1, "vector_latency": 10},
    "two sources 2": {"vector_two_sources": 2},
    "issue 8": {"issue_cycles": 8},
    "slowest": {"vector_head": 14, "mask_drain": 1, "vector_two_sources": 2, "issue_cycles": 8},
}
SLOWEST = READINGS["slowest"]
#: Beyond what is likely: the compiler writes the mask before every instruction, and the scalar unit waits for it.
STALLS = {"mask_every": 1, "mask_drain": 2, "vector_latency": 10}
