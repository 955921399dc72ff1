"""Compiles the native kernel: python -m flash_attention.backends.cpu.build

One object per instruction set, each with flags of its own, and one library that chooses at run time. The environment
variables CXX (default g++) and CXXFLAGS (added at the end) are honoured.

With --manylinux, or FLASH_ATTENTION_MANYLINUX=1, GCC makes a library for every Linux since glibc 2.17 (PEP 599,
manylinux2014), whatever this one is. It takes libgomp.so.1 from the system, as MindSpore does: one OpenMP runtime in
the process.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCES = Path(__file__).resolve().parent / "csrc"
LIBRARY = Path(__file__).resolve().parent / "lib" / "libflash_attention_cpu.so"

# No contraction: a running maximum minus itself has to be exactly zero. GCC warns of its own AVX-512 header (undefined
# pass-through operands).
_COMMON = ("-O3", "-std=c++17", "-ffp-contract=off", "-fPIC", "-fopenmp", "-fvisibility=hidden")
# The older of libstdc++'s two string types, no sized delete, old versions of what is called.
_MANYLINUX = (
    "-D_GLIBCXX_USE_CXX11_ABI=0",
    "-fno-sized-deallocation",
    "-include",
    str(SOURCES / "manylinux/old_symbols.h"),
)
_WARNINGS = ("-Wall", "-Wextra", "-Wno-maybe-uninitialized")
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
_TARGETS = {"avx512_bf16": (*_AVX512, "-mavx512bf16"), "avx512": _AVX512, "avx2": _AVX2, "neon": (), "scalar": ()}


class BuildError(RuntimeError):
    """The compiler is missing or failed; the message holds what it said."""


def build(
    output: Path = LIBRARY,
    *,
    compiler: str | None = None,
    flags: tuple = (),
    machine: str | None = None,
    jobs: int = 0,
    main: Path | None = None,
    manylinux: bool = False,
    isas: tuple | None = None,
) -> Path:
    """Compiles and links the library.

    Args:
        output: the file to write. It is replaced in one step, so a process that has the old one loaded is safe.
        compiler: command of a C++17 compiler of the GCC or Clang family. Default: $CXX or g++.
        flags: added after the usual ones.
        machine: processor family that is compiled for. Default: this one's.
        jobs: how many compilers run at once. Default: one per processor.
        main: source of a program, which then is made instead of a library.
        manylinux: use no symbols that glibc and libstdc++ did not have by 2014; for GCC.
        isas: the instruction sets that are compiled besides scalar. Default: all of the processor family.

    Raises:
        BuildError: with the compiler's output.
    """
    command = shlex.split(compiler or os.environ.get("CXX", "g++"))
    flags = (*flags, *shlex.split(os.environ.get("CXXFLAGS", "")))
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent) as folder:
        units: dict[Path, tuple] = dict.fromkeys(sorted(SOURCES.glob("*.cpp")), ())
        if main is not None:
            units[main] = ()
        if manylinux:
            units[SOURCES / "manylinux/old_symbols.cpp"] = ()
            flags = (*flags, *_MANYLINUX)
        for name in _TARGETS:
            wanted = isas is None or name in isas
            units[SOURCES / "targets" / f"{name}.cpp"] = target_flags(name, machine) if wanted else ()
        with concurrent.futures.ThreadPoolExecutor(jobs or os.cpu_count()) as pool:
            objects = list(
                pool.map(lambda unit: _compile(command, unit[0], unit[1], flags, Path(folder)), units.items())
            )
        linked = Path(folder) / output.name
        kind = ["-shared"] if main is None else []
        _run([*command, *kind, "-fopenmp", *flags, *map(str, objects), "-o", str(linked)])
        os.replace(linked, output)
    return output


def target_flags(name: str, machine: str | None = None) -> tuple:
    """Flags of the instruction set `name`; none on a processor family (default: this one) that does not know it, whose
    source then is empty.
    """
    return _TARGETS[name] if (machine or platform.machine()).lower() in ("x86_64", "amd64") else ()


def _compile(command: list, source: Path, extra: tuple, flags: tuple, folder: Path) -> Path:
    result = folder / f"{source.stem}.o"
    _run([*command, *_COMMON, *_WARNINGS, *extra, *flags, "-c", str(source), "-o", str(result)])
    return result


def _run(command: list) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise BuildError(f"no C++ compiler {command[0]!r}: install g++ or set CXX") from error
    if done.returncode:
        raise BuildError(f"{shlex.join(command)}\n{done.stderr}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Compile the native CPU kernel.")
    parser.add_argument("--output", type=Path, default=LIBRARY, help="library to write (default: inside the package)")
    parser.add_argument(
        "--manylinux",
        action="store_true",
        default=os.environ.get("FLASH_ATTENTION_MANYLINUX", "0") not in ("", "0"),
        help="for every Linux since glibc 2.17; also FLASH_ATTENTION_MANYLINUX=1",
    )
    arguments = parser.parse_args()
    try:
        print(f"built {build(arguments.output, manylinux=arguments.manylinux)}")
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
