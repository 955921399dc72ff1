"""What one entry of the instruction table is, and what executing it yields.

An :class:`InstructionSpec` is made by the :func:`instruction` decorator. The front end turns every spec into a method
of ``Tik`` (its signature comes from ``params``) and calls :meth:`InstructionSpec.check` when the call is recorded. The
machine calls :meth:`InstructionSpec.bind` once per distinct set of resolved arguments; the resulting micro-operations
are cached and executed many times.

An entry reads::

    @instruction("vec_abs", params=(Mask("mask"), Tensor("dst"), Tensor("src"), repeat(), ...),
                 typed=("dst", "src"), dtypes=("float16", "float32"), pipe="V", cost="simple")
    def vec_abs(call, a):
        ...
        return MicroOp(call.api, "V", ...)

``a`` holds the resolved arguments by name: operands, numbers, masks; ``call`` complains, and knows SoC and core.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Callable, Union

from ..errors import TikBoundsError, TikParamError, TikUnsupportedArgumentError
from .region import Memory, Region

if TYPE_CHECKING:
    from .params import Param


@dataclass(frozen=True, eq=False)
class Operand:
    """A tensor operand with its run-time address.

    Attributes:
        memory: the memory (on-chip buffer of one core, or one GM tensor) that holds it.
        address: byte address of the first element inside ``memory``.
        start, end: bytes of the whole allocation (this copy of it, under multi-buffering).
        dtype, shape, strides: of the view; strides in elements.
        name: the tensor's name, for messages.
        static: True when TIK could know the address at build time (immediate offset).
    """

    memory: Memory
    address: int
    start: int
    end: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    name: str
    static: bool = True


@dataclass(frozen=True, eq=False)
class Access:
    """Bytes of an operand that a micro-operation reads or writes."""

    operand: Operand
    region: Region


@dataclass(frozen=True)
class Transfer:
    """A move between global memory and a core, costed by the timing engine (bandwidth is shared by the cores).

    ``bursts`` x ``burst_bytes`` bytes, ``pitch`` bytes start to start on the GM side.
    """

    direction: str  # "read" | "write" | "atomic"
    bursts: int
    burst_bytes: int
    pitch: int


@dataclass(eq=False)
class MicroOp:
    """One occupation of one pipe.

    Attributes:
        name: instruction name for reports.
        pipe: "S", "V", "M", "MTE1", "MTE2" or "MTE3".
        cycles: occupation of the pipe (ignored where ``transfer`` is given).
        latency: cycles from the end of the occupation until the result can be used by another instruction.
        reads, writes: byte-exact footprints.
        run: performs the numerics. None: nothing to do (flags, barriers).
        undefined: written bytes that hold no meaningful data afterwards (padding of an accumulator tile).
        run_defined: for pure copies: moves the "defined" bits instead of checking the sources. None: all bytes read
            must be defined, all bytes written become so.
        transfer: set on GM traffic.
        code_bytes: estimated size of the instruction and its argument set-up in the unrolled program.
        accumulate: an ``mmad`` that reads its own destination: ordering inside PIPE_M as in timing.md 3.1.
        barrier: for ``pipe_barrier``: the pipe drained, "ALL" for every pipe; "BLOCKS" for ``block_barrier``.
        flag: for ``set_flag`` and ``wait_flag``: ("set" | "wait", source pipe, destination pipe, event id).
        mask: value of the mask register the instruction needs (PIPE_S writes it when it changes). None: uses no mask.
        macs: multiply-accumulates of valid elements, for the utilisation of the Cube.
        constants: names of the ``soc.timing`` constants that ``cycles`` and ``latency`` rest on, for the report.
        operands: the tensor operands in the order of the call, where ``moved`` is given.
        moved: ``f(addresses) -> (run, run_defined)`` for other byte addresses of ``operands``, with the same remainders
            and the same overlap.
        rescale: sets the scalar operand that ``run`` uses.
    """

    name: str
    pipe: str
    cycles: float
    latency: float
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    run: Callable[[], None] | None
    undefined: tuple[Access, ...] = ()
    run_defined: Callable[[], None] | None = None
    transfer: Transfer | None = None
    code_bytes: int = 32
    accumulate: bool = False
    barrier: str | None = None
    flag: tuple[str, str, str, int] | None = None
    mask: tuple[int, int] | None = None
    macs: int = 0
    constants: tuple[str, ...] = ()
    operands: tuple[Operand, ...] = ()
    moved: Callable[[Sequence[int]], tuple[Callable[[], None], Callable[[], None] | None]] | None = None
    rescale: Callable[[float], None] | None = None


@dataclass(eq=False)
class CoreState:
    """Registers of one core that outlive an instruction."""

    cmpmask: Any = None  # numpy uint8[16]
    cmpmask_undefined: Any = None  # numpy uint8[16]: 1 where a byte of cmpmask came from undefined bytes (strict mode)
    cmpmask_owner: int | None = None  # uid of the CmpMask handle it holds
    atomic_add: bool = False


@dataclass(eq=False)
class BindContext:
    """What an instruction may look at while it is bound.

    ``warn(message)`` issues a TikWarning, or raises in strict mode; ``fault(error_class, message)`` raises with the
    user's line appended.
    """

    soc: Any  # soc.SocProfile: limits and timing constants
    strict: bool
    core: CoreState
    warn: Callable[[str], None]
    fault: Callable[[type, str], None]
    static_arguments: bool = True  # every integer argument was an immediate
    result: int | None = None  # uid of the CmpMask handle that the call returns
    bounds: str = "tensor"  # what accesses are checked against: "tensor", or the "buffer" that holds it
    extra: dict[str, Any] = field(default_factory=dict)


class Call:
    """One call being checked or bound: who calls, with what, on what, and how to complain.

    Attributes:
        api: instruction name.
        args: all arguments by parameter name (as recorded, or resolved).
        soc: the SoC profile.
        strict: questionable use is an error.
        context: the BindContext; None while the call is recorded.
    """

    __slots__ = ("api", "args", "soc", "strict", "context", "_warn")

    def __init__(
        self,
        api: str,
        args: Mapping[str, Any],
        soc: Any,
        strict: bool,
        warn: Callable[[str], None],
        context: BindContext | None = None,
    ) -> None:
        self.api, self.args, self.soc, self.strict, self._warn, self.context = api, args, soc, strict, warn, context

    @property
    def runtime(self) -> bool:
        """False while the call is recorded, True while it is bound."""
        return self.context is not None

    @property
    def core(self) -> CoreState:
        """Registers of the executing core (when bound)."""
        return self.context.core

    def fail(self, error: type, message: str) -> None:
        """Raise ``error`` with the API's name in front of the message."""
        message = f"{self.api}: {message}"
        if self.context is not None:
            self.context.fault(error, message)
        raise error(message)

    def fail_range(self, argument: str, value: Any, allowed: str) -> None:
        """Raise the error for a value outside its range."""
        self.fail(TikBoundsError if self.runtime else TikParamError, f"{argument} must be {allowed}, got {value!r}")

    def questionable(self, message: str, error: type = TikParamError) -> None:
        """Default mode: a warning. Strict mode: ``error``."""
        if self.strict:
            self.fail(error, message)
        self._warn(f"{self.api}: {message}")


