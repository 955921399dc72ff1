"""Explicit synchronisation: ``pipe_barrier``, ``set_flag``, ``wait_flag``, ``block_barrier`` (timing.md 5, D4b, D31c).

They change no data. The timing engine charges them, and the race check of strict mode takes them as ordering.
"""

from __future__ import annotations

from typing import Any

from ..soc import PIPES
from .call import Call
from .micro_op import MicroOp
from .params import Integer, Param, Rest, describe
from .registry import instruction


class Pipe(Param):
    """A pipe by name, "PIPE_V" or "V"; resolves to the short name."""

    def __init__(self, name: str, allowed: tuple[str, ...]) -> None:
        super().__init__(name)
        self.allowed = allowed

    def check(self, value: Any, call: Call) -> None:
        if not isinstance(value, str) or value.removeprefix("PIPE_") not in self.allowed:
            names = ", ".join(f"PIPE_{pipe}" for pipe in self.allowed)
            call.fail(f"{self.name} must be one of {names}, got {describe(value)}")

    def resolve(self, value: Any, call: Call) -> str:
        return value.removeprefix("PIPE_")


_EVENTS = 4  # ids 0 to 3 per pair of pipes on the training series (D31a)
_FLAG_PARAMS = (Pipe("src_pipe", PIPES), Pipe("dst_pipe", PIPES), Integer("event_id", 0, _EVENTS - 1))


@instruction("pipe_barrier", params=(Pipe("pipe", ("V", "M", "MTE1", "MTE2", "MTE3", "ALL")),), pipe="S")
def pipe_barrier(call: Call, a: Any) -> MicroOp:
    """Wait until a pipe, or every pipe, has drained."""
    return call.operation(call.soc.timing.flag_cycles, barrier=a.pipe, constants=("flag_cycles",))


def _check_pair(call: Call) -> None:
    if call.args["src_pipe"].removeprefix("PIPE_") == call.args["dst_pipe"].removeprefix("PIPE_"):
        call.fail("src_pipe and dst_pipe must differ; pipe_barrier orders one pipe")


def _flag(call: Call, kind: str, a: Any) -> MicroOp:
    flag, constants = (kind, a.src_pipe, a.dst_pipe, a.event_id), ("flag_cycles", "flag_handshake")
    return call.operation(call.soc.timing.flag_cycles, flag=flag, constants=constants)


@instruction("set_flag", params=_FLAG_PARAMS, checker=_check_pair, pipe="S")
def set_flag(call: Call, a: Any) -> MicroOp:
    """Set an event when everything before it on src_pipe is complete."""
    return _flag(call, "set", a)


@instruction("wait_flag", params=_FLAG_PARAMS, checker=_check_pair, pipe="S")
def wait_flag(call: Call, a: Any) -> MicroOp:
    """Hold dst_pipe until the event is set."""
    return _flag(call, "wait", a)


@instruction("block_barrier", params=(Rest("args"), Rest("argv", keywords=True)), pipe="S")
def block_barrier(call: Call, a: Any) -> MicroOp:
    """Suspend the block until all blocks have arrived. Arguments (a GM workspace, in use) have no effect."""
    timing = call.soc.timing
    cycles = timing.gm_write_latency + timing.gm_read_latency  # a flag goes through global memory
    return call.operation(cycles, barrier="BLOCKS", constants=("gm_write_latency", "gm_read_latency"))
