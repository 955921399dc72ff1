"""Arm: the wheel that x86-64 makes for it, and the kernel on NEON, alone and through MindSpore, under emulation.

`-m arm` runs these tests. The emulator shows neither speed nor weak memory ordering nor pages of 64 KiB.
"""

import platform
import re
import shutil
import zipfile
from pathlib import Path

import pytest

from emulator.virtual_ascend.tests.environments import run
from tests.train.flash_attention.st.support.emulated_arm import RELEASE, arm_wheel, emulated_python, install
from tests.train.flash_attention.st.support.wheel_tools import LIBRARY, ROOT, needs_nothing_newer_than_2014

pytestmark = [
    pytest.mark.arm,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="emulates Arm on x86-64; there all tests run on Arm"),
]

# One shared case in so many runs.
ONE_IN = 15
# These files compile, inspect this machine's compiled library, or measure speed.
NOT_HERE = ("test_build.py", "test_memcheck.py", "test_peak.py")
# The tests of this machine run the portable code, which is never chosen on Arm.
SELECTED = "not scalar"
# 65536 rows take minutes under emulation, which does not show how threads differ in twenty runs.
TOO_LONG = "test_values.py::test_more_sums_than_are_kept_at_a_time", "test_order.py::test_many_runs"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkout that has the installed wheel for Arm as its train/."""
    folder = tmp_path_factory.mktemp("arm")
    install(arm_wheel(), folder / "train")
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pytest.ini", folder)
    return folder


def emulated(checkout: Path, *arguments, **environment: str) -> str:
    """Return the output of the emulated Python with the installed wheel."""
    path = f"{checkout / 'train'}:{checkout}"
    return run(emulated_python(), *arguments, cwd=checkout, PYTHONPATH=path, **environment)


def test_wheel_for_arm(tmp_path: Path) -> None:
    wheel = arm_wheel()
    assert "manylinux2014_aarch64" in wheel.name and "x86" not in wheel.name
    needs_nothing_newer_than_2014(wheel, tmp_path)
    library = zipfile.ZipFile(wheel).extract(LIBRARY, tmp_path)
    headers = run("readelf", "--wide", "--file-header", "--program-headers", library, cwd=tmp_path)
    assert re.search(r"Machine: +AArch64", headers)
    # A Linux kernel with pages of 64 KiB loads no library with a smaller alignment.
    alignments = re.findall(r"^ +LOAD .* (0x[0-9a-f]+)$", headers, re.MULTILINE)
    assert alignments and all(int(alignment, 16) >= 1 << 16 for alignment in alignments)


def test_first_call(checkout: Path) -> None:
    """The layer works in both modes, with gradients and training, on the instruction set that is meant for Arm."""
    program = "import platform; print(platform.machine()); import flash_attention.backends.cpu.library as library"
    printed = emulated(checkout, "-c", f"{program}; print(library.instruction_sets(), library.LIBRARY)")
    assert printed.split("\n")[0] == "aarch64"
    assert printed.split("\n")[1] == f"('neon', 'scalar') {checkout / 'train' / LIBRARY}"
    printed = emulated(checkout, "tests/train/flash_attention/st/support/smoke.py", "cpu")
    assert printed.splitlines()[-1].startswith("ok: all is right")
    for mode in ("graph", "pynative"):
        assert printed.count(f"ok {RELEASE} cpu {mode} ") >= 6


def test_shared_cases(checkout: Path) -> None:
    printed = emulated(checkout, "tests/train/flash_attention/st/support/smoke.py", str(ONE_IN), "cpu")
    assert printed.count(" cpu pynative ") > 20 and printed.count(" cpu graph ") > 5


def test_native(checkout: Path) -> None:
    """The native tests that run every day also pass on NEON, in two processes."""
    folder = Path("tests/train/flash_attention/ut/native")
    # The limit of a test is this machine's.
    options = ["-q", "-n", "2", "--dist", "worksteal", "-p", "no:cacheprovider", "--timeout=0", "-k", SELECTED]
    options += [f"--ignore={folder / name}" for name in NOT_HERE]
    options += [f"--deselect={folder / name}" for name in TOO_LONG]
    printed = emulated(checkout, "-m", "pytest", *options, str(folder))
    assert int(re.search(r"(\d+) passed", printed)[1]) > 200, printed[-2000:]
