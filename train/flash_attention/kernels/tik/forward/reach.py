"""How far scores can lie from zero: whether differences of scores fit in float16 as they are.

|query . key| is at most head_dim times the largest query element of a work item times the largest key element of its
head. Where that is small the scores leave L0C as they are. Where it is not, the query is divided by FAR_UNIT, and
Vector multiplies what it takes out of L0C, having cut off what float16 does not hold.
"""

from __future__ import annotations

from flash_attention.kernels.tik.common.table_row import TableRow
from flash_attention.kernels.tik.core import Core
from flash_attention.kernels.tik.problem import KernelProblem, padded

FAR_UNIT = 4.0
NEAR = 16000  # largest |score| whose differences from a row reference stay in the range of float16
CHUNK = 8192  # elements of keys in work at a time
GROUPS = CHUNK // 16


def is_needed(problem: KernelProblem, half_scores: bool) -> bool:
    """Where Vector scales the scores anyway there is room for any score: see KernelProblem.query_factor."""
    return half_scores and problem.post_scale == 1.0 and not problem.sequences


class Reach:
    """Run-time numbers of one core.

    Attributes:
        far: 1 where the scores of the item that comes next may be far from zero.
        unit: float32, FAR_UNIT there and 1 elsewhere.
    """

    def __init__(self, core: Core):
        self.core = core
        self.far = core.scalar("int32", "far", 0)
        self.unit = core.scalar("float32", "far_unit", 1.0)
        self._head = core.scalar("int32", "measured_head", -1)

    def measure(self, item: TableRow, base) -> None:
        """Sets the numbers for an item whose queries are in `stage`; `base` is the first element of its keys.

        It uses `score`, which the tiles of an item leave alone where scores are float16.
        """
        core, tik = self.core, self.core.tik
        with tik.if_scope(item["kv_head"] != self._head):
            self._head.set_as(item["kv_head"])
            self._keys(base)
        work = core.on.score[0].reinterpret_cast_to("float16")
        elements = core.plan.rows * core.plan.head_dim
        # Rows that are not there hold what an earlier item left: at worst the item is called far without need.
        for a, stage in enumerate(core.on.stage):
            half = work if a == 0 else work[elements:]
            core.unary("vec_abs", half, stage[128:], elements)
            if a:
                core.binary("vec_max", work, work, half, elements)
        self._groups(core.on.query_groups[0], work, elements)
        query, key = core.on.reference_part[0], core.on.compact_total[0]
        largest = core.on.largest_total[0]
        for groups, target in ((core.on.query_groups[0], query), (core.on.key_groups[0], key)):
            tik.vcgmax(128, work, groups, GROUPS // 128, 1, 1, 8)
            tik.vcmax(GROUPS // 16, largest, work, 1, 1, 1, 8)
            core.to_single(target, largest, 16)
        core.binary("vec_mul", query, query, key, 16, 64)
        core.with_scalar("vec_muls", query, query, core.problem.head_dim * abs(core.problem.scale), 16, 64)
        core.with_row("vec_min", query, query, core.on.largest_half[0], 16, 64)
        core.to_half(largest, query, 16)
        tik.vec_conv(8, "round", core.on.reach[0], largest, 1, 8, 4)
        bound = core.scalar("int32", "bound")
        bound.set_as(core.on.reach[0][0])
        self.far.set_as(0)
        self.unit.set_as(1.0)
        with tik.if_scope(bound > NEAR):
            self.far.set_as(1)
            self.unit.set_as(FAR_UNIT)

    def _keys(self, base) -> None:
        """Largest |elements| of the keys of a head."""
        core, tik = self.core, self.core.tik
        work, groups = core.on.score[0].reinterpret_cast_to("float16"), core.on.key_groups[0]
        core.fill(groups, 0.0, GROUPS)
        place = core.place("key")

        def take(source, rows: int, half) -> None:
            if rows % 8:
                core.fill(half, 0.0, padded(rows * 16, 128))
            tik.data_move(half, core.gm["key"][source], 0, 1, rows, 0, 0)
            elements = padded(rows * 16, 128)
            core.unary("vec_abs", half, half, elements)
            self._groups(half, half, elements)
            core.binary("vec_max", groups, groups, half, elements // 16)

        def sweep(first, rows: int) -> None:
            pairs, rest = divmod(rows, 2 * GROUPS)
            with tik.for_range(0, pairs, name="key_chunk") as pair:
                for side in range(2):
                    take(first + (pair * 2 + side) * CHUNK, GROUPS, work[side * CHUNK :])
            for side, row in enumerate(range(0, rest, GROUPS)):
                take(first + (pairs * 2 * CHUNK + row * 16), min(GROUPS, rest - row), work[side * CHUNK :])

        if place.column == place.rows:  # the columns of a head follow each other
            sweep(base, core.depth_columns * place.rows)
            return
        with tik.for_range(0, core.depth_columns, name="key_column") as column:
            sweep(base + core.wide(column, place.column * 16), place.rows)

    def _groups(self, target, values, elements: int) -> None:
        """Maxima of groups of 16 values."""
        self.core.tik.vcgmax(128, target, values, elements // 128, 1, 1, 8)
