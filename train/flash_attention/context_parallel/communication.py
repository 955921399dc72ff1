"""Start the process group, and pass tensors around a ring of processes in limited time.

Tensors go point to point, by `mindspore.mint.distributed`, in PYNATIVE only. It uses HCCL on Ascend, MCCL on a CPU.
"""

from __future__ import annotations

import contextlib
import os

import mindspore as ms
import numpy as np
from mindspore import Tensor
from mindspore.communication import get_group_size, get_rank, init

from flash_attention.bridge.tensors import wait_for_operators
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
    on_cpu = _on_cpu()
    for name in _limits(on_cpu):
        os.environ.setdefault(name, str(timeout))
    init("mccl" if on_cpu else "hccl")
    return get_rank(), get_group_size()


def finalize() -> None:
    """Wait for all processes. Call it at the end of the program: MCCL fails the sends to a process that has ended."""
    ring = Ring()
    with ring.watching("the end of all processes"):
        ring.distributed.barrier(group=ring.group)
        ring.settle()


class Processes:
    """This process's place among all.

    Raises:
        RuntimeError: the process group has not been started.
    """

    def __init__(self):
        self.on_cpu = _on_cpu()
        try:
            self.rank, self.world = get_rank(), get_group_size()
        except (RuntimeError, ValueError) as error:
            raise RuntimeError(
                "the process group has not been started: call flash_attention.context_parallel.initialize() in a "
                "program that msrun starts"
            ) from error


class Ring(Processes):
    """The processes on the ring, and the tensors that this process passes on.

    Raises:
        RuntimeError: the process group has not been started, or this MindSpore has no point-to-point operations.
    """

    def __init__(self):
        super().__init__()
        self.group = "mccl_world_group" if self.on_cpu else "hccl_world_group"
        # mint.distributed looks ranks up in a cache that only its own start fills, which refuses MCCL (2.10).
        try:
            from mindspore.mint.distributed import distributed
        except ImportError as error:
            raise RuntimeError(
                f"MindSpore {ms.__version__} has no mindspore.mint.distributed, which passing tensors around a ring of "
                "processes needs: take MindSpore 2.7 or later, or GatherAttention in GRAPH mode"
            ) from error
        distributed._GROUP_RANK_CACHE["hccl_world_group"] = self.rank
        distributed._GROUP_RANK_CACHE[self.group] = self.rank
        self.distributed = distributed

    def shift(self, tensor: Tensor, jump: int) -> Passing:
        """Start to send `tensor` to the process `jump` places on. The process as far back sends its tensor here.

        Compute, and then ask the result for `received()`.
        """
        return Passing(self, tensor, (self.rank + jump) % self.world, (self.rank - jump) % self.world)

    def gather_integers(self, values: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Return the values of every process, by rank; below 2**24."""
        mine = Tensor(np.array(values, np.float32))
        theirs = [Tensor(np.zeros(len(values), np.float32)) for _ in range(self.world)]
        with self.watching("the shapes of all processes"):
            self.distributed.all_gather(theirs, mine, group=self.group)
            self.settle()
        return [tuple(int(value) for value in one.asnumpy()) for one in theirs]

    def settle(self) -> None:
        """Wait on a CPU until all issued operations have run. Their errors come out here."""
        if self.on_cpu:
            wait_for_operators()

    @contextlib.contextmanager
    def watching(self, what: str):
        """Turn MindSpore's error about a silent process into a PeerError. It says who waited for what, and the time
        limits.
        """
        try:
            yield
        except RuntimeError as error:
            limits = ", ".join(f"{name}={os.environ.get(name, 'default')}" for name in _limits(self.on_cpu))
            raise PeerError(
                f"process {self.rank} of {self.world} did not get {what} in time ({limits}): the other process has "
                "ended, hangs, called attention with other arguments, or is slower than that. MindSpore says: "
                f"{str(error).strip().splitlines()[0]}"
            ) from error


def _on_cpu() -> bool:
    return ms.get_context("device_target") == "CPU"


def _limits(on_cpu: bool) -> tuple[str, ...]:
    """Return the environment variables that limit the time of communication, in seconds."""
    return CPU_LIMITS if on_cpu else ASCEND_LIMITS


class Passing:
    """A tensor on its way; made by `Ring.shift`."""

    def __init__(self, ring: Ring, tensor: Tensor, target: int, source: int):
        self.ring, self.source = ring, source
        self.sent = tensor  # alive until it has left
        self.buffer = Tensor(np.empty(tensor.shape, np.float32)).astype(tensor.dtype) if ring.on_cpu else None
        if self.buffer is None:
            self.buffer = ms.mint.empty(tensor.shape, dtype=tensor.dtype)
        with ring.watching(f"its tensor to process {target}"):
            self.sending = ring.distributed.isend(tensor, target, group=ring.group)
            ring.settle()
        # On a CPU the receiving operation would hold up work that is issued after it. It can wait, because MCCL takes
        # messages in by itself, and the operation only picks them up. On Ascend it runs on a stream of its own.
        self.receiving = None if ring.on_cpu else self._receive()

    def _receive(self):
        return self.ring.distributed.irecv(self.buffer, self.source, group=self.ring.group)

    def received(self) -> Tensor:
        """Return the tensor that has come in.

        Raises:
            PeerError: it has not, within the time limit.
        """
        with self.ring.watching(f"the tensor of process {self.source}"):
            receiving = self.receiving or self._receive()
            for handle in (self.sending, receiving):
                if handle is not None:
                    handle.wait()
            self.ring.settle()
        self.sent = None
        return self.buffer
