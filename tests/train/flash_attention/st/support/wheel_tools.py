"""Helpers of test_packaging_*.py and test_clients.py: a copy of the sources to build in, and checks of wheels."""

import re
import shutil
import zipfile
from pathlib import Path

from emulator.virtual_ascend.tests.environments import run

ROOT = Path(__file__).resolve().parents[5]
SMOKE = Path(__file__).resolve().parent / "smoke.py"
LIBRARY = "flash_attention/backends/cpu/lib/libflash_attention_cpu.so"
# What manylinux2014 promises (PEP 599), and the libgomp of GCC 4.9.
OLDEST = {"GLIBC": (2, 17), "GLIBCXX": (3, 4, 19), "CXXABI": (1, 3, 7), "GCC": (4, 8), "GOMP": (4, 0), "OMP": (3, 1)}


def copy_sources(folder: Path, part: str = "train") -> Path:
    """Copy train/ or emulator/ without anything built, as a fresh clone has it."""
    ignore = shutil.ignore_patterns("*.so", "lib", "build", "dist", "*.egg-info", "__pycache__")
    return Path(shutil.copytree(ROOT / part, folder / part, ignore=ignore))


def smoke(python: Path, *backends: str, cwd: Path, compiler: bool = True) -> str:
    """Run smoke.py on the installed package; its last line says that all was right."""
    printed = run(python, SMOKE, *backends, cwd=cwd, compiler=compiler, PYTHONPATH=str(ROOT))
    assert printed.splitlines()[-1].startswith("ok: all is right"), printed
    return printed


def needs_nothing_newer_than_2014(wheel: Path, folder: Path) -> None:
    """Check that a manylinux2014 wheel needs old symbol versions and the system's OpenMP."""
    library = zipfile.ZipFile(wheel).extract(LIBRARY, folder)
    symbols = run("objdump", "-T", library, cwd=folder)
    versions = re.findall(r"\((GLIBC|GLIBCXX|CXXABI|GCC|GOMP|OMP)_([\d.]+)\)", symbols)
    assert versions
    for name, version in versions:
        assert tuple(map(int, version.split("."))) <= OLDEST[name], f"{name}_{version}"
    # The runtime is MindSpore's: a second OpenMP runtime would have its own threads.
    assert "libgomp.so.1" in run("objdump", "-p", library, cwd=folder)
