"""``tik_instance.tikdb``: run a built program on given data (core.md 5.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import processes
from ..errors import TikDebugError
from ..findings import Finding
from ..options import default_options
from ..program import ir
from ..program.location import fail, warn
from ..result import Overflow
from .recorder import PublicObject, Recorder
from .signatures import checked_methods


class Tikdb(PublicObject):
    """The functional debugger of one kernel; needs ``tik.Tik(disable_debug=False)``.

    Attributes:
        overflow: where results of the last ``start_debug`` saturated (:class:`tikemu.Overflow`, false if nowhere); None
            before.
        findings: of the last ``start_debug`` (see ``Result.findings``).
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.overflow: Overflow | None = None
        self.findings: tuple[Finding, ...] = ()

    def start_debug(self, feed_dict: Mapping[str, Any], interactive: bool = True) -> list[np.ndarray]:
        """Run the kernel.

        Args:
            feed_dict: a NumPy array (or a number for an InputScalar) by the name of each input.
            interactive: the documented prompt does not exist here; True gives a warning and runs to the end.

        The final contents of global memory are written back into the arrays of ``feed_dict`` that can be written.
        The public unit tests of operators expect this.

        Returns:
            One array per output, in the order and with the shapes of the outputs; ``[[0]]`` without outputs.

        Raises:
            TikDebugError: debugging is disabled, or BuildCCE was not called.
        """
        self._require_debug("start_debug")
        if not self._recorder.built:
            fail("start_debug must follow BuildCCE", TikDebugError)
        if interactive:
            warn("tikemu has no debugger prompt; interactive=True is taken as False")
        program = self._recorder.program
        self.overflow, self.findings = None, ()
        options = default_options()
        result = processes.run(program, feed_dict, timing=False, options=options, write_back=True)
        self.overflow, self.findings = result.overflow, result.findings
        if not program.outputs:
            return [np.zeros(1, np.int64)]
        return [result.outputs[view.tensor.name] for view in program.outputs]

    def debug_print(self, expression: str) -> None:
        """Print the value of a tensor, scalar or expression at this point of the kernel.

        Args:
            expression: names of tensors and scalars that are in scope here, with Python's operators and indexing.

        Raises:
            TikDebugError: debugging is disabled, or BuildCCE was called already.
        """
        self._require_debug("debug_print")
        recorder = self._recorder
        if recorder.built:
            fail("debug_print must stand between statements, before BuildCCE", TikDebugError)
        if not isinstance(expression, str):
            fail(f"debug_print takes a string, got {expression!r}")
        try:
            compile(expression, "<debug_print>", "eval")
        except SyntaxError as error:
            fail(f"debug_print: {expression!r} is no expression ({error.msg})")
        names = {}
        for name, value in recorder.visible().items():
            variables = getattr(value, "_variables", None)
            names[name] = list(variables) if isinstance(variables, tuple) else value._node
        recorder.record(ir.DebugPrint, expression=expression, scope=names)

    def _require_debug(self, what: str) -> None:
        if not self._recorder.program.debug_enabled:
            fail(f"tikdb.{what} needs tik.Tik(disable_debug=False)", TikDebugError)


checked_methods(Tikdb, ("start_debug", "debug_print"))
