"""Measure a kernel's needs: speed on the modelled core, memories, code, events, traffic.

Figures come from the timing model of tikemu. They are estimates; nothing here ran on a device.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from flash_attention.call import AttentionRules, Call
from flash_attention.call.block_mask import BlockMask
from flash_attention.call.visits import visits
from flash_attention.kernels.tik import operators
from flash_attention.kernels.tik.backward import schedule as scheduler
from flash_attention.kernels.tik.hardware import CUBE_FLOPS, EVENTS, INSTRUCTION_CACHE
from flash_attention.kernels.tik.problem import CAPACITY, KernelProblem

TILE = 128 * 128
# The stage of a kernel, and its matrix products over head_dim and over value_dim. "backward" is the main kernel; "rows"
# and "finish" are the passes around it.
_RULES = {field.name for field in fields(AttentionRules)}
OPERATORS = {
    "forward": ("forward", 1, 1),
    "backward": ("grad", 3, 2),
    "rows": ("grad_rows", 0, 0),
    "finish": ("grad_finish", 0, 0),
}
# Features of kernels beside plain and causal attention: keywords of `problem_of`.
FEATURES: dict[str, dict] = {
    "mask": {"mask": "per_score"},
    "key mask": {"mask": "per_key"},
    "bias": {"bias": "per_score"},
    "key bias": {"bias": "per_key"},
    "alibi": {"alibi": True},
    "causal alibi": {"causal": True, "alibi": True},
    "window": {"window_left": 300, "window_right": 40},
    "4 heads on 1": {"heads": 4, "kv_heads": 1},
    "dropout": {"dropout_rate": 0.1},
    "soft cap": {"softcap": 50.0},
    "soft cap, key mask": {"softcap": 50.0, "mask": "per_key"},
    "sinks": {"sinks": True},
    "192 of value": {"value_dim": 192},
    "causal alibi dropout": {"causal": True, "alibi": True, "dropout_rate": 0.1},
    "causal mask bias dropout": {"causal": True, "mask": "per_score", "bias": "per_score", "dropout_rate": 0.1},
    "window key mask key bias dropout": {"window_left": 200, "mask": "per_key", "bias": "per_key", "dropout_rate": 0.1},
}


def require_tikemu(option: str) -> None:
    """Raise RuntimeError if tikemu, which the option of a command needs, is not installed."""
    if importlib.util.find_spec("tikemu") is None:
        raise RuntimeError(f"{option} needs tikemu: pip install ./emulator in the repository, or its wheel")


def excess(peak_bytes: Mapping[str, int], code_bytes: int, events: int, most_events: int = EVENTS) -> list[str]:
    """Return the names of the core's limits a kernel exceeds. `events` are the most in flight between two pipes."""
    limits = [(name, peak_bytes.get(name, 0), size) for name, size in CAPACITY.items()]
    limits += [("code", code_bytes, INSTRUCTION_CACHE), ("events", events, most_events)]
    return [name for name, value, most in limits if value > most]


def passes(problem: KernelProblem) -> tuple[str, ...]:
    """Return OPERATORS' names of the passes around the backward operator's main kernel."""
    writes_d_query = scheduler.choose(problem).split.writes_d_query
    return ("rows",) if writes_d_query else ("rows", "finish")


def problem_of(
    seq: int, head_dim: int, *, heads: int = 1, mask: str = "none", bias: str = "none", **given
) -> KernelProblem:
    """Return one core's work of a square problem.

    `given` are fields of AttentionRules and of Call.
    """
    shapes = {"none": None, "per_key": (1, 1, 1, seq), "per_score": (1, 1, seq, seq)}
    rules = AttentionRules(**{name: given.pop(name) for name in _RULES & set(given)})
    own: dict[str, Any] = {"bias_grad": False, "training": True, "keep_bits": rules.dropout_rate > 0, **given}
    for name, kind in (("mask", mask), ("bias", bias)):
        own.update({f"{name}_shape": shapes[kind], f"{name}_dtype": shapes[kind] and "float16"})
    call = Call(1, heads, seq, seq, head_dim, rules=rules, **own)
    return KernelProblem(call, (0.5,) * heads if rules.alibi else (), cores=1)


