"""Run vector instructions: addressing, overlap rules, cost, execution in NumPy or the native helper.

An instruction's entry describes its computation (its :class:`Arithmetic`); this module walks over repeats and lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Callable

import numpy as np

from .. import native
from ..errors import TikParamError
from ..program.dtypes import size_of
from . import numerics
from .access import access, outside_tensor
from .bank_conflicts import BLOCK, GROUPS, LAYER, Stream, conflict_cycles
from .call import Call
from .micro_op import Access, MicroOp, Operand
from .region import Piece, Region
from .vector_mask import Lanes


@dataclass(eq=False)
class Walk:
    """Describe the walk of an instruction over one operand; addressing as in vector.md 1.1.

    Attributes:
        label: parameter name, for messages.
        operand: the tensor.
        lanes: lanes of a repeat that are touched.
        repeats: number of repeats.
        pitch: bytes from one repeat to the next.
        block_pitch: bytes from one block of a repeat to the next.
        dtype: of the elements (usually the operand's).
    """

    label: str
    operand: Operand
    lanes: Lanes
    repeats: int
    pitch: int
    block_pitch: int = BLOCK
    dtype: str = ""

    def __post_init__(self) -> None:
        self.dtype = self.dtype or self.operand.dtype
        self.itemsize = size_of(self.dtype)
        lanes, address = self.lanes, self.operand.address
        # Bytes of a repeat, from the first touched byte to the byte after the last. A block pitch of 0 is one block.
        low, self.reach = 0, 0
        if lanes.extent:
            low, self.reach = self._offset(lanes.first), self._offset(lanes.extent - 1) + self.itemsize
            if self.block_pitch == 0 and lanes.extent * self.itemsize > BLOCK:
                low = min(piece[0] for piece in self.pieces) - address
                self.reach = max(piece[0] + piece[5] for piece in self.pieces) - address
        # First byte touched, byte after the last (strides are not negative).
        self.span = (address + low, address + (self.repeats - 1) * self.pitch + self.reach)

    # ---------------------------------------------------------------------------------------------- footprint
    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """Return the bytes touched, as regular pieces."""
        size, address = self.itemsize, self.operand.address
        rows: list[tuple[int, int, int]] = []  # offset, blocks, width
        for first, stop in self.lanes.runs:
            if self.block_pitch == BLOCK:
                rows.append((first * size, 1, (stop - first) * size))
                continue
            per = BLOCK // size
            head, tail = -first % per, stop % per
            if first // per == stop // per or stop - first <= head:
                rows.append((self._offset(first), 1, (stop - first) * size))
                continue
            if head:
                rows.append((self._offset(first), 1, head * size))
            if first + head < stop - tail:
                rows.append((self._offset(first + head), (stop - tail - first - head) // per, BLOCK))
            if tail:
                rows.append((self._offset(stop - tail), 1, tail * size))
        return tuple(
            (address + offset, self.repeats, self.pitch, blocks, self.block_pitch, width)
            for offset, blocks, width in rows
        )

    def meets(self, other: Walk) -> bool:
        """Return whether the two walks share a byte."""
        if (
            self.operand.memory is not other.operand.memory
            or self.span[0] >= other.span[1]
            or other.span[0] >= self.span[1]
        ):
            return False
        memory = self.operand.memory
        return Region(memory, self.pieces).overlaps(Region(memory, other.pieces))

    def _offset(self, lane: int) -> int:
        block, element = divmod(lane, BLOCK // self.itemsize)
        return block * self.block_pitch + element * self.itemsize

    def access(self, call: Call) -> Access:
        """Return the footprint.

        Raises:
            TikBoundsError: the last enabled lane of the last repeat lies outside the tensor.
        """
        operand = self.operand
        if self.span[1] > operand.end or operand.address < operand.start:
            outside_tensor(
                call,
                operand,
                *self.span,
                f"{self.label} overflows tensor {operand.name!r}: it touches bytes {self.span[0] - operand.start} to "
                f"{self.span[1] - operand.start}, the tensor has {operand.end - operand.start}",
            )
        if not self.lanes.scattered:
            return Access(operand, Region(operand.memory, self.pieces))
        region = Region.within(operand.memory, *self.span, lambda: self.pieces)
        shape = (operand.address, self.repeats, self.pitch, self.block_pitch, self.itemsize)
        return Access(operand, region, self.lanes.bits, shape)

    def stream(self) -> Stream:
        """Return the blocks touched, for the bank model.

        Inside one layer of the banks only the address modulo the 16 groups matters. So the blocks are moved to this
        remainder, and many walks share one (cached) count.
        """
        address, (low, high) = self.operand.address, self.span
        group = address % (GROUPS * BLOCK)
        if low // LAYER == (high - 1) // LAYER and group + high - address <= LAYER:
            address = address // LAYER * LAYER + group
        per = BLOCK // self.itemsize
        return Stream(address, -(-self.lanes.extent // per), self.block_pitch // BLOCK, self.pitch // BLOCK)

    # ---------------------------------------------------------------------------------------------- overlap
    @property
    def revisits(self) -> bool:
        """Return whether two repeats may touch the same bytes."""
        return self.repeats > 1 and self.pitch < self.reach

    def same_place(self, other: Walk) -> bool:
        """Return whether both walks touch the same addresses in the same order."""
        return (
            self.operand.memory is other.operand.memory
            and self.operand.address == other.operand.address
            and self.itemsize == other.itemsize
            and (self.pitch == other.pitch or self.repeats == 1)
            and (self.block_pitch == other.block_pitch or self.lanes.extent * self.itemsize <= BLOCK)
        )

    def feeds_later(self, other: Walk) -> bool:
        """Return whether a repeat of this written walk touches bytes that ``other`` reads later."""
        if self.repeats == 1 or (self.same_place(other) and not self.revisits):
            return False
        low, high = min(self.span[0], other.span[0]), max(self.span[1], other.span[1])
        marks = np.zeros(high - low, np.uint8)

        def views(pieces: Sequence[Piece]) -> list[np.ndarray]:
            return [np.ndarray(p[1:4:2] + p[5:], np.uint8, marks, p[0] - low, (p[2], p[4], 1)) for p in pieces]

        writes, reads = views(self.pieces), views(other.pieces)
        for repeat in range(1, self.repeats):
            for piece in writes:
                piece[repeat - 1] = 1
            if any(piece[repeat].any() for piece in reads):
                return True
        return False

    # ---------------------------------------------------------------------------------------------- NumPy execution
    @property
    def _storage(self) -> str:
        return "uint16" if self.dtype == "float16" else self.dtype

    @property
    def regular(self) -> bool:
        """Return whether the elements of a repeat are evenly spaced."""
        return self.block_pitch == BLOCK or self.lanes.extent * self.itemsize <= BLOCK

    def _view(self, address: int) -> np.ndarray | None:
        """Return the elements of lanes below ``lanes.extent``, shape (repeats, extent). None if they are not evenly
        spaced.
        """
        if not self.regular:
            return None
        return self.operand.memory.view(
            self._storage, address, (self.repeats, self.lanes.extent), (self.pitch, self.itemsize)
        )

    def _flat(self, address: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the memory as elements, and the index of every lane below ``lanes.extent``: (repeats, extent)."""
        memory, shift = self.operand.memory, address % self.itemsize
        flat = memory.view(self._storage, shift, ((len(memory.data) - shift) // self.itemsize,), (self.itemsize,))
        block, element = np.divmod(np.arange(self.lanes.extent), BLOCK // self.itemsize)
        index = (
            address - shift + np.arange(self.repeats)[:, None] * self.pitch + block * self.block_pitch
        ) // self.itemsize + element
        return flat, index

    def loader(self, raw: bool = False) -> Callable[[Any], np.ndarray]:
        """Return ``f(rows)``, which reads the elements of some repeats, C-contiguous. Rows are an index or slice;
        float16 is widened unless ``raw``.
        """
        widen = self.dtype == "float16" and not raw
        view = self._view(self.operand.address)
        if view is None:
            flat, index = self._flat(self.operand.address)
            if widen:
                return lambda rows: numerics.widen(flat.take(index[rows]))
            return lambda rows: flat.take(index[rows])
        if widen:
            return lambda rows: numerics.widen(view[rows])
        return lambda rows: np.ascontiguousarray(view[rows])

    def storer(self, address: int | None = None) -> Callable[[Any, np.ndarray], None]:
        """Return ``f(rows, values)``, which writes the enabled lanes of some repeats.

        ``values`` are in storage form (float16 bits). The operand may have moved to ``address``.
        """
        where = None if self.lanes.full else self.lanes.array
        address = self.operand.address if address is None else address
        view = self._view(address)
        if view is None:
            flat, index = self._flat(address)
            chosen = slice(None) if where is None else np.flatnonzero(where)

            def store_indexed(rows: Any, values: np.ndarray) -> None:
                flat[index[rows][..., chosen]] = values[..., chosen]

            return store_indexed

        def store(rows: Any, values: np.ndarray) -> None:
            if where is None:
                view[rows] = values
            else:
                np.copyto(view[rows], values, where=where)

        return store

    def native_fields(self, prefix: str) -> dict[str, int]:
        """Return the pointer and strides for the native helper."""
        return {
            prefix: self.operand.memory.base + self.operand.address,
            f"{prefix}_rep": self.pitch,
            f"{prefix}_blk": self.block_pitch,
        }


def finish(values: np.ndarray, dtype: str) -> np.ndarray:
    """Saturate freshly computed float32 values and bring them to the storage form of ``dtype``."""
    if dtype == "float16":
        return numerics.narrow(values)
    return numerics.saturate(values) if dtype == "float32" else values


@dataclass(frozen=True, eq=False)
class Arithmetic:
    """Describe the arithmetic of an instruction per element.

    Attributes:
        function: ``f(*sources)`` on whole arrays (float16 as float32), giving storage form; the old destination comes
            last if ``reads_dst``.
        family, op: of the native helper, None if it has none.
        table: look-up table of the native helper.
        scalar: scalar operand of the native helper.
        reads_dst: the destination is also a source.
        raw: ``function`` takes float16 sources as bits.
    """

    function: Callable[..., np.ndarray]
    family: str | None = None
    op: str = ""
    table: np.ndarray | None = None
    scalar: float = 0.0
    reads_dst: bool = False
    raw: bool = False


_KINDS = {"float16": 0, "float32": 1}


def executor(
    arithmetic: Arithmetic,
    dst: Walk,
    sources: Sequence[Walk],
    ordered: bool,
    lanes: Lanes | None = None,
    pairs: bool = False,
) -> Callable[[], None]:
    """Return the function that performs the instruction.

    Args:
        ordered: repeats depend on one another and are executed one by one.
        lanes: enabled source lanes, if they differ from the destination's lanes (reductions).
        pairs: the native helper writes value-index pairs.
    """
    # Arithmetic with lanes of its own looks at them itself. Elsewhere disabled lanes do not count as saturated.
    enabled = dst.lanes
    select = None if lanes is not None or enabled.full else lambda where: where[..., enabled.array]
    lanes = lanes or enabled
    if arithmetic.family is not None:
        fields: dict[str, Any] = dst.native_fields("dst")
        for prefix, source in zip("ab", sources):
            fields.update(source.native_fields(prefix))
        table = 0 if arithmetic.table is None else arithmetic.table.ctypes.data
        run = native.runner(
            arithmetic.family,
            arithmetic.op,
            (lanes, arithmetic.table, *(walk.operand.memory for walk in (dst, *sources))),
            dst_kind=_KINDS.get(dst.dtype, 0),
            src_kind=_KINDS.get(sources[0].dtype, 0),
            repeats=dst.repeats,
            lanes=lanes.extent,
            full=lanes.full,
            reads_dst=arithmetic.reads_dst or pairs,
            lane=lanes.padded_base,
            table=table,
            scalar=arithmetic.scalar,
            **fields,
        )
        if run is not None:
            return run
    loads = [walk.loader(arithmetic.raw) for walk in (*sources, *((dst,) if arithmetic.reads_dst else ()))]
    store, function = dst.storer(), arithmetic.function
    everything = slice(None)

    def run_at_once() -> None:
        store(everything, function(*[load(everything) for load in loads]))

    def run_in_order() -> None:
        for repeat in range(dst.repeats):
            store(repeat, function(*[load(repeat) for load in loads]))

    run = run_in_order if ordered else run_at_once
    return numerics.watched(run, select) if sources else run


def check_overlap(call: Call, dst: Walk, sources: Sequence[Walk], accumulates: bool = False) -> bool:
    """Apply the overlap rules (vector.md 1.5); return whether repeats run in order.

    Args:
        accumulates: the instruction may accumulate into src1 (rule 3).
    """
    ordered = dst.revisits
    for position, source in enumerate(sources):
        if not dst.meets(source):
            continue
        if dst.repeats == 1:
            if not dst.same_place(source) or dst.itemsize != source.itemsize:
                call.questionable(
                    "overlap",
                    f"{dst.label} and {source.label} overlap partly; with one repeat only the same "
                    "addresses are supported",
                )
        elif dst.feeds_later(source):
            ordered = True
            pattern = (
                accumulates
                and position == 1
                and dst.pitch == source.pitch == 0
                and dst.same_place(source)
                and not dst.meets(sources[0])
            )
            if not pattern:
                call.questionable(
                    "overlap",
                    f"a repeat writes bytes of {dst.label} that a later repeat reads as {source.label}; "
                    "the hardware does not order them",
                )
    return ordered


NOTHING = Stream(0, 0)


def micro_op(
    call: Call,
    dtype: str,
    dst: Walk | None,
    sources: Sequence[Walk],
    *,
    mask: Lanes | None = None,
    reads_dst: bool = False,
) -> MicroOp:
    """Return the micro-operation of a vector instruction without its ``run``: footprints checked, bank conflicts
    counted.

    Args:
        dtype: type for ``soc.timing.vector_cycles``.
        dst: None for instructions that write a register.
        mask: the mask argument, None for instructions without one.
        reads_dst: the destination is also read.
    """
    timing, cost = call.soc.timing, call.cost
    reads = tuple(source.access(call) for source in sources)
    writes = () if dst is None else (dst.access(call),)
    streams = tuple(source.stream() for source in sources)
    if reads_dst:
        reads, streams = reads + writes, (*streams, dst.stream())
    repeats = (dst or sources[0]).repeats
    per_repeat = timing.vector_cycles(cost, dtype)
    if len(streams) > 1:
        per_repeat = max(per_repeat, timing.vector_two_sources)
    adds = bool(timing.vector_reads_add)
    cycles = conflict_cycles(per_repeat, repeats, dst.stream() if dst else NOTHING, streams, adds)
    cycles, constants = max(cycles, timing.vector_minimum), (timing.vector_constant_name(cost, dtype),)
    register = None if mask is None else mask.register
    return call.operation(cycles, "vector_latency", reads, writes, mask=register, constants=constants)


def element_wise(
    call: Call,
    arithmetic: Arithmetic,
    dst: Walk,
    sources: Sequence[Walk],
    *,
    mask: Lanes | None,
    accumulates: bool = False,
    inspect: Callable[..., None] | None = None,
) -> MicroOp:
    """Bind an element-wise instruction.

    Args:
        mask: the mask argument.
        accumulates: rule 3 of the overlap rules applies.
        inspect: strict mode: ``f(*source arrays)`` before every execution, to report unspecified inputs.
    """
    if dst.lanes.extent == 0:
        return idle(call, dst.dtype, dst.repeats, mask, (dst, *sources))
    widest = max((dst, *sources), key=lambda walk: walk.itemsize).dtype
    result = micro_op(call, widest, dst, sources, mask=mask, reads_dst=arithmetic.reads_dst)
    ordered = check_overlap(
        call, dst, (*sources, dst) if arithmetic.reads_dst and dst.revisits else sources, accumulates
    )
    run = result.run = executor(arithmetic, dst, sources, ordered)
    if inspect is not None and call.options.checks("unspecified"):
        loads, enabled = [source.loader() for source in sources], dst.lanes.array

        def inspect_and_run() -> None:
            inspect(*[load(slice(None))[:, enabled] for load in loads])
            run()

        inspected: Any = inspect_and_run
        inspected.status = getattr(run, "status", None)
        result.run = inspected
    else:
        make_movable(result, dst, sources)
    return result


def make_movable(op: MicroOp, dst: Walk, sources: Sequence[Walk]) -> None:
    """Let an operation of the native helper be used again at other addresses."""
    record = getattr(op.run, "record", None)
    if record is None:
        return
    run, names = op.run, ("dst", "a", "b")[: 1 + len(sources)]
    base = dst.operand.memory.base, *(source.operand.memory.base for source in sources)
    fields = tuple(zip(names, base))

    def moved(addresses: Sequence[int]) -> tuple[Callable[[], None], None]:
        for (name, start), address in zip(fields, addresses):
            setattr(record, name, start + address)
        return run, None

    op.operands, op.moved = (dst.operand, *(source.operand for source in sources)), moved


def make_rescalable(op: MicroOp, dtype: str) -> MicroOp:
    """Let a movable operation be used again with another scalar: a float of ``dtype``, or any integer."""
    if op.moved is not None:
        record = getattr(op.run, "record", None)  # the native helper's; an idle instruction has none

        def rescale(number: float) -> None:
            if record is not None:
                record.scalar = number if type(number) is float else float(numerics.scalar(number, dtype))

        op.rescale = rescale
    return op


def idle(call: Call, dtype: str, repeats: int, mask: Lanes | None, walks: Sequence[Walk] = ()) -> MicroOp:
    """Return an instruction with a mask that enables no lane: it takes its time and does nothing."""
    timing = call.soc.timing
    cycles = max(repeats * timing.vector_cycles(call.cost, dtype), timing.vector_minimum)
    result = call.operation(cycles, "vector_latency", mask=None if mask is None else mask.register)
    result.operands, result.moved = tuple(walk.operand for walk in walks), lambda addresses: (_nothing, None)
    return result


def _nothing() -> None:
    pass


def span_access(call: Call, label: str, operand: Operand, elements: int) -> Access:
    """Return the access of ``elements`` consecutive elements of an operand, checked against its bounds."""
    return access(call, label, operand, (operand.address, 1, 0, 1, 0, elements * np.dtype(operand.dtype).itemsize))


def require_different(call: Call, *operands: tuple[str, Operand, int, int]) -> None:
    """Complain if two of ``(label, operand, first byte, byte after the last)`` overlap."""
    for position, (label, operand, start, stop) in enumerate(operands):
        for other_label, other, other_start, other_stop in operands[position + 1 :]:
            if operand.memory is other.memory and start < other_stop and other_start < stop:
                call.questionable("overlap", f"{label} and {other_label} must not overlap", TikParamError)
