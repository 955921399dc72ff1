"""The TIK operators on tikemu's timing model: shares of the Cube's peak. Estimates: nothing here runs on a device.

One core's share of 32 heads on 32 busy cores is the work of one head.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flash_attention.kernels.tik.problem import KernelProblem
from flash_attention.measuring import tik_kernels
from flash_attention.measuring.figures import Figure
from flash_attention.measuring.readings import SLOWEST
from flash_attention.measuring.tik_kernels import Measurement

#: (operator, head_dim, causal)
Shape = tuple[str, int, bool]
SHAPES: tuple[Shape, ...] = (
    *(("forward", head_dim, causal) for head_dim in (128, 64, 256) for causal in (False, True)),
    *(("backward", head_dim, causal) for head_dim in (128, 64) for causal in (False, True)),
)
SEQ = 4096
QUICK = 16  # how many times shorter --quick is
SYNC = ("auto", "conservative")


def figures(seq: int) -> list[Figure]:
    """Return every shape's share of the peak. The backward operator counts the passes around its main kernel."""
    tik_kernels.require_tikemu("--tik")
    print(
        f"shares of the Cube's peak, S={seq}, and milliseconds of 32 heads on 32 busy cores at 1 GHz: tikemu's model "
        "of the Ascend 910A (no device)"
    )
    print("in brackets the range under the evidence: what published measurements leave open (docs/performance.md)")
    print("conservative synchronisation takes any two accesses to a tensor for a conflict")
    found = []
    for sync in SYNC:
        for shape in SHAPES:
            main, *around = measure(shape, seq, sync)
            slow, *around_slow = measure(shape, seq, sync, SLOWEST)
            cycles = main.cycles + sum(other.cycles for other in around)
            note = f"{cycles / 1e6:.2f} ms"
            if around:
                note += f"; its main kernel alone {100 * main.utilisation:.1f} %"
            reached = 100 * share(main, around)
            span = 100 * share(slow, around_slow), reached
            found.append(Figure(figure_name(shape, sync), reached, "%", note, span))
    return found


def figure_name(shape: Shape, sync: str = "auto") -> str:
    """Return the name of a shape's figure."""
    return name_of(shape) + (": of the Cube's peak" if sync == "auto" else f", {sync}: of the Cube's peak")


def name_of(shape: Shape) -> str:
    """Return a shape in words."""
    operator, head_dim, causal = shape
    return f"{operator} D={head_dim} {'causal' if causal else 'full'}"


def measure(
    shape: Shape, seq: int, sync: str = "auto", constants: Mapping[str, float] | None = None
) -> list[Measurement]:
    """Measure the main kernel and the passes around it. `constants` are as of tik_kernels.simulate."""
    operator, head_dim, causal = shape
    problem = tik_kernels.problem_of(seq, head_dim, causal=causal)
    kernels = kernels_of(operator, problem)
    return [tik_kernels.measure(problem, sync, operator=name, constants=constants) for name in kernels]


def shares(shape: Shape, seq: int, readings: Iterable[Mapping[str, float]]) -> list[float]:
    """Return the main kernel's percents of the peak, under each reading of the constants."""
    operator, head_dim, causal = shape
    kernel = tik_kernels.build(tik_kernels.problem_of(seq, head_dim, causal=causal), operator)
    results = (tik_kernels.simulate(kernel, constants=constants) for constants in readings)
    return [100 * Measurement.of(kernel, result, operator).utilisation for result in results]


def kernels_of(operator: str, problem: KernelProblem) -> tuple[str, ...]:
    """Return the names in tik_kernels.OPERATORS: the kernel that does the work, and the passes around it."""
    return (operator, *(tik_kernels.passes(problem) if operator == "backward" else ()))


def share(main: Measurement, around: list[Measurement]) -> float:
    """Return a kernel's share of the Cube's peak, with the passes around it."""
    return main.utilisation * main.cycles / (main.cycles + sum(other.cycles for other in around))