@dataclass(frozen=True)
class Measurement:
    """One kernel on one core that shares the memory with 31 others.

    Attributes:
        cycles: of the whole kernel.
        utilisation: useful matrix operations over the Cube's peak; scores that a causal mask hides do not count.
        cycles_per_tile: per 128 x 128 scores, hidden halves of diagonal tiles included.
        peak_bytes: per on-chip memory.
        code_bytes: estimate.
        events: most events in flight, by pair of pipes ("MTE2->MTE1").
        pipes: share of the time each pipe is busy.
        gm_bytes_per_tile: global memory traffic per 128 x 128 scores.
        build_seconds: Python time to record and build the kernel.
    """

    problem: KernelProblem
    operator: str
    sync: str
    cycles: float
    utilisation: float
    cycles_per_tile: float
    peak_bytes: dict
    code_bytes: int
    events: dict
    pipes: dict
    instructions: int
    gm_bytes_per_tile: float
    build_seconds: float = 0.0

    @property
    def flops_per_byte(self) -> float:
        """Return the useful matrix operations per byte of global memory traffic."""
        return self.utilisation * CUBE_FLOPS * self.cycles_per_tile / self.gm_bytes_per_tile

    @staticmethod
    def of(
        kernel,
        result,
        operator: str,
        sync: str = "auto",
        build_seconds: float = 0.0,
        block_mask: BlockMask | None = None,
    ) -> Measurement:
        """Return the measurement of a kernel's simulation."""
        problem, (_, products, value_products) = kernel.problem, OPERATORS[operator]
        pairs = problem.call.band.pairs() * problem.call.batch * problem.call.heads
        seen = None if block_mask is None else visits(problem.call, block_mask)
        if seen is not None:
            pairs = seen.pairs
        flops = 2 * (products * problem.call.head_dim + value_products * problem.call.value_dim) * pairs
        tiles = kernel.units[1] * kernel.plan.rows * kernel.plan.keys / TILE
        if seen is not None:
            tiles = seen.visited * seen.tile**2 / TILE
        if not products:  # a pass over rows: as if it were spread over the tiles of the main kernels
            tiles = pairs / TILE
        return Measurement(
            problem,
            operator,
            sync,
            result.cycles,
            flops / CUBE_FLOPS / result.cycles,
            result.cycles / tiles,
            dict(result.peak_bytes),
            result.code_bytes,
            {f"{a}->{b}": count for (a, b), count in result.events_in_flight.items()},
            {name: use.share for name, use in result.pipes.items()},
            result.instruction_count,
            (result.gm_read_bytes + result.gm_written_bytes) / tiles,
            build_seconds,
        )


def build(problem: KernelProblem, operator: str = "forward"):
    """Return the recorded kernel of a problem. Give it cores=1 and the work of one core: the others would repeat it.

    Args:
        operator: one of OPERATORS.
    """
    return record(OPERATORS[operator][0], problem)


def record(stage: str, problem: KernelProblem):
    """Return the recorded kernel of a stage, of operators.build."""
    import tikemu

    tikemu.install(soc="Ascend910A")
    from tbe import tik

    return operators.build(stage, problem, tik, stage, False)


def simulate(
    kernel,
    sync: str = "auto",
    active_cores: int = 32,
    trace: str | None = None,
    constants: Mapping[str, float] | None = None,
    given: Mapping[str, np.ndarray] | None = None,
    numerics: bool = False,
):
    """Return the tikemu.Result of a kernel that is timed, usually without computing anything.

    Args:
        sync: "auto", "conservative" or "optimistic", see tikemu.Options.
        active_cores: cores that share the bandwidth of the memory.
        trace: file for a Chrome trace of the run.
        constants: other values for constants of the timing model, see tikemu.Options.
        given: the first values of inputs that are not all zeros. Inputs that the kernel lacks are left out.
        numerics: compute as well. Needed if the time depends on the data.
    """
    import tikemu

    arrays = {t.name: np.zeros(t.shape, t.dtype) for t in kernel.inputs if t.constant is None}
    for name, begins in (given or {}).items():
        if name in arrays:
            arrays[name].reshape(-1)[: begins.size] = begins.reshape(-1)
    options = tikemu.Options(
        sync=sync, active_cores=active_cores, trace=trace is not None, progress=False, constants=constants or {}
    )
    result = tikemu.run(kernel.tik, kernel.feed(**arrays), numerics=numerics, options=options)
    if trace is not None:
        result.save_trace(trace)
    return result


def measured(
    problem: KernelProblem, operator: str, block_mask: BlockMask | None = None, trace: str | None = None
) -> tuple:
    """Return Result and Measurement of a kernel, maybe under a known block mask."""
    kernel, stage, given = build(problem, operator), OPERATORS[operator][0], {}
    if block_mask is not None and any(tensor.name == "work" for tensor in kernel.inputs):
        given["work"] = operators.known_table(problem, stage, block_mask.tiles)
    result = simulate(kernel, trace=trace, given=given)
    return result, Measurement.of(kernel, result, operator, block_mask=block_mask)


def measure(problem: KernelProblem, sync: str = "auto", operator: str = "forward", **options) -> Measurement:
    """Build and time a kernel; options as of :func:`simulate`."""
    start = time.perf_counter()
    kernel = build(problem, operator)
    seconds = time.perf_counter() - start
    return Measurement.of(kernel, simulate(kernel, sync, **options), operator, sync, seconds)
