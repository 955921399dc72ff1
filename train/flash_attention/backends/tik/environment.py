"""Find the Ascend software: CANN, driver, operator package, and MindSpore's route to TBE."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

from flash_attention.bridge.releases import needs_package
from flash_attention.kernels.tik.problem import CAPACITY, Chip
from flash_attention.variables import cores

VENDOR = "flash_attention"
#: CANN's names for the first generation. Ascend910B1 to 910B4 are Atlas A2.
CHIPS = ("Ascend910A", "Ascend910ProA", "Ascend910PremiumA", "Ascend910B", "Ascend910ProB")
_DRIVER = Path("/usr/local/Ascend/driver/version.info")
_CANN_VARIABLES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_OPP_PATH")


def package_folder() -> Path | None:
    """Return the folder of the installed operator package, or None."""
    candidates = [Path(entry) for entry in os.environ.get("ASCEND_CUSTOM_OPP_PATH", "").split(":") if entry]
    if os.environ.get("ASCEND_OPP_PATH"):
        candidates.append(Path(os.environ["ASCEND_OPP_PATH"]) / "vendors" / VENDOR)
    for folder in candidates:
        if (folder / "op_impl" / "ai_core" / "tbe" / f"{VENDOR}_impl").is_dir():
            return folder
    return None


def is_virtual() -> bool:
    """Return True if the card is the virtual one. Its times are a computer's and not a device's."""
    return "VIRTUAL_ASCEND_SOC" in os.environ


# MindSpore sets them before GE starts. Without them GE may stop at types that have no prototype library.
INFER_VARIABLES = ("IGNORE_INFER_ERROR", "FAST_IGNORE_INFER_ERROR")


def ignore_infer_errors() -> str:
    """Set INFER_VARIABLES where the user has not, as MindSpore does; return them with their values."""
    return ", ".join(f"{name}={os.environ.setdefault(name, '1')}" for name in INFER_VARIABLES)


def missing(version: str, target: str) -> str | None:
    """Return why MindSpore `version` cannot run TIK operators on device `target`, or None.

    Only absences that can be seen without a device are found here; MindSpore reports the rest when it compiles.
    """
    if target != "Ascend":
        return f"runs on Ascend 910, and the device target is {target}"
    if not _DRIVER.exists() and not is_virtual():
        return f"the Ascend driver is not installed ({_DRIVER} does not exist)"
    if not any(os.environ.get(name) for name in _CANN_VARIABLES):
        return f"CANN is not set up: none of {', '.join(_CANN_VARIABLES)} is set (source CANN's set_env.sh)"
    broken = tbe_missing()
    if broken is not None:
        return broken
    if needs_package(version) and package_folder() is None:
        return (
            "MindSpore from 2.3 on finds TBE operators in an operator package; make and install it: "
            "flash-attention opp --soc ascend910 --out DIR, then bash DIR/install.sh"
        )
    return None


# What CANN's tbe imports, and its toolkit does not bring along.
TBE_PACKAGES = "decorator attrs sympy cffi scipy psutil protobuf==3.20.3 pyyaml absl-py pathlib2 requests cython"


@functools.cache
def tbe_missing() -> str | None:
    """Return why Python cannot import CANN's compiler, tbe.tik, or None.

    A process of its own imports it: a package that can be found may still fail, and it may choose a chip.
    """
    done = subprocess.run([sys.executable, "-c", "import tbe.tik"], capture_output=True, text=True, errors="replace")
    if done.returncode == 0:
        return None
    said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    last = said[-1] if said else f"the process ended with status {done.returncode}"
    setup = "source CANN's set_env.sh"
    if "'tbe'" not in last:
        setup += f'; pip install "numpy<2" {TBE_PACKAGES}'
    return f"CANN's Python package tbe cannot be imported: {last} ({setup})"


_SPECIFICATIONS = ("CORE_NUM", *(f"{memory}_SIZE" for memory in CAPACITY))
# AscendCL names the chip, CANN's platform description knows it; see their reference manuals.
_ASK = f"""
import acl
from tbe.common import platform
print("soc", acl.get_soc_name())
platform.set_current_compile_soc_info(acl.get_soc_name())
for name in {_SPECIFICATIONS}:
    print(name, platform.get_soc_spec(name))
"""


@functools.cache
def specifications() -> dict[str, str]:
    """Return the chip's name ("soc"), number of cores and sizes of memories, as CANN says.

    A process of its own asks, because the asking process chooses a chip for everything that it compiles afterwards.

    Raises:
        RuntimeError: CANN cannot be asked.
    """
    asked = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True)
    answers = (line.split(maxsplit=1) for line in asked.stdout.splitlines())
    result = {words[0]: words[1] for words in answers if len(words) == 2 and words[0] in ("soc", *_SPECIFICATIONS)}
    if asked.returncode != 0 or len(result) <= len(_SPECIFICATIONS):
        raise RuntimeError(f"CANN cannot be asked for the chip (acl, tbe.common.platform): {asked.stderr[-2000:]}")
    return result


def chip() -> Chip:
    """Return the chip that kernels are planned for: its cores, 30 or 32, and its memories if they are smaller than an
    Ascend 910's. FLASH_ATTENTION_CORES gives the number of cores without asking the chip.

    A chip that was not asked is compared with the plans when operators are compiled.

    Raises:
        ValueError: FLASH_ATTENTION_CORES is no number of cores.
        RuntimeError: the chip cannot be asked.
    """
    chosen = cores()
    if chosen is not None:
        return Chip(chosen)
    try:
        answers = specifications()
    except RuntimeError as error:
        numbers = "32 on Ascend 910A, ProA and PremiumA, 30 on 910B and ProB"
        raise RuntimeError(
            f"the number of AI cores is unknown; set FLASH_ATTENTION_CORES ({numbers}). {error}"
        ) from None
    memories = (min(int(answers[f"{memory}_SIZE"]), planned) for memory, planned in CAPACITY.items())
    return Chip(int(answers["CORE_NUM"]), tuple(memories))
