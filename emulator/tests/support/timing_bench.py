"""A clock with operations on byte ranges."""

from tikemu.isa.region import Memory
from tikemu.soc import ASCEND_910A
from tikemu.timing.clock import CoreClock
from tikemu.timing.simulator import PIPE_INDEX, TimedOp

ISSUE, FLAG, HANDSHAKE = 4, 1, 10
SYNC = FLAG + HANDSHAKE  # from a result on one pipe to the start on another
FLAGS = 2 * FLAG  # issue of set_flag and wait_flag by the scalar unit


class Bench:
    """Show operations on tensors in the Unified Buffer of one core. ``constants`` replace the model's."""

    def __init__(self, **constants):
        self.clock = CoreClock(ASCEND_910A.with_constants(constants), 1000)
        self.clock.simulator.trace = []
        self.ub = Memory("UB", "UB", 65536, False)

    def bytes(self, start, end):
        return self.clock.footprints.span(self.ub, start, end)

    def op(self, pipe, cycles=10, latency=20, reads=(), writes=(), **fields):
        """Execute an operation; returns its start and end. Operands are (start, end) in bytes."""
        op = TimedOp(
            "op",
            PIPE_INDEX[pipe],
            cycles,
            latency,
            tuple(self.bytes(*span) for span in reads),
            tuple(self.bytes(*span) for span in writes),
        )
        for name, value in fields.items():
            setattr(op, name, value)
        self.clock.step((op,))
        return self.clock.simulator.trace[-1][1:]


A, B, C = (0, 256), (256, 512), (512, 768)
