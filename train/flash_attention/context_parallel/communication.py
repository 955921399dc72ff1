"""Start and end the process group, with a limit on the time of communication."""

from __future__ import annotations

import os

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops
from mindspore.communication import get_group_size, get_rank, init

from flash_attention.call.checks import check_int

CPU_LIMITS = ("MS_CPU_COMM_OP_TIMEOUT",)
ASCEND_LIMITS = ("HCCL_EXEC_TIMEOUT", "HCCL_CONNECT_TIMEOUT")
DEFAULT_TIMEOUT = 300


class PeerError(RuntimeError):
    """Another process did not take part in time."""


def initialize(timeout: int = DEFAULT_TIMEOUT) -> tuple[int, int]:
    """Join the processes that `msrun` started; gives (rank, number of processes). Calling it again is harmless.

    Args:
        timeout: seconds after which an operation that waits for another process fails. It sets the environment
            variables of HCCL (HCCL_EXEC_TIMEOUT, HCCL_CONNECT_TIMEOUT) and MCCL (MS_CPU_COMM_OP_TIMEOUT) for this
            process. A variable that is set already stays.

    Raises:
        RuntimeError: not started by `msrun`, or the processes do not find each other.
    """
    check_int("timeout", timeout, 1)
    for name in _limits():
        os.environ.setdefault(name, str(timeout))
    init("mccl" if _on_cpu() else "hccl")
    return get_rank(), get_group_size()


def finalize() -> None:
    """Wait for all processes. Call it at the end of the program: MCCL fails the sends to a process that has ended.

    Raises:
        PeerError: another process did not come in time.
        RuntimeError: the process group has not been started.
    """
    rank, world = processes()
    try:
        ops.AllReduce()(Tensor(np.zeros(1, np.float32))).asnumpy()
    except RuntimeError as error:
        limits = ", ".join(f"{name}={os.environ.get(name, 'default')}" for name in _limits())
        raise PeerError(
            f"process {rank} of {world} did not see the end of all processes in time ({limits}): another process has "
            f"ended, hangs or is slower than that. MindSpore says: {str(error).strip().splitlines()[0]}"
        ) from error


def processes() -> tuple[int, int]:
    """Return this process's rank and the number of processes."""
    try:
        return get_rank(), get_group_size()
    except (RuntimeError, ValueError) as error:
        raise RuntimeError(
            "the process group has not been started: call flash_attention.context_parallel.initialize() in a "
            "program that msrun starts"
        ) from error


def _on_cpu() -> bool:
    return ms.get_context("device_target") == "CPU"


def _limits() -> tuple[str, ...]:
    """Return the environment variables that limit the time of communication, in seconds."""
    return CPU_LIMITS if _on_cpu() else ASCEND_LIMITS
