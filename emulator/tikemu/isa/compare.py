"""Comparisons, selection and the compare-mask register (vector.md 2.7, 2.8, 3.5)."""

from __future__ import annotations

import operator
from dataclasses import replace
from functools import partial
from typing import Any, Callable

import numpy as np

from ..errors import TikAlignError, TikUndefinedError, TikUnsupportedArgumentError
from ..program import ir
from .access import defined_view, marks_of
from .call import Call, CoreState
from .micro_op import MicroOp
from .params import Choice, Param, Tensor, describe, is_tensor, repeat, stride
from .registry import instruction
from .vector import FLOATS, legacy_tail, strides, walks
from .vector_engine import BLOCK, Arithmetic, Walk, element_wise, executor, idle, micro_op
from .vector_mask import Mask, leading

CONDITIONS: dict[str, Callable[[Any, Any], Any]] = {
    name: getattr(operator, name) for name in ("lt", "gt", "ge", "eq", "ne", "le")
}
BIT_DTYPES = ("uint8", "uint16", "uint32", "uint64")
INTEGER_DTYPES = (*BIT_DTYPES, "int8", "int16", "int32", "int64")
REGISTER_BYTES = 16


def register(core: CoreState) -> np.ndarray:
    """Return the compare-mask register of a core, uint8[16], initially 0 (D18)."""
    if core.cmpmask is None:
        core.cmpmask = np.zeros(REGISTER_BYTES, np.uint8)
        core.cmpmask_undefined = np.zeros(REGISTER_BYTES, np.uint8)
    return core.cmpmask


class CompareMask(Param):
    """A handle of the compare-mask register, or (if allowed) a tensor that holds its bits."""

    def __init__(self, name: str, tensor: bool) -> None:
        super().__init__(name)
        self.tensor = Tensor(name, dtypes=INTEGER_DTYPES) if tensor else None

    def check(self, value: Any, call: Call) -> None:
        if isinstance(value, ir.CmpMask):
            return
        if self.tensor is None or not is_tensor(value):
            call.fail(
                f"{self.name} must be what vcmp_* or mov_tensor_to_cmpmask returned"
                f"{'' if self.tensor is None else ', or a Tensor'}, got {describe(value)}"
            )
        self.tensor.check(value, call)

    def resolve(self, value: Any, call: Call) -> Any:
        return value if isinstance(value, ir.CmpMask) else self.tensor.resolve(value, call)


