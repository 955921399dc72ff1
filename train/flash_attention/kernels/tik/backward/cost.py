"""What plans of the backward operator cost, as far as a choice between them asks for it: where cores lack work.

Coarse: the Cube, Vector, loads of operands or the memory are the limit of a step, or the way from pipe to pipe.
"""

from __future__ import annotations

import math

from flash_attention.kernels.tik.backward.plan import BackwardPlan
from flash_attention.kernels.tik.hardware import BYTES
from flash_attention.kernels.tik.layout import accumulator_shape
from flash_attention.kernels.tik.problem import KernelProblem

ITEM_STEPS = 3  # steps that an item costs beside its own
LEAST_STEP = 500  # cycles: a step, however small, passes through all pipes
START = 8000  # cycles of the first item's way on chip and the last one's way out
FINISH_START = 1200  # cycles of the last pass beside what its traffic takes
VECTOR_PASSES = 7  # over 64 numbers each, of a score
L0B_BANDWIDTH = 256  # bytes a cycle from L1, twice as many to L0A
CORE_BANDWIDTH, BANDWIDTH = 78, 1160  # bytes a cycle that one core, and all of them, get from global memory


def bandwidth(cores: int) -> float:
    """Bytes a cycle of each of so many cores."""
    return min(CORE_BANDWIDTH, BANDWIDTH / cores)


def step(plan: BackwardPlan, cores: int) -> float:
    """Cycles of a step on one of so many busy cores."""
    both = plan.head_dim + plan.value_dim
    cube = plan.area * (2 * plan.head_dim + both * 1.5) / 4096
    vector = (plan.area * VECTOR_PASSES + plan.rows * plan.head_dim) / 64
    right, left = plan.keys * (both + plan.head_dim) + plan.rows * both, plan.rows * both + 3 * plan.area
    loads = BYTES["float16"] * (right + left / 2) / L0B_BANDWIDTH
    moved = plan.rows * (both * BYTES["float16"] + plan.head_dim * BYTES["float32"])
    return max(cube, vector, loads, moved / bandwidth(cores), LEAST_STEP)


def finish(problem: KernelProblem, plan: BackwardPlan, slots: int) -> float:
    """Cycles of the last pass over the accumulators of so many slots."""
    _, heads, tiles, *tile = accumulator_shape(problem, plan, slots)
    cores = min(problem.cores, heads * tiles)
    moved = math.prod(tile) * (slots * BYTES["float32"] + BYTES["float16"])
    return FINISH_START + -(-heads * tiles // cores) * moved / bandwidth(cores)


def main(plan: BackwardPlan, cores: int, steps: int, items: int) -> float:
    """Cycles of the main kernel on so many cores, of which the busiest has so many steps and items."""
    return START + (steps + ITEM_STEPS * items) * step(plan, cores)
