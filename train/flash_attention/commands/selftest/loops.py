"""Ask a card for cycles per instruction: the slope of a loop between two lengths.

The time of a launch drops out of the slope. Each loop asks about something in the timing model that published
measurements leave open. `python -m benchmarks.calibrate card.json` turns the answers of a card into constants of the
model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flash_attention.commands.selftest.programs import PROGRAMS, Body, Program

UNROLLED = 8  # instructions an iteration
LANES = 64
ROUND = 512  # bytes after which the groups of banks of the Unified Buffer come again
LAYER = 16 * 1024  # float32 numbers after which the same groups have other banks
ROWS = 640  # repeats of 256 bytes that all targets together have in the Unified Buffer
TILE = 64 * 256  # float16 numbers of a read of the whole chip
TILES = 6
FAR = 16 * 1024  # float16 numbers from one miss of the L2 buffer to the next

#: Records an iteration, given what it uses and its number, a TIK expression.
Statements = Callable[[Body, Any], None]


@dataclass(frozen=True)
class Loop:
    """Ask one question about time.

    Attributes:
        statements: an iteration.
        count: instructions an iteration, or bytes an iteration and core if the answer is a rate.
        separates: the readings between which the answer decides.
        constants: constants of the timing model that follow from the answer.
        turns: iterations of the two lengths.
        unit: "cycles", or "bytes a cycle".
        size: how many numbers of global memory it reads.
        cached: whether data that was read before is in the L2 buffer; if so, the model of time has that buffer.
    """

    name: str
    statements: Statements
    separates: str
    constants: str
    count: int = UNROLLED
    turns: tuple[int, int] = (2000, 12000)
    unit: str = "cycles"
    size: int = LANES
    cores: int = 1
    cached: bool = False

    def programs(self) -> tuple[Program, Program]:
        """Return the programs of both lengths."""
        few, many = (self._program(turns) for turns in self.turns)
        return few, many

    def _program(self, turns: int) -> Program:
        def statements(body: Body) -> None:
            x = body.buffer("x_ub", "float16", LANES)
            body.move(x, body.gm["x"], LANES // 16)
            with body.tik.for_range(0, turns, name="turn") as turn:
                self.statements(body, turn)
            body.move(body.gm["y"], x, LANES // 16)

        identifier = "".join(letter if letter.isalnum() else "_" for letter in self.name)
        vectors = {"x": ("float16", self.size)}, {"y": ("float16", LANES)}
        return Program(f"{identifier}_{turns}", statements, *vectors, cores=self.cores)

    def answer(self, seconds: Sequence[float], hertz: float) -> float:
        """Return the cycles per instruction, or bytes a cycle, from the times of both lengths."""
        cycles = (seconds[1] - seconds[0]) * hertz / (self.turns[1] - self.turns[0])
        return cycles / self.count if self.unit == "cycles" else self.count * self.cores / cycles


def _targets(body: Body, repeats: int) -> list:
    """Allocate as many targets of that many repeats as fit, eight at the most."""
    count = min(UNROLLED, ROWS // repeats)
    return [body.buffer(f"target_{i}", "float32", repeats * LANES) for i in range(count)]


def _dup(repeats: int, masks: tuple[int, ...] = (LANES,)) -> Statements:
    def statements(body: Body, turn: Any) -> None:
        targets = _targets(body, repeats)
        for i in range(UNROLLED):
            body.tik.vec_dup(masks[i % len(masks)], targets[i % len(targets)], 1.0, repeats, 8)

    return statements


def _axpy(targets: int) -> Statements:
    def statements(body: Body, turn: Any) -> None:
        space = body.buffer("space", "float32", 2 * LAYER)
        for i in range(UNROLLED):
            body.tik.vec_axpy(LANES, space[LAYER + i % targets * 2 * LANES], space, 0.5, 2, 8, 8)

    return statements


def _add(apart: int, in_place: bool = False) -> Statements:
    """Record additions of 64 repeats. The second source begins `apart` bytes off a round of banks."""

    def statements(body: Body, turn: Any) -> None:
        size = 64 * LANES
        space = body.buffer("space", "float32", 2 * LAYER)
        targets = [0] if in_place else [LAYER, LAYER + size]
        for i in range(UNROLLED):
            body.tik.vec_add(LANES, space[targets[i % len(targets)]], space, space[size + apart // 4], 64, 8, 8, 8)

    return statements


def _exp(dtype: str) -> Statements:
    def statements(body: Body, turn: Any) -> None:
        lanes = LANES if dtype == "float32" else 2 * LANES
        source = body.buffer("source", dtype, 255 * lanes)
        targets = [body.buffer(f"target_{i}", dtype, 255 * lanes) for i in range(2)]
        for i in range(UNROLLED):
            body.tik.vec_exp(lanes, targets[i % 2], source, 255, 8, 8)

    return statements


def _scalar_reads(body: Body, turn: Any) -> None:
    values = body.buffer("values", "float32", UNROLLED)
    total = body.tik.Scalar("float32", "total", 0.0)
    read = [body.tik.Scalar("float32", f"read_{i}", values[i]) for i in range(UNROLLED)]
    for one in read:  # keeps the compiler from leaving the reads out
        total.set_as(total + one)
    values[0].set_as(total)


def _l0c(body: Body, turn: Any) -> None:
    product = body.buffer("product", "float32", 32 * 256, "scope_cc")
    for target in [body.buffer(f"target_{i}", "float32", 32 * 256) for i in range(2)] * (UNROLLED // 2):
        body.tik.tensor_mov(target, product, "m", 1, 32, 0, 0)


def _latency(step: int) -> Statements:
    """Record a move of 32 bytes that the scalar unit waits for."""

    def statements(body: Body, turn: Any) -> None:
        target = body.buffer("target", "float16", 16)
        body.tik.data_move(target, body.gm["x"][turn * step], 0, 1, 1, 0, 0)
        body.tik.Scalar("float16", "read", target[0])

    return statements


def _stream(cores: int, turns: int) -> Statements:
    """Record six moves of 32 KiB on every core, each of new bytes."""

    def statements(body: Body, turn: Any) -> None:
        for i in range(TILES):
            target = body.buffer(f"tile_{i}", "float16", TILE)
            first = ((body.core * turns + turn) * TILES + i) * TILE
            body.move(target, body.gm["x"][first], TILE // 16)

    return statements


_HEAD = "whether an instruction costs Vector more than its repeats"
_MISSES = 1280
_BATCHES = (4, 12)


def _memory(cores: int, constants: str) -> Loop:
    size = cores * _BATCHES[1] * TILES * TILE
    return Loop(
        f"memory, {cores} cores" if cores > 1 else "memory, 1 core",
        _stream(cores, _BATCHES[1]),
        "what a core alone, half of them and all of them get of the memory",
        constants,
        count=TILES * TILE * 2,
        turns=_BATCHES,
        unit="bytes a cycle",
        size=size,
        cores=cores,
    )


def clock(long: Sequence[float], short: Sequence[float]) -> float:
    """Return the cycles a second, from the times of the first two loops. They differ by 127 cycles."""
    first, second = LOOPS[:2]
    return 127 / (first.answer(long, 1.0) - second.answer(short, 1.0))


LOOPS = (
    Loop("dup, 255 repeats", _dup(255), "the clock, with the next", "clock_mhz"),
    Loop("dup, 128 repeats", _dup(128), "the clock, with the one before", "clock_mhz"),
    Loop("dup, 32 repeats", _dup(32), f"{_HEAD}: 32 without, 46 with 14", "vector_head"),
    Loop("dup, 8 repeats", _dup(8), f"{_HEAD}: 8 without, 22 with 14", "vector_head"),
    Loop("dup, 2 repeats", _dup(2), f"{_HEAD}: 4.5 (the scalar unit) without, 16 with 14", "vector_head"),
    Loop("dup, 1 repeat", _dup(1), "what the scalar unit takes to issue: 4.5, 9 with issue_cycles 8", "issue_cycles"),
    Loop("dup, 32 repeats, two masks", _dup(32, (LANES, 32)), "32 as above, 47 if Vector drains", "mask_drain"),
    Loop("axpy, eight targets", _axpy(8), "4.5, 18 with a head of 14", "vector_head"),
    Loop("axpy, one target", _axpy(1), "how long a result takes: 19, 24 with vector_latency 20", "vector_latency"),
    Loop("add, sources apart", _add(ROUND // 2), "64, 128 if two sources always cost two cycles", "vector_two_sources"),
    Loop("add, sources equal", _add(0), "128: two reads of one group of banks", "none: the bank rules"),
    Loop("add in place", _add(0, in_place=True), "207, 143 if the reads do not add up", "vector_reads_add"),
    Loop("scalar read of UB", _scalar_reads, "what a read occupies the scalar unit", "ub_scalar_read"),
    Loop("exp float16", _exp("float16"), "four cycles a repeat: 1020", "vector_transcendental_f16", turns=(200, 1200)),
    Loop("exp float32", _exp("float32"), "two cycles a repeat: 510", "vector_transcendental_f32", turns=(200, 1200)),
    Loop("L0C to UB", _l0c, "256 bytes a cycle: 128", "l0c_ub_bandwidth"),
    Loop(
        "GM latency, miss",
        _latency(FAR),
        "latency of the memory",
        "gm_read_latency",
        count=1,
        turns=(256, _MISSES),
        size=_MISSES * FAR,
        cached=True,
    ),
    Loop(
        "GM latency, hit",
        _latency(0),
        "latency of the L2 buffer",
        "l2_read_latency",
        count=1,
        turns=(256, _MISSES),
        cached=True,
    ),
    _memory(1, "gm_read_bandwidth"),
    _memory(15, "hbm_bandwidth"),
    _memory(30, "hbm_bandwidth"),
)
#: Every program of the self-test by name, with both lengths of each loop.
ALL_PROGRAMS = {**PROGRAMS, **{program.name: program for loop in LOOPS for program in loop.programs()}}
