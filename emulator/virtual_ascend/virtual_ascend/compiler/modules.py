"""The packages te and tbe: tikemu's modules, and modules that only MindSpore's build process asks for."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tikemu
from tikemu import shim
from tikemu.frontend import platform_info
from tikemu.frontend.build import latest
from tikemu.tik import Tik


def _set_version(soc: str, *_: Any) -> bool:
    """Select the chip for later compilations. MindSpore gives its settings of fusion and tuning too."""
    cores = int(os.environ["VIRTUAL_ASCEND_CORES"])
    return platform_info.select(soc, aicore_num=cores) is None


def _nothing(*_: Any) -> int:
    return 0


#: Whether BuildCCE writes its kernel. Tasks of MindSpore's compile processes write kernels themselves.
writes_files = True


def _build_cce(build: Callable[..., None]) -> Callable[..., None]:
    """Return BuildCCE that also writes kernel_meta/NAME.o and NAME.json, as CANN's does."""

    @functools.wraps(build)
    def write_too(self: Any, kernel_name: str, *arguments: Any, **named: Any) -> None:
        build(self, kernel_name, *arguments, **named)
        if writes_files:
            from ..operator_call import OperatorCall
            from .kernel_files import write

            program = latest()
            assert program is not None
            spelling = os.environ.get("VIRTUAL_ASCEND_SPELLING", "kernel0")
            write(OperatorCall(kernel_name, "", "", [], [], {}, program), Path("kernel_meta"), spelling)

    write_too.writes_files = True  # type: ignore[attr-defined]
    return write_too


def provide(more: Mapping[str, Mapping[str, Any]]) -> None:
    """Make them, and ``more`` modules by full name, importable below the folders of ../cann."""
    shim.complete(
        {
            "te.version": {"version": os.environ["VIRTUAL_ASCEND_CANN"]},
            "te.platform.cce_conf": {"te_set_version": _set_version},
            "te.platform.cce_policy": {"set_L1_info": _nothing},
            "tbe.common.rl_bank": {},
            "tbe.common.rl_bank.bank_manager": {"set_current_op_name": _nothing},
            "tbe.common.repository_manager": {},
            "tbe.common.repository_manager.interface": {"cann_kb_init": _nothing, "cann_kb_finalize": _nothing},
            **more,
        }
    )
    if not hasattr(Tik.BuildCCE, "writes_files"):  # te and tbe both come here
        Tik.BuildCCE = _build_cce(Tik.BuildCCE)  # type: ignore[method-assign]
    # Operators of MindSpore's own that are written in the DSL are imported and never compiled.
    warnings.filterwarnings("ignore", message=".*belongs to the TBE DSL", category=tikemu.TikWarning)
