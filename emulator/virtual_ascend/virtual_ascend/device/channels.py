"""Channels from the host: batches of sunk datasets, until a GetNext takes them."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from ..kernel import Kernel
from .aicpu import DTYPES
from .errors import QueueEmpty, QueueFull

_QUEUES: dict[str, deque[list[np.ndarray]]] = {}


def send(message: bytes) -> None:
    """Keep a batch: a line of JSON, then the contents of its tensors.

    Raises:
        QueueFull: the channel has as many batches as it can hold.
    """
    line, _, contents = message.partition(b"\n")
    described = json.loads(line)
    queue = _QUEUES.setdefault(described["channel"], deque())
    if len(queue) >= described["capacity"]:
        raise QueueFull
    batch, place = [], 0
    for tensor in described["tensors"]:
        dtype = np.dtype(DTYPES[tensor["dtype"]])
        numbers = np.frombuffer(contents, dtype, math.prod(tensor["shape"]), place)
        batch.append(numbers.reshape(tensor["shape"]))
        place += tensor["size"]
    if batch:  # a message without tensors says that the data have ended
        queue.append(batch)


def waiting(channel: str) -> int:
    """Batches that nobody has taken yet."""
    return len(_QUEUES.get(channel, ()))


def _begin(_kernel: Kernel) -> tuple[()]:
    return ()


def _next(kernel: Kernel) -> list[np.ndarray]:
    queue = _QUEUES.get(kernel.attributes["channel_name"])
    if not queue:
        raise QueueEmpty
    return queue.popleft()


AICPU: dict[str, Callable[..., Any]] = {"GetNext": _next, "InitData": _begin}
