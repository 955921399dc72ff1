"""Running built programs from Python."""

from __future__ import annotations

from collections.abc import Mapping

from numpy.typing import ArrayLike

from . import environment, processes
from .errors import TikBuildError
from .frontend.dsl import Tik
from .frontend.tracebacks import short_traceback
from .options import Options, default_options
from .program import ir
from .program.location import fail
from .result import Result


@short_traceback
def run(
    tik_instance: Tik | ir.Program,
    inputs: Mapping[str, ArrayLike],
    *,
    numerics: bool = True,
    timing: bool = True,
    options: Options | None = None,
) -> Result:
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
        TikEnvironmentError: an environment variable of tikemu has a value without meaning.
        TikError: the program breaks a rule while it runs; the message names the line.
    """
    environment.check()
    program = tik_instance if isinstance(tik_instance, ir.Program) else tik_instance._recorder.program
    if not isinstance(tik_instance, ir.Program) and not tik_instance._recorder.built:
        fail("run needs a built kernel: call BuildCCE first", TikBuildError)
    options = default_options() if options is None else options
    return processes.run(program, inputs, numerics=numerics, timing=timing, options=options)
