"""Compile the native kernel: python -m flash_attention.backends.cpu.build

Nothing beside the standard library and the compiler is needed.

One object per instruction set, each with flags of its own, and one library that chooses at run time. The environment
variables CXX (default g++) and CXXFLAGS (added at the end) are honoured.

With --machine, or FLASH_ATTENTION_MACHINE, the library is for a processor family other than this one's. CXX then is a
cross compiler, by default GCC's under the name that it has in Debian: aarch64-linux-gnu-g++.

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
COMMON_FLAGS = ("-O3", "-std=c++17", "-ffp-contract=off", "-fPIC", "-fopenmp", "-fvisibility=hidden")
# The older of libstdc++'s two string types, no sized delete, and old versions of the functions that are called.
_MANYLINUX = (
    "-D_GLIBCXX_USE_CXX11_ABI=0",
    "-fno-sized-deallocation",
    "-include",
    str(SOURCES / "manylinux/old_symbols.h"),
)
_WARNINGS = ("-Wall", "-Wextra", "-Wno-maybe-uninitialized")
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
# Processor families with instruction sets of their own, and further names of theirs.
MACHINES = ("aarch64", "x86_64")
_FURTHER_NAMES = {"amd64": "x86_64", "arm64": "aarch64"}
_AVX512_BF16 = (*_AVX512, "-mavx512bf16")
# Slow sources come first, so that no processor waits for a source that began last.
_TARGETS = {
    "scalar": (),
    "avx512_bf16": _AVX512_BF16,
    # Its sessions end in destructors. Nothing throws, and all code of the library shares the handling of exceptions.
    "amx": (*_AVX512_BF16, "-mamx-tile", "-mamx-bf16", "-fno-exceptions"),
    "avx512": _AVX512,
    "neon": (),
    "avx2": _AVX2,
}
# Instruction sets that g++ before 11 and older assemblers do not know, each with a use of it.
_TRIALS = {"amx": "#include <immintrin.h>\nvoid use() { _tile_release(); }\n"}


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
    """Compile and link the library.

    Args:
        output: the file to write. It is replaced in one step, so a process that has the old one loaded is safe.
        compiler: command of a C++17 compiler of the GCC or Clang family. Default: $CXX, or g++ for `machine`.
        flags: added after the usual ones.
        machine: processor family that is compiled for. Default: this one's.
        jobs: how many compilers run at once. Default: one per processor.
        main: source of a program, which then is made instead of a library.
        manylinux: use no symbols that glibc and libstdc++ did not have by 2014; for GCC.
        isas: the instruction sets that are compiled besides scalar. Default: all of the processor family.
    """
    machine = family(machine or platform.machine())
    command = shlex.split(compiler or os.environ.get("CXX") or default_compiler(machine))
    _check_compiler(command, machine)
    flags = (*flags, *shlex.split(os.environ.get("CXXFLAGS", "")))
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent) as folder:
        units: dict[Path, tuple] = {}
        for name in _TARGETS:
            wanted = (isas is None or name in isas) and knows(command, name, machine)
            units[SOURCES / "targets" / f"{name}.cpp"] = target_flags(name, machine) if wanted else ()
        units.update(dict.fromkeys(sorted(SOURCES.glob("*.cpp")), ()))
        if main is not None:
            units[main] = ()
        if manylinux:
            units[SOURCES / "manylinux/old_symbols.cpp"] = ()
            flags = (*flags, *_MANYLINUX)
        with concurrent.futures.ThreadPoolExecutor(jobs or os.cpu_count()) as pool:
            running = {pool.submit(_compile, command, *unit, flags, Path(folder)): unit[0] for unit in units.items()}
            for count, one in enumerate(concurrent.futures.as_completed(running), 1):
                one.result()
                print(f"compiled {count} of {len(units)}: {running[one].name}", file=sys.stderr, flush=True)
            objects = [one.result() for one in running]
        linked = Path(folder) / output.name
        kind = ["-shared"] if main is None else []
        _run([*command, *kind, "-fopenmp", *flags, *map(str, objects), "-o", str(linked)])
        os.replace(linked, output)
    return output


def family(machine: str) -> str:
    """Return the processor family `machine` by the name that Linux and wheels have for it."""
    return _FURTHER_NAMES.get(machine.lower(), machine.lower())


def default_compiler(machine: str) -> str:
    """Return the GCC for a processor family: g++ for this machine's family, else a cross compiler."""
    return "g++" if machine == family(platform.machine()) else f"{machine}-linux-gnu-g++"


