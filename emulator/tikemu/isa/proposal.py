"""Region proposals: eight float16 fields (16 bytes) each, field 4 is the score (vector.md 3.8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ..errors import TikUndefinedError
from ..program.nodes import as_integer
from .access import marks_of
from .call import Call
from .micro_op import Access, MicroOp, Operand
from .params import Count, Flag, Integer, Param, Tensor, TensorList, renamed, repeat
from .region import Region
from .registry import instruction
from .vector_engine import Arithmetic, Walk, check_overlap, element_wise, executor, micro_op, span_access
from .vector_mask import leading

FIELDS = 8
SCORE = 4
GROUP = 16  # proposals per repeat


def _mode() -> Param:
    return renamed(Integer("mode_number", 0, 5), "mode")


def _rows(label: str, operand: Any, elements: int, repeats: int) -> Walk:
    """Return a walk over consecutive repeats of ``elements`` float16 each."""
    return Walk(label, operand, leading(elements), repeats, 2 * elements)


def _field(call: Call, a: Any, *, insert: bool) -> MicroOp:
    """Move one field between 16 proposals and 16 consecutive numbers per repeat."""
    widths = (FIELDS * GROUP, GROUP) if insert else (GROUP, FIELDS * GROUP)
    dst, src = (_rows(name, getattr(a, name), width, a.repeat_times) for name, width in zip(("dst", "src"), widths))
    result = micro_op(call, "float16", dst, (src,))
    ordered = check_overlap(call, dst, (src,))
    field, shape = a.mode_number, (-1, GROUP, FIELDS)

    def inserted(x: np.ndarray, old: np.ndarray) -> np.ndarray:
        result = old.copy()
        result.reshape(shape)[..., field] = x.reshape(-1, GROUP)
        return result

    def extracted(x: np.ndarray) -> np.ndarray:
        return x.reshape(shape)[..., field].reshape(*x.shape[:-1], GROUP)

    if insert:  # the other fields keep their content
        written = Region.strided(a.dst.memory, a.dst.address + 2 * field, GROUP * a.repeat_times, 2 * FIELDS, 2)
        result.writes = (Access(a.dst, written),)
    arithmetic = Arithmetic(inserted if insert else extracted, reads_dst=insert, raw=True)
    result.run = executor(arithmetic, dst, (src,), ordered)
    marked = _on_marks(dst), _on_marks(src)
    if marked[0] is not None and marked[1] is not None:
        result.run_defined = executor(arithmetic, marked[0], (marked[1],), ordered)
    return result


def _on_marks(walk: Walk) -> Walk | None:
    """Return the walk over the "defined" marks: fields that nothing has written may move along. None without marks."""
    operand = marks_of(walk.operand)
    return None if operand is None else replace(walk, operand=operand)


def _require_scores(call: Call, operand: Operand, marks: np.ndarray) -> None:
    """Report undefined scores, which decide an order. ``marks``: of fields, as elements of 16 bits."""
    undefined = np.count_nonzero(marks[..., SCORE] != 0x0101)
    if undefined:
        message = f"reads {undefined} undefined scores of tensor {operand.name!r}: nothing has written them"
        call.questionable("undefined", message, TikUndefinedError)


instruction(
    "vconcat",
    params=(renamed(Tensor("dst"), "dst_proposals"), renamed(Tensor("src"), "src_vec"), repeat(low=0), _mode()),
    dtypes=("float16",),
    pipe="V",
    cost="proposal",
    doc="write 16 numbers per repeat into one field of 16 proposals",
)(partial(_field, insert=True))
instruction(
    "vextract",
    params=(renamed(Tensor("dst"), "dst_vec"), renamed(Tensor("src"), "src_proposals"), repeat(low=0), _mode()),
    dtypes=("float16",),
    pipe="V",
    cost="proposal",
    doc="read one field of 16 proposals per repeat",
)(partial(_field, insert=False))


def _order(x: np.ndarray) -> np.ndarray:
    """Return the order of every group of proposals."""
    scores = np.ascontiguousarray(x.reshape(-1, GROUP, FIELDS)[..., SCORE]).view(np.float16).astype(np.float32)
    return np.argsort(-scores, axis=-1, kind="stable")  # equal scores by lower index


def _in_order(x: np.ndarray, order: np.ndarray) -> np.ndarray:
    return np.take_along_axis(x.reshape(-1, GROUP, FIELDS), order[..., None], 1).reshape(x.shape)


@instruction(
    "vrpsort16", params=(Tensor("dst"), Tensor("src"), repeat(low=0)), dtypes=("float16",), pipe="V", cost="proposal"
)
def vrpsort16(call: Call, a: Any) -> MicroOp:
    """Sort 16 proposals per repeat by score, largest first"""
    dst, src = (_rows(name, getattr(a, name), FIELDS * GROUP, a.repeat_times) for name in ("dst", "src"))
    result = element_wise(call, Arithmetic(lambda x: _in_order(x, _order(x)), raw=True), dst, (src,), mask=None)
    to, origin = _on_marks(dst), _on_marks(src)
    if to is None or origin is None:
        return result
    sort, load, marks = result.run, src.loader(raw=True), origin.loader(raw=True)
    order = np.zeros((a.repeat_times, GROUP), np.intp)

    def run() -> None:
        _require_scores(call, a.src, marks(slice(None)).reshape(-1, FIELDS))
        order[...] = _order(load(slice(None)))
        sort()

    result.run = run
    result.run_defined = executor(Arithmetic(lambda x: _in_order(x, order), raw=True), to, (origin,), False)
    return result


# ------------------------------------------------------------------------------------------- merging
class QueueBits(Param):
    """``valid_bit``: "0011", "0111", "1111" or 3, 7, 15: the first two, three or four queues; resolves to the count."""

    COUNTS = {3: 2, 7: 3, 15: 4}

    def check(self, value: Any, call: Call) -> None:
        if self._count(value) is None:
            call.fail(f'{self.name} must be "0011", "0111" or "1111" (or 3, 7, 15), got {value!r}')

    def resolve(self, value: Any, call: Call) -> int:
        return self._count(value)

    def _count(self, value: Any) -> int | None:
        if isinstance(value, str):
            value = int(value, 2) if value and set(value) <= {"0", "1"} else None
        return self.COUNTS.get(as_integer(value))


class Lengths(Param):
    """``element_lengths``: proposals in each of the four queues, or one number for all; resolves to a tuple of four."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.each = Integer(name, 0, 4095)

    def check(self, value: Any, call: Call) -> None:
        if isinstance(value, (list, tuple)):
            if len(value) not in (1, 4):
                call.fail(f"{self.name} must be one number or a list of 4, got {len(value)} numbers")
        else:
            value = (value,)
        for length in value:
            self.each.check(length, call)

    def resolve(self, value: Any, call: Call) -> tuple[int, ...]:
        values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
        lengths = tuple(self.each.resolve(length, call) for length in values)
        return lengths if len(lengths) == 4 else lengths * 4


