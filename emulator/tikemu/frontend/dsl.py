"""The container of a kernel: ``tik.Tik`` (core.md 1.1, 3, 5.1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..program import ir
from ..program.location import fail, read_again
from . import build, platform_info
from .control import ElifScope, ElseScope, ForRange, IfScope, StatementScope
from .debugger import Tikdb
from .define import Definitions
from .dprofile import Dprofile
from .instruction_methods import instruction_methods
from .recorder import PublicObject, Recorder
from .signatures import checked_methods
from .tracebacks import short_operators

SCOPE_GM, SCOPE_UBUF, SCOPE_CBUF, SCOPE_CBUF_OUT = "global", "local.UB", "local.L1", "local.L1OUT"
SCOPE_CA, SCOPE_CB, SCOPE_CC = "local.L0A", "local.L0B", "local.L0C"


@short_operators
class Tik(Definitions, PublicObject):
    """One kernel. Statements are recorded in program order; nothing runs before ``tikemu.run`` or ``start_debug``.

    Args:
        profiling: a Dprofile, or None for the selected SoC.
        disable_debug: True makes ``tikdb`` unusable.
        err_msg_level: 0 or 1; accepted, errors always name the user's line.
        block_size: 32, no other value.

    Attributes:
        d_profiling: the Dprofile.
        tikdb: the functional debugger.
    """

    def __init__(
        self,
        profiling: Dprofile | None = None,
        disable_debug: bool = True,
        err_msg_level: int = 0,
        block_size: int = 32,
    ) -> None:
        if profiling is not None and not isinstance(profiling, Dprofile):
            fail(f"profiling must be a Dprofile or None, got {profiling!r}")
        if not isinstance(disable_debug, (bool, int)):
            fail(f"disable_debug must be a bool, got {disable_debug!r}")
        if err_msg_level not in (0, 1):
            fail(f"err_msg_level must be 0 or 1, got {err_msg_level!r}")
        if block_size != 32:
            fail(f"block_size must be 32, got {block_size!r}")
        read_again()
        soc = platform_info.current_soc() if profiling is None else profiling._soc()
        self._recorder = Recorder(soc, debug_enabled=not disable_debug)
        self.d_profiling = Dprofile() if profiling is None else profiling
        self.tikdb = Tikdb(self._recorder)

    def __str__(self) -> str:
        from ..program.printer import dump

        return dump(self)

    def _unknown(self, name: str) -> str:
        return f"Tik has no API {name!r} that is known for Ascend 910"

    # ------------------------------------------------------------------------------------------ control
    def for_range(
        self,
        begint: Any,
        endt: Any,
        name: str = "i",
        thread_num: int = 1,
        thread_type: str = "whole",
        block_num: Any = 1,
        dtype: str = "int32",
        for_type: str = "serial",
        **later: Any,
    ) -> ForRange:
        """Open a loop, ``with tik_instance.for_range(begin, end) as i``: the body for begin <= i < end (core.md 3.1).

        Args:
            begint, endt: integers, Scalars or integer Exprs with 0 <= begint <= endt <= 2147483647.
            name: name of the loop variable.
            thread_num: 0 to 4; n >= 2 gives tensors of the body n copies, so that iterations can overlap.
            block_num: 1 to 65535; more than 1 makes this the multi-core loop (begint 0, endt equal to block_num).
            thread_type, dtype, for_type: reserved; ``later``: keywords of later releases, without effect on 910.

        Raises:
            TikParamError: a bound or a combination that core.md 3.1 forbids.
        """
        return ForRange(self._recorder, begint, endt, name, thread_num, thread_type, block_num, dtype, for_type, later)

    def if_scope(self, cond: Any) -> IfScope:
        """Open a branch, ``with tik_instance.if_scope(cond)``: the body if ``cond`` is true (core.md 3.2)."""
        return IfScope(self._recorder, cond)

    def elif_scope(self, cond: Any) -> ElifScope:
        """Continue the if_scope or elif_scope directly before."""
        return ElifScope(self._recorder, cond)

    def else_scope(self) -> ElseScope:
        """End the if_scope or elif_scope directly before."""
        return ElseScope(self._recorder)

    def new_stmt_scope(self, disable_sync: bool = False) -> StatementScope:
        """Open a block of its own; ``disable_sync=True``: nothing is synchronised inside (core.md 3.4)."""
        return StatementScope(self._recorder, disable_sync)

    def tik_break(self) -> None:
        """End the innermost for_range."""
        loop = self._recorder.enclosing_loop()
        if loop is None:
            fail("tik_break is allowed only inside for_range")
        if not (ir.is_immediate(loop.block_num) and loop.block_num == 1):
            fail("tik_break is not allowed directly in the multi-core loop")
        loop.thread_num = 1
        self._recorder.record(ir.Break)

    def tik_continue(self) -> None:
        """Go on with the next iteration of the innermost for_range."""
        if self._recorder.enclosing_loop() is None:
            fail("tik_continue is allowed only inside for_range")
        self._recorder.questionable(
            "undocumented", "tik_continue has no documentation; taken as the next iteration of the innermost loop"
        )
        self._recorder.record(ir.Continue)

    def tik_return(self) -> None:
        """Leave the kernel (this block of it)."""
        self._recorder.record(ir.Return)

    # ------------------------------------------------------------------------------------------ build
    def BuildCCE(
        self,
        kernel_name: str,
        inputs: Any,
        outputs: Any,
        output_files_path: str | None = None,
        enable_l2: bool = False,
        config: Mapping[str, Any] | None = None,
        flowtable: Any = None,
        evaluates: Any = None,
        extend_params: Any = None,
    ) -> None:
        """Close the program and check it as a whole (core.md 5.1). No files are written.

        Args:
            kernel_name: name of the kernel, an identifier.
            inputs: GM Tensors and InputScalars, at most 64, in the order of the kernel's arguments.
            outputs: GM Tensors, at most 64.
            flowtable: GM Tensors and InputScalars of the tiling table; they are inputs too, fed by name.
            evaluates: accepted without effect, which is questionable.
            output_files_path, enable_l2, config, extend_params: accepted, no effect.

        Raises:
            TikParamError: a bad name, argument list or argument.
            TikBuildError: a scope is open, the program is built already, or it uses a GM tensor that is no argument.
            TikMemoryError: the tensors that live at one time do not fit their memory.
        """
        build.build(self._recorder, kernel_name, inputs, outputs, config, flowtable, evaluates)


checked_methods(Tik, ["__init__", *(name for name in platform_info.CONTAINER_APIS if hasattr(Tik, name))])
for _name, _method in instruction_methods().items():
    setattr(Tik, _name, _method)