Binder = Callable[[Call, Any], Union[MicroOp, Iterable[MicroOp], None]]


@dataclass(frozen=True, eq=False)
class InstructionSpec:
    """One row of the instruction table.

    Attributes:
        name: API name (a method of ``Tik``).
        params: parameters in positional order.
        binder: ``f(call, arguments) -> MicroOp | iterable of MicroOp | None``; for kind "scalar" unused.
        typed: tensor parameters whose dtypes are checked together.
        dtypes: legal dtypes on Ascend 910: a string where all of ``typed`` share it, else a tuple in the order of
            ``typed``.
        tolerated: dtypes that the documents leave out but whose meaning is clear: warning, strict mode: error (D13b).
        pipe: executing pipe, for lists ("" if it depends on the operands).
        cost: cost class in ``soc.timing`` (for lists, and for ``vector_cycles``).
        kind: "instruction", or "scalar" (``evaluate`` gives the value assigned to ``destination``).
        returns: None, or "cmpmask" for calls that return a compare-mask handle.
        composite: not allowed inside ``new_stmt_scope(disable_sync=True)``.
        checker: further check of the recorded call, ``f(call)``; ``call.args`` holds the arguments.
        evaluate, destination: for kind "scalar".
        doc: one line.
    """

    name: str
    params: tuple[Param, ...]
    binder: Binder | None
    typed: tuple[str, ...] = ()
    dtypes: tuple[Any, ...] = ()
    tolerated: tuple[Any, ...] = ()
    pipe: str = ""
    cost: str = ""
    kind: str = "instruction"
    returns: str | None = None
    composite: bool = False
    checker: Callable[[Call], None] | None = None
    evaluate: Callable[[dict[str, Any]], Any] | None = None
    destination: str | None = None
    doc: str = ""

    @property
    def signature(self) -> inspect.Signature:
        """The documented signature (without ``self``)."""
        return inspect.Signature([param.signature() for param in self.params])

    @property
    def aliases(self) -> dict[str, str]:
        """Other keywords that programs use -> parameter names."""
        return {alias: param.name for param in self.params for alias in param.aliases}

    def arguments(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """All arguments by name, defaults filled in. Raises TypeError as any Python call does."""
        aliases = self.aliases
        kwargs = {aliases.get(name, name): value for name, value in kwargs.items()}
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}() {error}") from None
        bound.apply_defaults()
        return dict(bound.arguments)

    def check(self, args: Mapping[str, Any], soc: Any, strict: bool, warn: Callable[[str], None]) -> None:
        """Check the recorded call: types, memories, dtypes, immediates."""
        call = Call(self.name, args, soc, strict, warn)
        for param in self._check_order:
            param.check(args[param.name], call)
            if param is self._last_tensor:
                self._check_dtypes(call)
        if self.checker is not None:
            self.checker(call)

    def bind(self, ctx: BindContext, args: Mapping[str, Any]) -> tuple[MicroOp, ...]:
        """Check the resolved arguments and build the micro-operations."""
        call = Call(self.name, args, ctx.soc, ctx.strict, ctx.warn, ctx)
        values = SimpleNamespace(**{param.name: param.resolve(args[param.name], call) for param in self.params})
        result = self.binder(call, values)
        if result is None:
            return ()
        return (result,) if isinstance(result, MicroOp) else tuple(result)

    def supported(self, dtype: str = "") -> bool:
        """Whether Ascend 910 has the API (with ``dtype`` for one of its operands, or "src2dst")."""
        if not dtype or not self.dtypes:
            return True
        return any(
            dtype == entry if isinstance(entry, str) else dtype in entry or dtype == "2".join(reversed(entry))
            for entry in self.dtypes
        )

    @cached_property
    def _check_order(self) -> list[Param]:
        """Tensors first: other parameters depend on their dtypes."""
        return sorted(self.params, key=lambda param: not param.first)

    @cached_property
    def _last_tensor(self) -> Param | None:
        tensors = [param for param in self.params if param.first]
        return tensors[-1] if tensors else None

    def _check_dtypes(self, call: Call) -> None:
        if not self.dtypes:
            return
        came = tuple(_dtype_of(call.args[name]) for name in self.typed)
        same = came[0] if len(set(came)) == 1 else None
        if came in self.dtypes or (same is not None and same in self.dtypes):
            return
        listing = ", ".join(f"{name} {dtype}" for name, dtype in zip(self.typed, came))
        if came in self.tolerated or (same is not None and same in self.tolerated):
            call.questionable(f"no document lists {same or listing} for Ascend 910", TikUnsupportedArgumentError)
            return
        legal = ", ".join(entry if isinstance(entry, str) else "(" + ", ".join(entry) + ")" for entry in self.dtypes)
        if same is None and all(isinstance(entry, str) for entry in self.dtypes):
            call.fail(TikParamError, f"{' and '.join(self.typed)} must have the same dtype, got {listing}")
        call.fail(TikUnsupportedArgumentError, f"Ascend 910 takes {legal} for {', '.join(self.typed)}; got {listing}")


def _dtype_of(value: Any) -> str:
    return value[0].dtype if isinstance(value, (list, tuple)) else value.dtype


def instruction(*names: str, params: Sequence[Param], **fields: Any) -> Callable[[Binder], Binder]:
    """Enter a function into the instruction table under one or several names (see InstructionSpec for ``fields``).

    For ``kind="scalar"`` the decorated function is ``evaluate``; otherwise it is the binder.
    """
    from . import registry

    def enter(function: Binder) -> Binder:
        slot = "evaluate" if fields.get("kind") == "scalar" else "binder"
        doc = fields.pop("doc", None) or (inspect.getdoc(function) or "").split("\n")[0]
        for name in names:
            registry.add(InstructionSpec(name, tuple(params), **{"binder": None, slot: function, "doc": doc, **fields}))
        return function

    return enter
