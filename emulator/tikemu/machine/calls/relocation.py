"""Bound operations that are used again at other addresses and with another scalar.

In a loop over the elements of a tensor every execution of a call has operands at new offsets. To prepare an execution
from nothing takes longer than to run it. All checks and costs of a call depend on the addresses only through

* their remainders (alignment, bank groups, lines of the L2 buffer) and, for vector instructions, the layer of the
  Unified Buffer,
* the bounds of the tensors,
* which operands share bytes.

So operations are prepared once for every set of other arguments and remainders. At a new address it is verified that
the operands stay inside their tensors and overlap as before; then only pointers change. The scalar operand decides
nothing but results.
"""

from __future__ import annotations

from typing import Any, Callable

from ...isa.bank_conflicts import GROUPS, LAYER
from ...isa.micro_op import Access, MicroOp
from ...isa.region import Region
from ..runtime import BoundOp, Ops, Runtime
from .arguments import KeyField, OperandTemplate, places

#: Templates per call.
TEMPLATES = 4096
#: Templates after which most calls must have found one, for relocation to go on.
TRIAL = 128
#: Addresses in other memories matter modulo this (the widest alignment).
_UNIT = 1024
_UB_BLOCK = 32


class Relocatable:
    """Operations of one call, bound for some remainders of the addresses.

    Attributes:
        ops: the operations (one).
        reach: per view, the bytes touched, relative to its address.
        pairs: (first view, second view, distance): positions of operands in one memory, one of which is written;
            distance None if they share no byte.
        accesses: what is read, and what is written, each with the number of its view.
        in_global: an operand lies in global memory.
    """

    __slots__ = ("ops", "reach", "pairs", "accesses", "in_global")

    def __init__(self, ops: Ops, views: list[OperandTemplate], addresses: list[int]) -> None:
        micro: MicroOp = ops[0].micro
        self.ops = ops
        # Every access belongs to the view of its operand.
        owners = {id(operand): number for number, operand in enumerate(micro.operands)}
        self.accesses = [
            [(owners[id(access.operand)], access) for access in accesses] for accesses in (micro.reads, micro.writes)
        ]
        self.in_global = any(operand.memory.kind == "GM" for operand in micro.operands)
        self.reach = []
        for number, (view, operand) in enumerate(zip(views, micro.operands)):
            regions = [access.region for group in self.accesses for owner, access in group if owner == number]
            end = max([view.extent(operand), *(region.end - operand.address for region in regions)])
            self.reach.append((min([0, *(region.start - operand.address for region in regions)]), end))
        written = {number for number, _ in self.accesses[1]}
        self.pairs = []
        for second, operand in enumerate(micro.operands):
            for first in range(second):
                if operand.memory is micro.operands[first].memory and written & {first, second}:
                    near = _overlap(addresses[first], self.reach[first], addresses[second], self.reach[second])
                    self.pairs.append((first, second, addresses[second] - addresses[first] if near else None))

    def fits(self, addresses: list[int], starts: list[int], ends: list[int]) -> bool:
        """Return whether the operations can be used at ``addresses``."""
        for address, start, end, (low, high) in zip(addresses, starts, ends, self.reach):
            if address + low < start or address + high > end:
                return False
        for first, second, distance in self.pairs:
            if distance is None:
                if _overlap(addresses[first], self.reach[first], addresses[second], self.reach[second]):
                    return False
            elif addresses[second] - addresses[first] != distance:
                return False
        return True


def _holds_view(entry: Any) -> bool:
    if isinstance(entry, (list, dict)):
        return any(map(_holds_view, entry.values() if isinstance(entry, dict) else entry))
    return isinstance(entry, OperandTemplate)


def _overlap(first: int, reach: tuple[int, int], second: int, other: tuple[int, int]) -> bool:
    return first + reach[0] < second + other[1] and second + other[0] < first + reach[1]


