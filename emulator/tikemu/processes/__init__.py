"""Blocks of one program in several processes (``Options(processes=...)``).

The blocks of a program are independent but for global memory, and nearly all time of a run with results is spent in
them. So a run may hand them to other processes. What it gives is the same to the last bit, whatever the blocks do:

* Processes are started as new interpreters (:mod:`.pool`), never by fork: a process in which MindSpore has run graphs
  holds threads and locks that a fork would copy in any state. They share no memory with the caller either, so nothing
  is left behind when one of them is killed: the program and the contents of global memory go to them through a pipe,
  and what the blocks leave comes back through one.
* Each process executes shares of consecutive blocks on a global memory of its own, which holds the contents at the
  start and what its own blocks have written, and keeps a journal of what they access (:mod:`.worker`,
  :mod:`tikemu.machine.access_log`).
* The caller enters what the shares wrote into global memory in the order of the blocks (:mod:`.blocks`). Before, it
  looks whether a share has read bytes that an earlier one wrote, or in strict mode whether two of them met in a way
  that is a race. Then what that share did is worth nothing, and the program is executed by the caller alone, from the
  first block on, and so are its later runs.
* Additions to the same bytes by ``set_atomic_add`` are no such meeting. As their order decides about the last bit,
  the run begins again, and this time the processes send what was added, and the caller adds it in the order of the
  blocks. Should that be more than ``blocks.MOST_ADDITIONS``, the caller executes the program alone.
* When a block breaks a rule, the caller executes the program too, and meets the error that comes first in one process.

Cycles of a block do not depend on when it begins, so the caller only distributes the blocks over the cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..program import ir
from ..result import Result


def run(program: ir.Program, inputs: Mapping[str, Any], **how: Any) -> Result:
    """Execute a program as :func:`tikemu.machine.execute.run` does, in several processes if its options say so."""
    from ..machine import execute
    from .blocks import run_in_processes

    return execute.run(program, inputs, elsewhere=run_in_processes, **how)
