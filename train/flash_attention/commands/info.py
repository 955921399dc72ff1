"""print versions, processor and devices, and which backends can run here, with the reasons"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import sys
from pathlib import Path

from flash_attention import __version__
from flash_attention.address import destination
from flash_attention.duplicate_installs import duplicate_installs, version_of
from flash_attention.files import anonymous
from flash_attention.text_table import table

DISTRIBUTIONS = ("mindspore", "numpy", "tikemu", "torch")
# Signs that MindSpore may compute on another device than the CPU: files of drivers, and variables of CANN.
ACCELERATORS = ("/dev/davinci_manager", "/usr/local/Ascend", "/dev/nvidiactl")
CANN_VARIABLES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
ON_ASCEND = ("tik", "fused")
ON_CPU = ("emulator",)
# Python 3.13 and later have no MindSpore.
NEWEST_PYTHON = (3, 12)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--all",
        action="store_true",
        help="import MindSpore, which takes seconds, and ask it for its device and every backend for its verdict",
    )


def run(options: argparse.Namespace) -> int:
    from flash_attention.backends.registry import backend_names, forced_backend

    rows = [["flash_attention", f"{__version__} in {Path(__file__).resolve().parents[1]}"]]
    rows += [["also on the path", line] for line in duplicate_installs(__version__)]
    rows += [["Python", f"{platform.python_version()} ({sys.executable})"]]
    rows += [[name, installed_version(name) or "not installed"] for name in DISTRIBUTIONS]
    cann = cann_version()
    rows += [["CANN", cann or "not found (ASCEND_HOME_PATH, ASCEND_TOOLKIT_HOME)"]]
    if cann is not None:  # the self-test needs its compiler, and no MindSpore
        rows += [["its compiler", cann_compiler()]]
    rows += [["processor", f"{processor()}, {len(os.sched_getaffinity(0))} of {os.cpu_count()} cores usable"]]
    rows += [["CPU kernel", cpu_kernel()], ["its bfloat16", bfloat16_arithmetic()]]
    rows += [[f"its {dtype}", arithmetic(dtype)] for dtype in ("float16", "float32")]
    fault = mindspore_fault()
    if options.all:
        device, fault = (None, fault) if fault else mindspore_device()
        rows += [["MindSpore device", device or "none, because MindSpore cannot be imported"]]
    # The output is what reports of faults hold.
    print(anonymous(table(["", ""], rows).split("\n", 2)[2]))
    print("\nbackends" if options.all else "\nbackends, by what is installed (--all imports MindSpore and asks it)")
    judge, forced = verdict if options.all else verdict_by_files, forced_backend()
    marks = {forced: " (forced by FLASH_ATTENTION_BACKEND)"}
    backends = [[name, (fault or judge(name)) + marks.get(name, "")] for name in backend_names()]
    print(anonymous(table(["name", "here"], backends, indent="  ")))
    print(f"\nreports and questions: {destination()}")
    return 0


def installed_version(name: str) -> str | None:
    """Return the version of a distribution or of a package on the path. Neither is imported."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None:
            return None
        return version_of(Path(found.origin).parent) or "installed, version unknown"


def mindspore_fault() -> str | None:
    """Return why MindSpore cannot be imported, by what is installed, or None."""
    version = installed_version("mindspore")
    if version is None:
        python = sys.version_info[:2]
        newest = f"; its wheels end at Python 3.{NEWEST_PYTHON[1]}, this is {python[0]}.{python[1]}"
        return f"MindSpore is not installed: pip install mindspore{newest if python > NEWEST_PYTHON else ''}"
    missing = numpy_missing()
    if missing is not None:
        return missing
    pillow = installed_version("pillow") or ""
    if version.startswith("2.0.") and pillow.split(".")[0].isdigit() and int(pillow.split(".")[0]) >= 10:
        return f'MindSpore {version} does not work with Pillow {pillow}: pip install "pillow<10"'
    return None


def numpy_missing() -> str | None:
    """Return that NumPy is not installed, or None."""
    return None if installed_version("numpy") else 'NumPy is not installed: pip install "numpy<2"'


def require_numpy() -> None:
    """Raise RuntimeError if NumPy is not installed, for commands that need no MindSpore."""
    missing = numpy_missing()
    if missing is not None:
        raise RuntimeError(missing)


def require_mindspore() -> None:
    """Raise RuntimeError if MindSpore cannot be imported; with what to do."""
    fault = mindspore_fault()
    if fault is not None:
        raise RuntimeError(fault)