def merge_order(queues: list[np.ndarray], suspend: bool) -> np.ndarray:
    """Return the order of a merge of queues that always takes the largest head. Ties go to the lower queue.

    An element cannot leave before the smaller ones in front of it, so that the running minimum is its effective score.

    Args:
        queues: scores of each queue, float32.
        suspend: stop as soon as a queue is exhausted.
    """
    effective = np.concatenate([np.minimum.accumulate(scores) for scores in queues])
    order = np.argsort(-effective, kind="stable")
    if suspend:
        position = np.empty_like(order)
        position[order] = np.arange(order.size)
        ends = np.cumsum([scores.size for scores in queues])
        order = order[: min(position[end - 1] + 1 if scores.size else 0 for end, scores in zip(ends, queues))]
    return order


@instruction(
    "vmrgsort4",
    params=(
        Tensor("dst"),
        TensorList("src_list", 4),
        Lengths("element_lengths"),
        Flag("if_exhausted_suspension"),
        QueueBits("valid_bit"),
        Count("repeat_times", 255, low=0, default=1),
    ),
    dtypes=("float16",),
    pipe="V",
    cost="mergesort",
)
def vmrgsort4(call: Call, a: Any) -> MicroOp | None:
    """Merge up to four queues of proposals with descending scores"""
    count, repeats = a.valid_bit, a.repeat_times
    if repeats > 1:
        first, size = a.src_list[0], a.element_lengths[0] * 2 * FIELDS
        regular = len(set(a.element_lengths)) == 1 and all(
            queue.memory is first.memory and queue.address == first.address + i * size
            for i, queue in enumerate(a.src_list)
        )
        if not regular or count != 4 or a.if_exhausted_suspension:
            call.fail(
                f"repeat_times {repeats} needs four contiguous queues of equal length, all "
                "valid, and if_exhausted_suspension False"
            )
    lengths = a.element_lengths[:count]
    total = sum(lengths)
    if total == 0:
        return None
    # Repeat r of the contiguous case continues where the four queues of repeat r - 1 end.
    queues = [
        span_access(call, f"src_list[{i}]", queue, FIELDS * length)
        for i, (queue, length) in enumerate(zip(a.src_list, lengths))
        if length
    ]
    if repeats > 1:
        queues = [span_access(call, "src_list", a.src_list[0], FIELDS * total * repeats)]
    written = span_access(call, "dst", a.dst, FIELDS * total * repeats)
    if any(written.region.overlaps(queue.region) for queue in queues):
        call.questionable("overlap", "dst overlaps a queue of src_list")

    def views(target: Any, queues: Sequence[Any]) -> list[np.ndarray]:
        return [
            operand.memory.view("uint16", operand.address, (repeats, length, FIELDS), (16 * total, 16, 2))
            for operand, length in zip((target, *queues), (total, *lengths))
        ]

    target, *sources = views(a.dst, a.src_list)
    suspend, orders, run_defined = bool(a.if_exhausted_suspension), [np.zeros(0, np.intp)] * repeats, None

    def move(target: np.ndarray, sources: Sequence[np.ndarray]) -> None:
        for repeat_, order in enumerate(orders):
            target[repeat_, : order.size] = np.concatenate([queue[repeat_] for queue in sources])[order]

    def run() -> None:
        for repeat_ in range(repeats):
            scores = [
                np.ascontiguousarray(queue[repeat_, :, SCORE]).view(np.float16).astype(np.float32) for queue in sources
            ]
            orders[repeat_] = merge_order(scores, suspend)
        move(target, sources)

    if a.dst.memory.defined is not None:
        target_marks, *marks = views(marks_of(a.dst), [marks_of(queue) for queue in a.src_list])
        merge = run

        def run() -> None:
            for queue, its_marks in zip(a.src_list, marks):
                _require_scores(call, queue, its_marks)
            merge()

        run_defined = partial(move, target_marks, marks)

    timing = call.soc.timing
    # The published cost of a repeat is for 64 elements (four sorted groups of 16).
    cycles = timing.vector_cycles("mergesort", "float16") * max(1.0, total * repeats / 64)
    constants = ("vector_mergesort",)
    return call.operation(
        cycles, "vector_latency", queues, (written,), run, run_defined=run_defined, constants=constants
    )
