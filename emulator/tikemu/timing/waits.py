"""Attribute the time of a free pipe before its next instruction, by reason.

The time until S hands an instruction out is a wait for S (issue). The time after it, until the results of the own pipe
are there, is a wait of the pipe for itself (operand). The rest is a wait for the pipe that sets the last flag (event).
S waits while the queue of a pipe is full, for a flag, and at a barrier.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..soc import PIPES

_COUNT = len(PIPES)
#: Offsets in the row of a pipe. A smaller offset is the index of a pipe: the waits for a flag of that pipe.
OPERAND, ISSUE = _COUNT, _COUNT + 1
ROW = _COUNT + 2
#: Offsets of the waits of S for the queue of pipe 0, and at a barrier for pipe 0.
QUEUE_FULL = _COUNT * ROW
BARRIER = QUEUE_FULL + _COUNT
#: Numbers to keep.
SIZE = BARRIER + _COUNT

Waits = dict[tuple[str, str, str], float]


def named(waited: Sequence[float]) -> Waits:
    """Return the cycles by (waiting pipe, pipe waited for, reason), each pipe's longest wait first."""
    found: Waits = {}
    for pipe, name in enumerate(PIPES):
        row = pipe * ROW
        found.update(((name, source, "event"), waited[row + index]) for index, source in enumerate(PIPES))
        found[name, name, "operand"] = waited[row + OPERAND]
        found[name, "S", "issue"] = waited[row + ISSUE]
    for index, name in enumerate(PIPES):
        found["S", name, "queue full"] = waited[QUEUE_FULL + index]
        found["S", name, "barrier"] = waited[BARRIER + index]
    order = sorted(found, key=lambda wait: (PIPES.index(wait[0]), -found[wait]))
    return {wait: found[wait] for wait in order if found[wait]}
