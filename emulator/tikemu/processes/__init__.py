"""Blocks of one program in several processes (``Options(processes=...)``).

The blocks of a program depend on each other only through global memory. A run with results spends nearly all its time
in them, so it may hand them to other processes. The results are the same to the last bit, whatever the blocks do:

* Processes are started as new interpreters (:mod:`.pool`), never by fork. After MindSpore has run graphs, the
  caller holds threads and locks that a fork would copy in any state.
* The processes share no memory with the caller, so a killed process leaves nothing behind. The program and the contents
  of global memory go to a process through a pipe. The results of its blocks come back through another pipe.
* Each process executes shares of consecutive blocks on a global memory of its own. This memory holds the contents at
  the start, and the bytes that its own blocks have written. The process keeps a journal of the accesses
  (:mod:`.worker`, :mod:`tikemu.machine.access_log`).
* The caller enters the writes of the shares into global memory in the order of the blocks (:mod:`.blocks`). Before, it
  looks whether a share has read bytes that an earlier share wrote. In strict mode it also looks whether two shares met
  in a race. If so, the results of that share are wrong, and the caller executes the program alone, from the first block
  on. It does so in later runs too.
* Additions to the same bytes by ``set_atomic_add`` are no such meeting, but their order decides about the last bit. So
  the run begins again. This time the processes send the added numbers, and the caller adds them in the order of the
  blocks. If they are more than ``blocks.MOST_ADDITIONS``, the caller executes the program alone.
* If a block breaks a rule, the caller executes the program too, and meets the error that comes first in one process.

Cycles of a block do not depend on its start, so the caller only distributes the blocks over the cores.
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
