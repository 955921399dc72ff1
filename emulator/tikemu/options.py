"""Define the options of a run, and hold those in force."""

from __future__ import annotations

import contextlib
import contextvars
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .errors import did_you_mean
from .findings import CLASSES
from .soc import TimingModel

SYNC_VARIANTS = ("auto", "conservative", "optimistic")
FINDINGS = ("first", "all")
BOUNDS = ("tensor", "buffer")
PLACEMENTS = ("definition", "first use")


# Keyword-only fields need Python 3.10; on 3.9 positional arguments are not refused.
@dataclass(frozen=True, **({"kw_only": True} if sys.version_info >= (3, 10) else {}))
class Options:
    """Options of :func:`tikemu.run`.

    Attributes:
        strict: every questionable or undefined use is an error: undefined bytes that reach a computation or an output,
            races inside unsynchronised scopes and between cores, illegal overlap, the smaller Unified Buffer.
            Default: False.
        findings: of strict mode. "first": the first one is raised; "all": the program goes on as in default mode, and
            ``Result.findings`` lists them. Default: "first".
        leave_out: classes of findings that strict mode leaves out, keys of ``tikemu.findings.CLASSES``: they are
            judged as in default mode. Default: none.
        ub_reported: what ``get_soc_spec("UB_SIZE")`` answers. Default: None, which is 262144.
        bounds: what accesses to on-chip tensors are checked against. "tensor": the tensor; "buffer": the memory that
            holds it, with a warning (strict: error) if an access leaves its tensor. What it meets there depends on
            the placement, which is not documented. Default: "tensor".
        placement: order in which the tensors of a scope get addresses: "definition" or "first use". Default:
            "definition". A correct program does not depend on it.
        sync: which dependences the automatic synchronisation knows. "auto": byte ranges if TIK knows the addresses
            at build time, whole tensors otherwise; "conservative": whole tensors always; "optimistic": byte ranges
            always. Default: "auto".
        l2: model the L2 buffer: lines of global memory read before are served faster. Default: False, every read is a
            miss.
        active_cores: cores that share the memory bandwidth. Default: None, which is as many as the program uses.
        constants: constants of the timing model (``soc.timing.names()``) that have another value in this run, by name.
            Kept as a tuple of pairs. Default: none.
        trace: keep the events for ``Result.save_trace``. Default: True.
        max_trace_events: events kept for each of the first two cores, the first ones. Default: 200000.
        reuse: keep what was bound, simulated and compiled for later executions and runs
            (see ``tikemu.machine.runtime.Reusable``). False: everything is done anew each time, which takes much longer
            and gives the same. Default: True.
        processes: processes that execute the blocks of a program, with the same results, errors and times (see
            :mod:`tikemu.processes`). Default: None, which is the number in the environment variable TIKEMU_PROCESSES,
            or else 1: the calling process executes them.
        progress: show a progress bar on standard error. Default: None, which is only on a terminal.
    """

    strict: bool = False
    findings: str = "first"
    leave_out: tuple[str, ...] = ()
    ub_reported: int | None = None
    bounds: str = "tensor"
    placement: str = "definition"
    sync: str = "auto"
    l2: bool = False
    active_cores: int | None = None
    constants: Mapping[str, float] | tuple[tuple[str, float], ...] = ()
    trace: bool = True
    max_trace_events: int = 200_000
    reuse: bool = True
    processes: int | None = None
    progress: bool | None = None

    def __post_init__(self) -> None:
        choices = ("findings", FINDINGS), ("sync", SYNC_VARIANTS), ("bounds", BOUNDS), ("placement", PLACEMENTS)
        for name, allowed in choices:
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        for name in ("ub_reported", "active_cores", "processes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1 or None, got {value!r}")
        if isinstance(self.leave_out, str):
            raise TypeError(f"leave_out must be a tuple of classes, got the string {self.leave_out!r}")
        for kind in self.leave_out:
            if kind not in CLASSES:
                hint = did_you_mean(kind, CLASSES)
                raise ValueError(f"leave_out must hold classes among {', '.join(CLASSES)}, got {kind!r}{hint}")
        object.__setattr__(self, "leave_out", tuple(self.leave_out))
        pairs = tuple(sorted(dict(self.constants).items()))
        TimingModel(**dict(pairs))  # knows the names
        object.__setattr__(self, "constants", pairs)

    def checks(self, kind: str) -> bool:
        """Return whether questionable use of this class is a finding. Else default mode's rules hold."""
        return self.strict and kind not in self.leave_out

    def raises(self, kind: str) -> bool:
        """Return whether it is an error at once."""
        return self.checks(kind) and self.findings == "first"


#: Options that hold if a program gives none: while it is recorded, and in ``tikdb.start_debug``.
_default = Options()
#: Options of the open ``use_options`` block, one for each thread: blocks of two threads end in any order.
_block: contextvars.ContextVar[Options | None] = contextvars.ContextVar("tikemu options", default=None)


def default_options() -> Options:
    """Return the options in force."""
    return _block.get() or _default


def set_default_options(options: Options) -> Options:
    """Replace the options in force; returns the former options.

    Inside a ``use_options`` block they hold to its end, elsewhere for all threads.
    """
    global _default
    _require_options(options)
    before = default_options()
    if _block.get() is None:
        _default = options
    else:
        _block.set(options)
    return before


@contextlib.contextmanager
def use_options(options: Options) -> Iterator[Options]:
    """Record and debug with these options: ``with tikemu.use_options(tikemu.Options(strict=True)): ...``.

    They hold in the thread that opens the block.
    """
    _require_options(options)
    token = _block.set(options)
    try:
        yield options
    finally:
        _block.reset(token)


def _require_options(options: Options) -> None:
    if not isinstance(options, Options):
        raise TypeError(f"options must be a tikemu.Options, got {type(options).__name__}")