def mindspore_device() -> tuple[str | None, str | None]:
    """Import MindSpore, and return its device; or None, and why the import fails."""
    try:
        import mindspore
    except Exception as error:  # whatever a damaged installation raises
        return None, f"importing MindSpore failed: {type(error).__name__}: {error}"
    return mindspore.get_context("device_target"), None


def cann_version() -> str | None:
    """Return the version line and folder of the CANN toolkit that the environment points to."""
    for variable in CANN_VARIABLES:
        folder = os.environ.get(variable)
        if folder and Path(folder).is_dir():
            for info in sorted(Path(folder).glob("**/ascend_toolkit_install.info")):
                for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
                    if line.lower().startswith("version="):
                        return f"{line.partition('=')[2]} in {folder}"
            return f"unknown version in {folder}"
    return None


def cann_compiler() -> str:
    """Return if CANN's compiler can be imported, or why not."""
    missing = numpy_missing()
    if missing is None:
        from flash_attention.backends.tik.environment import tbe_missing

        missing = tbe_missing()
    return missing or "tbe.tik can be imported"


def processor() -> str:
    """Return the model of the processor as the kernel names it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("model name", "CPU implementer")):
                return line.partition(":")[2].strip() + f" ({platform.machine()})"
    except OSError:
        pass
    return platform.machine()


def cpu_kernel() -> str:
    """Return the instruction sets of the native kernel here, or why it cannot be loaded."""
    try:
        from flash_attention.backends.cpu.library import ISA_VARIABLE, instruction_sets

        names = instruction_sets()
    except ImportError as error:
        return f"unknown: {error}"
    except OSError as error:
        return str(error)
    return f"instruction sets {', '.join(names)}; uses {os.environ.get(ISA_VARIABLE) or 'the first'}"


def bfloat16_arithmetic() -> str:
    """Describe the native kernel's arithmetic for bfloat16, with the reason."""
    try:
        from flash_attention.backends.cpu.library import DOT_PRODUCT_ISA, ISA_VARIABLE, TILES_ISA, load

        kernel = load()
    except (ImportError, OSError):
        return "unknown, because the CPU kernel cannot be loaded"
    forced, isa = os.environ.get(ISA_VARIABLE), kernel.bfloat16_isa()
    missing, rate = kernel.tiles_missing(), kernel.bfloat16_rate()
    if isa is None:
        return f"none: {ISA_VARIABLE}={forced} cannot run here; {missing}"
    used = {DOT_PRODUCT_ISA: "dot product", TILES_ISA: "tiles"}.get(isa, "float32")
    dot_product = "no dot product that the kernel knows"
    if rate is not None:
        dot_product = f"the dot product was measured to do {rate:.2f} times the operations of float32"
    if forced:
        return f"{used}, forced by {ISA_VARIABLE}; {missing or 'tiles are there'}; {dot_product}"
    return f"{used}: {missing}; {dot_product}" if missing else f"{used}: the processor has them, and Linux permits them"


def arithmetic(dtype: str) -> str:
    """Describe the native kernel's arithmetic for float16 or float32."""
    try:
        from flash_attention.backends.cpu.library import TILE_PARTS, TILES_ISA, load

        tiles = load().bfloat16_isa() == TILES_ISA
    except (ImportError, OSError):
        return "unknown, because the CPU kernel cannot be loaded"
    if tiles and dtype in TILE_PARTS:
        return f"tiles, each number as the sum of {TILE_PARTS[dtype]} bfloat16 numbers"
    return "float32"


def verdict(name: str) -> str:
    """Return a backend's verdict on running here."""
    from flash_attention.backends.registry import get_backend

    return get_backend(name).unavailable() or "ready"


def verdict_by_files(name: str) -> str:
    """Return the verdict on a backend without importing MindSpore. The import alone takes longer than the rest of this
    command.
    """
    from flash_attention.backends.tik import environment

    if name == "emulator" and installed_version("tikemu") is None:
        return "needs tikemu: pip install ./emulator in the repository, or its wheel"
    if name in (*ON_ASCEND, *ON_CPU) and not only_a_cpu():
        lacks = environment.missing(installed_version("mindspore") or "", "Ascend") if name == "tik" else None
        return lacks or f"ready if MindSpore's device is {'CPU' if name in ON_CPU else 'Ascend'}: --all asks it"
    if name in ON_ASCEND:
        return "runs on Ascend, and here is neither its driver nor CANN"
    # The native kernel asks MindSpore nothing, and the math backend runs wherever MindSpore does.
    return verdict(name) if name == "cpu" else "ready"


def only_a_cpu() -> bool:
    """Return True if MindSpore has only a CPU here."""
    return not any(map(os.path.exists, ACCELERATORS)) and not any(map(os.environ.get, CANN_VARIABLES))
