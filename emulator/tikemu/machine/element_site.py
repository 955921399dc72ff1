"""Accesses of the scalar unit to elements of tensors."""

from __future__ import annotations

from typing import Any, Callable

from ..errors import TikBoundsError, TikSyncError, TikUndefinedError
from ..isa.micro_op import Access, Operand
from ..isa.region import Region
from ..program import ir
from ..program.dtypes import size_of
from .calls import site
from .runtime import Reusable, Runtime, TensorPlace
from .strict import mark, undefined_bytes


class ElementSite(Reusable):
    """One access of the scalar unit to an element of a tensor.

    Args:
        runtime: the run.
        view: the element (its first one counts).
        place: where the tensor lives.
        location: the user's line.
        synced: whether the automatic synchronisation works here.
        needed: whether the value matters (without numerics only values that decide the course of the program do).
    """

    def __init__(
        self, runtime: Runtime, view: ir.View, place: TensorPlace, location: ir.Location, synced: bool, needed: bool
    ) -> None:
        self.runtime, self.place, self.location = runtime, place, location
        self.dtype, self.name = view.dtype, view.tensor.name
        self.itemsize = size_of(view.dtype)
        self.static = ir.is_immediate(view.offset)
        self.synced, self.needed = synced, needed
        sync = runtime.options.sync
        self.whole = sync == "conservative" or sync == "auto" and not self.static  # the footprint is the tensor
        size = len(place.memory.data) // self.itemsize * self.itemsize
        self.array = place.memory.data[:size].view(view.dtype)
        self.footprints: dict[int, Any] = {}
        runtime.sites.append(self)

    def reader(self) -> Callable[[int, int], Any]:
        """Return ``f(offset, copy)``, which gives the element's value."""
        array, itemsize, needed = self.array, self.itemsize, self.needed
        locate = self._locate(write=False)

        def read(offset: int, copy: int) -> Any:
            address = locate(offset, copy)
            return array.item(address // itemsize) if needed else 0

        return read

    def writer(self) -> Callable[[int, int, Any], None]:
        """Return ``f(offset, copy, value)``, which stores a value that the element's type represents."""
        array, itemsize, needed = self.array, self.itemsize, self.needed
        locate = self._locate(write=True)

        def write(offset: int, copy: int, value: Any) -> None:
            address = locate(offset, copy)
            if needed:
                array[address // itemsize] = value

        return write

    def forget(self) -> None:
        self.footprints.clear()

    def _locate(self, write: bool) -> Callable[[int, int], int]:
        """Return ``f(offset, copy)``, which gives the checked address and accounts for time, marks and races."""
        place, itemsize, name = self.place, self.itemsize, self.name
        runtime, clock, footprints, whole = self.runtime, self.runtime.clock, self.footprints, self.whole
        checked = runtime.marks or not self.synced
        if clock is not None:
            access, later = clock.scalar_write if write else clock.scalar_read, clock.later

        def locate(offset: int, copy: int) -> int:
            start = place.address + copy * place.stride
            address = start + offset * itemsize
            if address < start or address + itemsize > start + place.size:
                raise TikBoundsError(
                    f"element {offset} of tensor {name!r} is accessed, which has "
                    f"{place.size // itemsize} elements of {itemsize} bytes"
                )
            if checked:
                self._check(address, start, write)
            if clock is not None:
                footprint = footprints.get(start if whole else address)
                if footprint is None:
                    footprint = self._footprint(address, start)
                if later is None:
                    access(footprint)
                else:
                    later((access, footprint))
            return address

        return locate

    def _footprint(self, address: int, start: int) -> Any:
        if len(self.footprints) >= site.LIMIT:
            self.footprints.clear()
        region = Region.span(self.place.memory, address, self.itemsize)
        footprint = self.runtime.footprint(self.static, region, start, start + self.place.size)
        if self.runtime.options.reuse:
            self.footprints[start if self.whole else address] = footprint
        return footprint

    def _check(self, address: int, start: int, write: bool) -> None:
        runtime = self.runtime
        region = Region.span(self.place.memory, address, self.itemsize)
        if runtime.pipe_races is not None and not self.synced:
            clash = runtime.pipe_races.access("S", [(region, write)], f"the scalar access to tensor {self.name!r}")
            if clash:
                runtime.report(self.location, "race", TikSyncError, clash)
        if not runtime.marks:
            return
        if write:
            mark(region, 1)
            return
        operand = Operand(self.place.memory, address, start, start + self.place.size, self.dtype, (1,), (1,), self.name)
        message = undefined_bytes(Access(operand, region), "the scalar unit")
        if message:
            runtime.report(self.location, "undefined", TikUndefinedError, message)
