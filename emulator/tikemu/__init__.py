"""tikemu: TIK programs of the Ascend 910 on a CPU.

``tikemu.install(soc="Ascend910A")`` makes ``tbe`` and ``te`` importable without CANN. A TIK program then runs
unmodified. ``tikemu.run`` gives results and an estimate of the time.
"""

from __future__ import annotations

from .api import run
from .errors import (
    Moment,
    TikAlignError,
    TikBoundsError,
    TikBuildError,
    TikCallError,
    TikDebugError,
    TikEnvironmentError,
    TikError,
    TikIndexError,
    TikMemoryError,
    TikParamError,
    TikProcessError,
    TikScopeError,
    TikSyncError,
    TikUndefinedError,
    TikUnknownApiError,
    TikUnsupportedArgumentError,
    TikUnsupportedError,
    TikWarning,
)
from .findings import Finding
from .options import Options, default_options, set_default_options, use_options
from .program.printer import dump
from .result import Overflow, OverflowPlace, Result
from .shim import install, uninstall

__version__ = "0.1.0"
__all__ = [
    "Finding",
    "Moment",
    "Options",
    "Overflow",
    "OverflowPlace",
    "Result",
    "TikAlignError",
    "TikBoundsError",
    "TikBuildError",
    "TikCallError",
    "TikDebugError",
    "TikEnvironmentError",
    "TikError",
    "TikIndexError",
    "TikMemoryError",
    "TikParamError",
    "TikProcessError",
    "TikScopeError",
    "TikSyncError",
    "TikUndefinedError",
    "TikUnknownApiError",
    "TikUnsupportedArgumentError",
    "TikUnsupportedError",
    "TikWarning",
    "default_options",
    "dump",
    "install",
    "run",
    "set_default_options",
    "uninstall",
    "use_options",
]
