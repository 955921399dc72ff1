"""One call of an instruction while it is checked or bound: who calls, on what, and how to complain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable

from ..errors import TikBoundsError, TikError, TikParamError
from ..options import Options
from .micro_op import Access, MicroOp

#: Tells questionable use: its class, the error of strict mode, the message.
Report = Callable[[str, "type[TikError]", str], None]


@dataclass(eq=False)
class CoreState:
    """Registers of one core that outlive an instruction."""

    cmpmask: Any = None  # numpy uint8[16]
    cmpmask_undefined: Any = None  # numpy uint8[16]: 1 where a byte of cmpmask came from undefined bytes (strict mode)
    cmpmask_owner: int | None = None  # uid of the CmpMask handle it holds
    atomic_add: bool = False


@dataclass(eq=False)
class BindContext:
    """Hold what an instruction may look at while it is bound.

    ``report(kind, error_class, message)`` tells questionable use: a TikWarning, a finding or an error;
    ``fault(error_class, message)`` raises with the user's line appended.
    """

    soc: Any  # soc.SocProfile: limits and timing constants
    options: Options
    core: CoreState
    report: Report
    fault: Callable[[type, str], None]
    static_arguments: bool = True  # every integer argument was an immediate
    result: int | None = None  # uid of the CmpMask handle that the call returns
    free_bytes: Mapping[str, int] = field(default_factory=dict)  # by memory, bytes that live tensors leave, if known


class Call:
    """One call being checked or bound: who calls, with what, on what, and how to complain.

    Attributes:
        api: instruction name.
        pipe, cost: as its entry in the table states them.
        args: all arguments by parameter name (as recorded, or resolved).
        soc: the SoC profile.
        options: how the program is recorded or run.
        context: the BindContext; None while the call is recorded.
        dead: it is recorded where it never runs.
    """

    __slots__ = ("api", "pipe", "cost", "args", "soc", "options", "context", "dead", "_report")

    def __init__(
        self,
        api: str,
        pipe: str,
        cost: str,
        args: Mapping[str, Any],
        soc: Any,
        options: Options,
        report: Report,
        context: BindContext | None = None,
        dead: bool = False,
    ) -> None:
        self.api, self.pipe, self.cost, self.args = api, pipe, cost, args
        self.soc, self.options, self._report, self.context = soc, options, report, context
        self.dead = dead

    @property
    def runtime(self) -> bool:
        """Return False while the call is recorded, True while it is bound."""
        return self.context is not None

    @property
    def core(self) -> CoreState:
        """Return the registers of the executing core (when bound)."""
        return self.context.core

    def operation(
        self,
        cycles: float,
        latency: str = "",
        reads: Sequence[Access] = (),
        writes: Sequence[Access] = (),
        run: Callable[[], None] | None = None,
        *,
        pipe: str = "",
        constants: tuple[str, ...] = (),
        **more: Any,
    ) -> MicroOp:
        """Return a micro-operation of this call.

        Args:
            cycles, reads, writes, run: see :class:`MicroOp`.
            latency: name of the constant in ``soc.timing``; without one the result can be used at once.
            pipe: another one than the entry states.
            constants: names of the constants that ``cycles`` rests on.
            more: other attributes of the micro-operation.
        """
        value = getattr(self.soc.timing, latency) if latency else 0
        constants = (*constants, latency) if latency else constants
        return MicroOp(
            self.api, pipe or self.pipe, cycles, value, tuple(reads), tuple(writes), run, constants=constants, **more
        )

    def fail(self, message: str, error: type[TikError] = TikParamError) -> None:
        """Raise ``error`` with the API's name in front of the message."""
        message = f"{self.api}: {message}"
        if self.context is not None:
            self.context.fault(error, message)
        raise error(message)

    def fail_range(self, argument: str, value: Any, allowed: str) -> None:
        """Raise the error for a value outside its range. In code that never runs it is questionable only (D16h)."""
        message = f"{argument} must be {allowed}, got {value!r}"
        if self.dead:
            self.questionable("argument", f"{message}; the call never runs")
        else:
            self.fail(message, TikBoundsError if self.runtime else TikParamError)

    def questionable(self, kind: str, message: str, error: type[TikError] = TikParamError) -> None:
        """Tell questionable use of a class of ``findings.CLASSES``: a TikWarning; in strict mode ``error``."""
        self._report(kind, error, f"{self.api}: {message}")
