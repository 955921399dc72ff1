"""Channels from the host: batches of sunk datasets, until a GetNext takes them."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..operator_call import OperatorCall
from .aicpu import DTYPES
from .errors import QueueEmpty, QueueFull


@dataclass
class _Channel:
    """Hold batches in wait, their number, and whether the host has sent all."""

    batches: deque[list[np.ndarray]] = field(default_factory=deque)
    count: int = 0
    ended: bool = False


_CHANNELS: dict[str, _Channel] = {}


def send(message: bytes) -> None:
    """Keep a batch: a line of JSON, then the contents of its tensors.

    Raises:
        QueueFull: the channel has as many batches as it can hold.
    """
    line, _, contents = message.partition(b"\n")
    described = json.loads(line)
    channel = _CHANNELS.setdefault(described["channel"], _Channel())
    if len(channel.batches) >= described["capacity"]:
        raise QueueFull
    batch, place = [], 0
    for tensor in described["tensors"]:
        dtype = np.dtype(DTYPES[tensor["dtype"]])
        numbers = np.frombuffer(contents, dtype, math.prod(tensor["shape"]), place)
        batch.append(numbers.reshape(tensor["shape"]))
        place += tensor["size"]
    channel.ended = not batch  # a message without tensors says so
    if batch:
        channel.batches.append(batch)
        channel.count += 1


def waiting(channel: str) -> int:
    """Return how many batches nobody has taken yet."""
    return len(_CHANNELS[channel].batches) if channel in _CHANNELS else 0


def _next(kernel: OperatorCall) -> list[np.ndarray]:
    name = kernel.attributes["channel_name"]
    channel = _CHANNELS.get(name, _Channel())
    if not channel.batches:
        ends = ", and said that there are no more" if channel.ended else ""
        raise QueueEmpty(f"the host sent {channel.count} batches to channel {name}{ends}")
    return channel.batches.popleft()


AICPU: dict[str, Callable[..., Any]] = {"GetNext": _next, "InitData": lambda _kernel: ()}