class Relocator:
    """Find or make the operations of a call at new addresses.

    Args:
        runtime: the run.
        prepare: prepares the operations for run-time values from nothing.
        retire: told the operations that are dropped.
        arguments: templates of the arguments.
        computed: whether the numerics are run.

    Attributes:
        templates: the operations by key and remainders.
        possible: an address or the scalar operand is a run-time value, and no reason against relocation is known.
    """

    def __init__(
        self,
        runtime: Runtime,
        prepare: Callable[[tuple], Ops],
        retire: Callable[[Ops], None],
        arguments: dict[str, Any],
        computed: bool,
    ) -> None:
        self.runtime, self.prepare, self.retire, self.computed = runtime, prepare, retire, computed
        self.views = [entry for entry in arguments.values() if isinstance(entry, OperandTemplate)]
        scalar = arguments.get("scalar")
        self.scalar = scalar.index if isinstance(scalar, KeyField) else None
        # Positions in the key that say more than an offset or the scalar.
        self.others = set().union(*(places(entry) for name, entry in arguments.items() if name != "scalar"))
        self.fixed: tuple[int, ...] | None = None  # positions in the key that one template has one value of
        self.units: list[tuple[int, bool]] = []
        self.templates: dict[Any, Relocatable] = {}
        listed = any(_holds_view(entry) for entry in arguments.values() if isinstance(entry, (list, dict)))
        self.possible = not listed and self._moves
        self.moved = 0  # calls that found a template
        self.buffer_bounds = False  # it is known (and the user was told) that the call leaves a tensor

    def find(self, values: tuple) -> Ops | None:
        """Return operations for the run-time values, or None if they must be prepared anew."""
        if not self.possible or self.fixed is None and not self._learn(values):
            return None
        addresses: list[int] = []
        starts: list[int] = []
        ends: list[int] = []
        remainders = [values[position] for position in self.fixed]
        for view, (unit, layered) in zip(self.views, self.units):
            place = view.place
            start = place.address + (values[view.copy.index] * place.stride if view.copied else 0)
            address = start + (values[view.offset.index] if view.moves else view.offset) * view.itemsize
            addresses.append(address)
            inside = not self.buffer_bounds or place.memory.kind == "GM"
            starts.append(start if inside else 0)
            ends.append(start + place.size if inside else len(place.memory.data))
            remainders.append(address % unit)
            if layered:
                remainders.append(address // LAYER)
        key = tuple(remainders)
        template = self.templates.get(key)
        if template is None:
            if len(self.templates) >= TRIAL and self.moved < len(self.templates):
                self.possible = False
                return None
            if len(self.templates) >= TEMPLATES:
                for ops in self.prepared():
                    self.retire(ops)
                self.templates.clear()
            ops = self.prepare(values)
            if not self._movable(ops):  # other operations for these arguments, or none for a repeat of 0
                return None
            template = self.templates[key] = Relocatable(ops, self.views, addresses)
            if not template.fits(addresses, starts, ends):  # it touches padding of a tensor
                return None
        elif not template.fits(addresses, starts, ends) or not self._same_layers(template, addresses):
            self.buffer_bounds = self.runtime.options.bounds == "buffer"
            return None
        else:
            self.moved += 1
        self._move(template.ops[0], template, addresses, values)
        return template.ops

    def prepared(self) -> list[Ops]:
        """Return all operations."""
        return [template.ops for template in self.templates.values()]

    # -------------------------------------------------------------------------------------------- making
    def _learn(self, values: tuple) -> bool:
        """Prepare the call once to see what it depends on. False if its operations cannot be moved."""
        ops = self.prepare(values)
        if not ops:
            return False
        micro = ops[0].micro
        if micro.rescale is None:
            self.scalar = None
        self.possible = self._moves and self._movable(ops)
        if not self.possible:
            return False
        free = {view.offset.index for view in self.views if view.moves} | {self.scalar}
        self.fixed = tuple(
            [position for position in range(len(values)) if position in self.others or position not in free]
        )
        line = int(self.runtime.soc.timing.gm_line)
        for view in self.views:
            memory = view.place.memory.kind
            vector = memory == "UB" and micro.mask is not None
            unit = line if memory == "GM" else _UNIT if memory != "UB" else GROUPS * _UB_BLOCK if vector else _UB_BLOCK
            self.units.append((unit, vector))
        return True

    @property
    def _moves(self) -> bool:
        """Return whether an address or the scalar is a run-time value."""
        return self.scalar is not None or any(view.moves for view in self.views)

    def _movable(self, ops: Ops) -> bool:
        if len(ops) != 1 or len(ops[0].micro.operands) != len(self.views):
            return False
        micro = ops[0].micro
        if self.computed and micro.moved is None or self.scalar is not None and micro.rescale is None:
            return False
        owned = {id(operand) for operand in micro.operands}
        return not micro.undefined and all(id(access.operand) in owned for access in (*micro.reads, *micro.writes))

    def _same_layers(self, template: Relocatable, addresses: list[int]) -> bool:
        """Return whether vector operands lie in one layer of banks, as the cost supposes."""
        operands = template.ops[0].micro.operands
        for address, operand, (low, high), (_, layered) in zip(addresses, operands, template.reach, self.units):
            if layered and (_crosses(address, low, high) or _crosses(operand.address, low, high)):
                return False
        return True

    # -------------------------------------------------------------------------------------------- moving
    def _move(self, op: BoundOp, template: Relocatable, addresses: list[int], values: tuple) -> None:
        micro, runtime = op.micro, self.runtime
        if self.scalar is not None:
            value = values[self.scalar]
            micro.rescale(float(value) if isinstance(value, str) else value)
        if not self.computed:
            return
        run, run_defined = micro.moved(addresses)
        journal = runtime.journal if template.in_global else None
        if not runtime.strict and journal is None:
            op.run = run
            return
        distance = [address - operand.address for address, operand in zip(addresses, micro.operands)]
        if not runtime.strict:
            read, written = (
                [(access.region, distance[owner]) for owner, access in group if access.region.memory.kind == "GM"]
                for group in template.accesses
            )
            op.run = journal.noted_at(run, read, written)
            return
        reads, writes = (
            tuple(Access(access.operand, _moved(access.region, distance[owner])) for owner, access in group)
            for group in template.accesses
        )
        moved = MicroOp(
            micro.name,
            micro.pipe,
            micro.cycles,
            micro.latency,
            reads,
            writes,
            run,
            run_defined=run_defined,
            transfer=micro.transfer,
        )
        op.run = runtime.checked(moved, op.location) or run


def _crosses(address: int, low: int, high: int) -> bool:
    return (address + low) // LAYER != (address + high - 1) // LAYER


def _moved(region: Region, distance: int) -> Region:
    return Region(region.memory, tuple((piece[0] + distance, *piece[1:]) for piece in region.pieces))