def target_flags(name: str, machine: str | None = None) -> tuple:
    """Return the flags of the instruction set `name`. A processor family (default: this machine's) that does not know
    it has no flags and an empty source.
    """
    return _TARGETS[name] if family(machine or platform.machine()) == "x86_64" else ()


def knows(command: list, name: str, machine: str) -> bool:
    """Return True if a compiler knows an instruction set. If not, print a note on standard error about the library."""
    flags = target_flags(name, machine)
    if name not in _TRIALS or not flags:
        return True
    trial = [*command, *flags, "-x", "c++", "-", "-c", "-o", os.devnull]
    known = subprocess.run(trial, input=_TRIALS[name], capture_output=True, text=True).returncode == 0
    if not known:
        print(f"note: {command[0]!r} does not know {name}: the library is built without it", file=sys.stderr)
    return known


def _check_compiler(command: list, machine: str) -> None:
    """Refuse a missing compiler and a compiler for another processor family. Its code would get a wrong name, or it
    would refuse flag by flag.
    """
    try:
        made = family(_run([*command, "-dumpmachine"]).partition("-")[0])
    except FileNotFoundError as error:
        wanted = default_compiler(machine)
        package = "g++" if wanted == "g++" else f"g++-{machine.replace('_', '-')}-linux-gnu"
        raise BuildError(
            f"no C++ compiler {command[0]!r}: install {wanted} (Debian, Ubuntu: apt-get install {package}) or set CXX"
        ) from error
    if made != machine and {made, machine} <= set(MACHINES):
        raise BuildError(
            f"{command[0]!r} makes code for {made}, asked for was {machine}: set CXX to a compiler for {machine}, or "
            f"choose the processor family with --machine {made} (FLASH_ATTENTION_MACHINE={made})"
        )


def _compile(command: list, source: Path, extra: tuple, flags: tuple, folder: Path) -> Path:
    result = folder / f"{source.stem}.o"
    _run([*command, *COMMON_FLAGS, *_WARNINGS, *extra, *flags, "-c", str(source), "-o", str(result)])
    return result


def _run(command: list) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"{shlex.join(command)}\n{done.stderr}")
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description="Compile the native CPU kernel.")
    parser.add_argument("--output", type=Path, default=LIBRARY, help="library to write (default: inside the package)")
    parser.add_argument(
        "--manylinux",
        action="store_true",
        default=os.environ.get("FLASH_ATTENTION_MANYLINUX", "") == "1",
        help="for every Linux since glibc 2.17; also FLASH_ATTENTION_MANYLINUX=1",
    )
    parser.add_argument(
        "--machine",
        default=os.environ.get("FLASH_ATTENTION_MACHINE") or None,
        help="processor family to compile for, aarch64 or x86_64 (default: this one's); also FLASH_ATTENTION_MACHINE",
    )
    arguments = parser.parse_args()
    if arguments.machine not in (None, *MACHINES):
        parser.error(f"--machine (FLASH_ATTENTION_MACHINE): got {arguments.machine!r}, allowed: {', '.join(MACHINES)}")
    manylinux = os.environ.get("FLASH_ATTENTION_MANYLINUX", "")
    if manylinux not in ("", "0", "1"):
        parser.error(f"FLASH_ATTENTION_MANYLINUX: got {manylinux!r}, allowed are 0 and 1")
    try:
        print(f"built {build(arguments.output, machine=arguments.machine, manylinux=arguments.manylinux)}")
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
