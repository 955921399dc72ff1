"""The packages te and tbe: tikemu's modules, and modules that only MindSpore's build process asks for."""

from __future__ import annotations

import os
import warnings
from typing import Any

import tikemu
from tikemu import shim
from tikemu.frontend import platform_info


def _set_version(soc: str, *_: Any) -> bool:
    """Select the chip for later compilations. MindSpore gives its settings of fusion and tuning too."""
    cores = int(os.environ["VIRTUAL_ASCEND_CORES"])
    return platform_info.select(soc, aicore_num=cores) is None


def _nothing(*_: Any) -> int:
    return 0


def provide() -> None:
    """Make them importable below the folders ``te`` and ``tbe`` of ../cann."""
    shim.complete(
        {
            "te.version": {"version": os.environ["VIRTUAL_ASCEND_CANN"]},
            "te.platform.cce_conf": {"te_set_version": _set_version},
            "te.platform.cce_policy": {"set_L1_info": _nothing},
            "tbe.common.rl_bank": {},
            "tbe.common.rl_bank.bank_manager": {"set_current_op_name": _nothing},
            "tbe.common.repository_manager": {},
            "tbe.common.repository_manager.interface": {"cann_kb_init": _nothing, "cann_kb_finalize": _nothing},
        }
    )
    # Operators of MindSpore's own that are written in the DSL are imported and never compiled.
    warnings.filterwarnings("ignore", message=".*belongs to the TBE DSL", category=tikemu.TikWarning)
