"""Running built programs from Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import processes
from .errors import TikBuildError
from .frontend.tracebacks import short_traceback
from .options import Options
from .program import ir
from .program.location import fail
from .settings import default_options


@short_traceback
def run(
    tik_instance: Any,
    inputs: Mapping[str, Any],
    *,
    numerics: bool = True,
    timing: bool = True,
    options: Options | None = None,
) -> Any:
    """Execute a built kernel; works whatever ``disable_debug`` is.

    Args:
        tik_instance: the ``tik.Tik`` instance after BuildCCE, or its :class:`tikemu.program.ir.Program`.
        inputs: NumPy array (number for an InputScalar) by name.
        numerics: compute the results. Without, only the time is estimated, several times faster.
        timing: estimate the time.
        options: see :class:`tikemu.Options`. Default: the options in force (``tikemu.use_options``).

    Returns:
        tikemu.Result: outputs by name, cycles, shares of the pipes, counts per instruction, peak memory.

    Raises:
        TikBuildError: BuildCCE was not called.
        TikError: the program breaks a rule while it runs; the message names the line.
    """
    program = tik_instance
    if not isinstance(program, ir.Program):
        if not tik_instance._recorder.built:
            fail("run needs a built kernel: call BuildCCE first", TikBuildError)
        program = tik_instance._recorder.program
    options = default_options() if options is None else options
    return processes.run(program, inputs, numerics=numerics, timing=timing, options=options)