class CompareBits(Tensor):
    """The tensor that the register is loaded from or stored to (D16d).

    Pages of the same registers ask for 16 bytes or for 32.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, dtypes=INTEGER_DTYPES, align=REGISTER_BYTES)

    def _check_alignment(self, address: int, tensor: str, value: Any, call: Call, label: str) -> None:
        super()._check_alignment(address, tensor, value, call, label)
        if address % BLOCK and not (call.runtime and value.static):  # a known address was reported at the call
            call.questionable(
                "undocumented",
                f"{label} (tensor {tensor!r}) starts at byte {address} of UB: some documents ask for a multiple of "
                f"{BLOCK}, some for a multiple of {REGISTER_BYTES}",
                TikAlignError,
            )


def check_current(call: Call, handle: ir.CmpMask) -> None:
    """Complain if the register no longer holds what the handle stands for."""
    if call.core.cmpmask_owner != handle.uid:
        call.questionable(
            "compare-mask",
            "the compare mask has been overwritten by a later vcmp_* or mov_tensor_to_cmpmask: there is "
            "one register per core, its present content is used",
        )


def _marks(walk: Walk) -> np.ndarray | None:
    """Return the "defined" marks of bytes that the register is loaded from or stored to."""
    operand = walk.operand
    if operand.memory.defined is None:
        return None
    return defined_view(operand.memory, operand.address, (REGISTER_BYTES,), (1,))


# ------------------------------------------------------------------------------------------- comparisons
def _compare_to_tensor(call: Call, a: Any, *, name: str, legacy: bool) -> MicroOp:
    lanes = leading(256 // np.dtype(a.src0.dtype).itemsize)
    sources = walks(call, a, ("src0", "src1"), lanes, a.repeat_times, legacy)
    octets = lanes.extent // 8
    dst = Walk("dst", a.dst, leading(octets), a.repeat_times, octets, dtype="uint8")
    result = micro_op(call, a.src0.dtype, dst, sources)
    if a.repeat_times > 1 and any(dst.meets(source) for source in sources):
        call.questionable("overlap", "dst may overlap a source only when repeat_times is 1")
    ordered = any(dst.feeds_later(source) for source in sources if dst.meets(source))
    condition = CONDITIONS[name]
    arithmetic = Arithmetic(lambda x, y: np.packbits(condition(x, y), axis=-1, bitorder="little"), "compare", name)
    result.run = executor(arithmetic, dst, sources, ordered, lanes)
    marked = [marks_of(walk.operand) for walk in (dst, *sources)]
    if None not in marked:  # all lanes are compared, those behind a tail too: their bits are undefined then
        kind = f"uint{8 * sources[0].itemsize}"
        defined = np.iinfo(kind).max // 255  # every byte is 1

        def octets_with_defined_lanes(x: np.ndarray, y: np.ndarray) -> np.ndarray:
            return ((x == defined) & (y == defined)).reshape(*x.shape[:-1], -1, 8).any(-1).view(np.uint8)

        to, *origins = (
            replace(walk, operand=operand, dtype=name)
            for walk, operand, name in zip((dst, *sources), marked, ("uint8", kind, kind))
        )
        result.run_defined = executor(Arithmetic(octets_with_defined_lanes), to, origins, ordered, lanes)
    return result


def _compare_to_register(call: Call, a: Any, *, name: str) -> MicroOp:
    a.src0_rep_stride = a.src1_rep_stride = 0
    handle = call.context.result
    if a.mask.extent == 0:
        result = idle(call, a.src0.dtype, 1, a.mask)
        result.run = partial(setattr, call.core, "cmpmask_owner", handle)
        return result
    sources = walks(call, a, ("src0", "src1"), a.mask, 1, True)
    result = micro_op(call, a.src0.dtype, None, sources, mask=a.mask)
    first, second = (source.loader() for source in sources)
    condition, core, enabled = CONDITIONS[name], call.core, a.mask.array
    touched = np.packbits(enabled, bitorder="little") > 0

    def run() -> None:
        bits = np.unpackbits(register(core), bitorder="little")
        np.copyto(bits[: enabled.size], condition(first(0), second(0)).view(np.uint8), where=enabled)
        register(core)[:] = np.packbits(bits, bitorder="little")
        core.cmpmask_undefined[: touched.size][touched] = 0
        core.cmpmask_owner = handle

    result.run = run
    return result


for _name in CONDITIONS:
    for _legacy in (False, True):
        instruction(
            f"{'v' if _legacy else 'vec_'}cmpv_{_name}",
            params=(
                Tensor("dst", dtypes=BIT_DTYPES),
                Tensor("src0"),
                Tensor("src1"),
                repeat(),
                *strides(("src0", "src1"), _legacy, 255),
                *(legacy_tail() if _legacy else ()),
            ),
            dtypes=FLOATS,
            pipe="V",
            cost="cmp",
            doc=f"bits of src0 {_name} src1, all lanes",
        )(partial(_compare_to_tensor, name=_name, legacy=_legacy))
    instruction(
        f"vcmp_{_name}",
        params=(Mask(("src0",)), Tensor("src0"), Tensor("src1"), stride("src0_blk_stride"), stride("src1_blk_stride")),
        dtypes=FLOATS,
        pipe="V",
        cost="cmp",
        returns="cmpmask",
        doc=f"compare-mask register = src0 {_name} src1, one repeat",
    )(partial(_compare_to_register, name=_name))


# ------------------------------------------------------------------------------------------- the register
@instruction(
    "mov_cmpmask_to_tensor", params=(CompareBits("dst"), CompareMask("src", tensor=False)), pipe="V", cost="simple"
)
def mov_cmpmask_to_tensor(call: Call, a: Any) -> MicroOp:
    """Store the 128 bits of the compare-mask register"""
    dst = Walk("dst", a.dst, leading(REGISTER_BYTES), 1, 0, dtype="uint8")
    result = micro_op(call, "uint8", dst, ())
    store, core, marks = dst.storer(), call.core, _marks(dst)

    def run() -> None:
        check_current(call, a.src)
        store(0, register(core))

    result.run = run
    if marks is not None:
        result.run_defined = lambda: np.subtract(1, core.cmpmask_undefined, out=marks)
    return result


@instruction("mov_tensor_to_cmpmask", params=(CompareBits("src"),), pipe="V", cost="simple", returns="cmpmask")
def mov_tensor_to_cmpmask(call: Call, a: Any) -> MicroOp:
    """Load the 128 bits of the compare-mask register"""
    src = Walk("src", a.src, leading(REGISTER_BYTES), 1, 0, dtype="uint8")
    result = micro_op(call, "uint8", None, (src,))
    load, core, handle, marks = src.loader(), call.core, call.context.result, _marks(src)

    def run() -> None:
        register(core)[:] = load(0)
        core.cmpmask_owner = handle

    result.run = run
    if marks is not None:
        result.run_defined = lambda: np.subtract(1, marks, out=core.cmpmask_undefined)
    return result


# ------------------------------------------------------------------------------------------- selection
class SelectMode(Choice):
    """``mode`` of a selection: only 0, between two tensors, exists on Ascend 910."""

    def __init__(self) -> None:
        super().__init__("mode", (0, 1, 2))

    def check(self, value: Any, call: Call) -> None:
        super().check(value, call)
        if value != 0:
            call.fail(f"mode {value} does not exist on Ascend 910, only 0 does", TikUnsupportedArgumentError)


def _select(call: Call, a: Any, *, legacy: bool) -> MicroOp:
    dst, *sources = walks(call, a, ("dst", "src0", "src1"), a.mask, a.repeat_times, legacy)
    if isinstance(a.sel, ir.CmpMask):
        choice, core = None, call.core
    else:
        # The same bits serve every repeat: they are loaded once.
        choice = Walk("sel", a.sel, leading(BLOCK // np.dtype(a.dst.dtype).itemsize), 1, 0, dtype="uint8")
    extent = dst.lanes.extent
    current = np.zeros(extent, bool)

    arithmetic = Arithmetic(lambda x, y: np.where(current, x, y), raw=True)
    result = element_wise(call, arithmetic, dst, sources, mask=a.mask)
    if result.run is None:
        return result
    choose = result.run

    if choice is None:

        def run() -> None:
            check_current(call, a.sel)
            bits = register(core)
            if core.cmpmask_undefined[: -(-extent // 8)].any():
                call.questionable(
                    "undefined", f"the compare mask holds undefined bits among the first {extent}", TikUndefinedError
                )
            current[:] = np.unpackbits(bits, bitorder="little", count=extent)
            choose()
    else:
        bits = choice.access(call)
        result.reads, result.examined = (*result.reads, bits), (bits,)
        marks = _marks(choice)
        if dst.meets(choice):
            call.questionable("overlap", "dst and sel must not overlap")
        load = choice.loader()

        def run() -> None:
            if marks is not None and not marks[: -(-extent // 8)].all():
                call.questionable("undefined", f"sel holds undefined bits among the first {extent}", TikUndefinedError)
            current[:] = np.unpackbits(load(0), bitorder="little", count=extent)
            choose()

    result.run = run
    return result


for _legacy in (False, True):
    _blocks = tuple(stride(f"{name}_blk_stride", default=1) for name in ("dst", "src0", "src1")) if _legacy else ()
    instruction(
        "vsel" if _legacy else "vec_sel",
        params=(
            Mask(),
            SelectMode(),
            Tensor("dst"),
            CompareMask("sel", tensor=True),
            Tensor("src0"),
            Tensor("src1"),
            repeat(),
            *_blocks,
            *(stride(f"{name}_rep_stride", default=0) for name in ("dst", "src0", "src1")),
            *(legacy_tail() if _legacy else ()),
        ),
        dtypes=FLOATS,
        pipe="V",
        cost="sel",
        doc="bit ? src0 : src1",
    )(partial(_select, legacy=_legacy))
