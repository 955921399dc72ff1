"""Last pass of the backward operator: it adds up the accumulators of the query gradients and rounds to float16.

The order of the sum is fixed.
"""

from __future__ import annotations

from flash_attention.kernels.tik.backward import row_block
from flash_attention.kernels.tik.backward.row_block import Place
from flash_attention.kernels.tik.backward.schedule import choose
from flash_attention.kernels.tik.backward.tiling import FINISH_COPIES, BackwardPlan, finish_buffers
from flash_attention.kernels.tik.common import softcap
from flash_attention.kernels.tik.common.tails import by_rows, if_rows
from flash_attention.kernels.tik.hardware import HALF_ROUND
from flash_attention.kernels.tik.layout import accumulator_shape
from flash_attention.kernels.tik.problem import KernelProblem
from flash_attention.kernels.tik.recorder import Core
from flash_attention.kernels.tik.tik_types import Number


class Postprocess:
    """The last pass over the accumulators of a problem's main kernel, tile after tile."""

    flags = 0

    def __init__(self, problem: KernelProblem):
        choice = choose(problem)
        self.plan, self.slots = choice.plan, choice.split.slots
        _, heads, self.tiles, *_ = accumulator_shape(problem, self.plan, self.slots)
        self.cores = min(problem.cores, heads * self.tiles)
        self.units = -(-heads * self.tiles // self.cores), heads * self.tiles  # neighbouring tiles belong to one core
        self.buffers = finish_buffers(problem, self.plan, self.slots)

    def emit(self, core: Core[BackwardPlan], index: Number) -> None:
        """Emit the statements of one core."""
        (share, total), cores = self.units, self.cores
        tik = core.tik
        core.clear_padding("d_query", core.on.d_query[0], index, cores)
        item = core.scalar("int32", "number", 0)
        places = [Place(core, self.tiles, copy) for copy in range(FINISH_COPIES)]
        row_block.load(core)

        def fetch(number: Number, copy: int) -> None:
            with core.when(number < share, index * share + number < total):
                places[copy].fetch(index * share + number)

        fetch(0, 0)
        with tik.for_range(0, -(-share // FINISH_COPIES), name="pair") as pair:
            for copy in range(FINISH_COPIES):
                item.set_as(pair * FINISH_COPIES + copy)
                fetch(item + 1, (copy + 1) % FINISH_COPIES)
                with core.when(item < share, index * share + item < total):
                    item.set_as(index * share + item)
                    places[copy].find()
                    with if_rows(core, places[copy].rows):
                        _tile(core, item, total, places[copy], self.slots, copy)


def _tile(core: Core[BackwardPlan], item: Number, total: int, place: Place, slots: int, copy: int) -> None:
    plan, tik, problem = core.plan, core.tik, core.problem
    whole = plan.rows * plan.head_dim
    total_of, half = core.on.total[copy], core.on.d_query[0]
    tik.data_move(total_of[HALF_ROUND], core.gm["d_query_sums"][core.wide(item, whole)], 0, 1, whole // 8, 0, 0)
    for slot in range(1, slots):
        part = core.on.part[slot % len(core.on.part)]
        tik.data_move(part, core.gm["d_query_sums"][core.wide(item + slot * total, whole)], 0, 1, whole // 8, 0, 0)
        core.binary("vec_add", total_of[HALF_ROUND:], total_of[HALF_ROUND:], part, whole)
    factor = softcap.gradient_sign(problem) * problem.post_scale * problem.call.dropout_scale
    core.with_scalar("vec_muls", total_of, total_of[HALF_ROUND:], factor, whole)
    core.to_half(half, total_of, whole)

    def store(have: Number) -> None:
        core.store("d_query", place.address("d_query"), (half, 0), have, plan.rows)

    by_rows(core, place.rows, store)
