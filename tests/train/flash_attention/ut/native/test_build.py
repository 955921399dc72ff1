"""Building: other processors, sanitizers, and that no code of one instruction set can leak into another."""

import os
import platform
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from flash_attention.backends.cpu import build

from tests.train.flash_attention.support import cases
from tests.train.flash_attention.support.cases import Case
from tests.train.flash_attention.ut.native.support.calls import instruction_set, run_case
from tests.train.flash_attention.ut.native.support.remote import Remote, build_driver

CROSS_COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"

# A spread over everything, kept small: these runs are slow.
EVERYTHING = Case(batch=2, heads=4, kv_heads=2, seq_q=67, seq_k=150, head_dim=33, mask="3d", dropout=0.2, alibi="bias")
NEWER = Case(batch=2, seq_q=70, seq_k=70, head_dim=24, value_dim=40, dtype="float32", mask="causal", softcap=3.0)
# Decoded by chunks of keys.
DECODED = Case(heads=4, kv_heads=1, seq_q=2, seq_k=300, head_dim=48, mask="causal", alignment="bottom_right")
SPREAD = [
    *(
        replace(EVERYTHING, dtype=dtype, alignment="bottom_right", window=(90, 30))
        for dtype in ("float32", "float16", "bfloat16")
    ),
    Case(seq_q=140, seq_k=131, head_dim=48, dtype="bfloat16", mask="compact", alibi="computed"),
    Case(seq_q=130, seq_k=260, head_dim=72, dtype="float32", mask="causal", blocks=(1, 0), tiling="sparse_64"),
    Case(seq_q=300, seq_k=40, head_dim=16, dtype="bfloat16", window=(10, 10)),
    Case(heads=3, kv_heads=1, seq_q=33, seq_k=65, head_dim=1, dtype="float16", mask="padding", alibi="given"),
    Case(seq_q=1, seq_k=300, head_dim=129, dtype="float32", mask="rows", alibi="shared"),
    Case(seq_q=50, seq_k=50, head_dim=256, dtype="bfloat16", values="huge"),
    replace(NEWER, sinks=True, prefix=True, segments="documents"),
    replace(DECODED, softcap=5.0, sinks=True, alibi="computed"),
    Case(heads=3, kv_heads=3, seq_q=1, seq_k=270, head_dim=20, dtype="bfloat16"),
    Case(heads=4, kv_heads=2, seq_q=11, seq_k=270, head_dim=40, dtype="bfloat16", window=(100, 30)),
]


def check_everywhere(kernel: Remote, selected=SPREAD, isas=None) -> None:
    """Run the cases with every instruction set of a kernel."""
    for isa in isas or kernel.instruction_sets():
        with instruction_set(isa):
            for case in selected:
                cases.check(case, run_case(case, kernel=kernel))
    kernel.close()


@pytest.mark.builds
@pytest.mark.parametrize(
    "isas",
    [pytest.param(("avx2",), id="avx2"), pytest.param(("avx512", "avx512_bf16"), id="avx512", marks=pytest.mark.slow)],
)
def test_sanitizers(tmp_path, isas):
    """No instruction set accesses memory outside of tensors and the kernel's own, or has undefined behaviour."""
    flags = ("-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    driver = build_driver(tmp_path, flags=flags, isas=isas)
    check_everywhere(Remote([str(driver)], OMP_NUM_THREADS="2"))


@pytest.mark.builds
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_sanitizers_on_tiles(tmp_path):
    """The same holds for bfloat16 on tiles. C++ stands for the tile instructions, with the same reads and writes."""
    flags = ("-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-DFLASH_ATTENTION_SCALAR_TILES")
    driver = build_driver(tmp_path, flags=flags, isas=())
    selected = [case for case in SPREAD if case.dtype == "bfloat16"]
    check_everywhere(Remote([str(driver)], OMP_NUM_THREADS="2"), selected, isas=("amx",))


@pytest.mark.builds
@pytest.mark.skipif(shutil.which(CROSS_COMPILER) is None, reason=f"needs {CROSS_COMPILER}")
def test_neon(tmp_path):
    """The kernel for Arm compiles without a warning; if an emulator is installed, it also computes the same."""
    flags = ("-O1", "-static", "-Werror")
    driver = build_driver(tmp_path, compiler=CROSS_COMPILER, machine="aarch64", flags=flags)
    if shutil.which(EMULATOR) is not None:
        check_everywhere(Remote([EMULATOR, str(driver)], OMP_NUM_THREADS="1"), isas=("neon",))


@pytest.mark.builds
@pytest.mark.skipif(platform.machine() != "x86_64", reason="instruction sets beyond the base exist on x86-64 only")
@pytest.mark.parametrize("name", ["amx", "avx512_bf16", "avx512", "avx2"])
def test_targets_share_no_code(tmp_path, name):
    """The linker merges functions of weak linkage: an older processor could be left with the code for a newer one."""
    target, source = tmp_path / f"{name}.o", build.SOURCES / "targets" / f"{name}.cpp"
    # Without optimisation the listing shows every function that other files can see.
    command = ["g++", "-O0", "-std=c++17", "-w", *build.target_flags(name), "-c", source, "-o", target]
    subprocess.run(command, check=True)
    listing = subprocess.run(["nm", "--format=posix", target], check=True, capture_output=True, text=True).stdout
    kinds = dict(line.split()[:2] for line in listing.splitlines())
    assert sum("Kernels" in symbol for symbol in kinds) > 0
    assert [symbol for symbol, kind in kinds.items() if kind in "WVu"] == []


def test_functions_newer_than_2014_have_an_older_version_for_wheels():
    """A wheel for manylinux2014 needs glibc 2.17: old_symbols.h names every function from a newer glibc."""
    old = (build.SOURCES / "manylinux/old_symbols.h").read_text()
    listing = subprocess.run(["objdump", "-T", build.LIBRARY], check=True, capture_output=True, text=True).stdout
    found = re.findall(r"\(GLIBC_(\d+)\.(\d+)[\d.]*\) +(\w+)", listing)
    assert found
    newer = {name for major, minor, name in found if (int(major), int(minor)) > (2, 17)}
    assert {name for name in newer if f".symver {name},{name}@" not in old} <= {"__libc_single_threaded"}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="looks for instructions of x86-64")
def test_memory_is_asked_for_ahead():
    """GCC drops calls of a function that does nothing but prefetch, unless it is forced inline."""
    command = ["objdump", "-d", "--no-show-raw-insn", build.LIBRARY]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    asked = Counter(re.findall(r"\bprefetch\w+", listing))
    assert asked["prefetcht0"] > 100 and asked["prefetcht1"] > 100, asked


@pytest.mark.parametrize("as_module", (False, True))
def test_the_build_imports_the_standard_library_alone(tmp_path, as_module):
    """With -I and -S nothing that is installed can be imported. Each source is told when it is compiled."""
    compiler, output = tmp_path / "g++", tmp_path / "x.so"
    answer = f'case "$*" in *-dumpmachine*) echo {platform.machine()}-linux-gnu;; esac'
    write = 'while [ $# -gt 1 ]; do if [ "$1" = -o ]; then echo made >"$2"; fi; shift; done'
    compiler.write_text(f"#!/bin/sh\n{answer}\n{write}\n")
    compiler.chmod(0o755)
    command = [build.__file__]
    if as_module:
        program = (
            "import runpy, sys; sys.path.append(sys.argv.pop(1)); runpy.run_module(sys.argv.pop(1), None, '__main__')"
        )
        command = ["-c", program, build.SOURCES.parents[3], build.__name__]
    done = subprocess.run(
        [sys.executable, "-I", "-S", *command, "--output", output],
        env={**os.environ, "CXX": str(compiler)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    told = done.stderr.splitlines()
    assert len(told) > 10 and all(line.startswith(f"compiled {n} of {len(told)}: ") for n, line in enumerate(told, 1))
    assert output.read_text() == "made\n"


def test_compiler_is_missing(tmp_path):
    with pytest.raises(build.BuildError, match="no C\\+\\+ compiler 'no-such-compiler'"):
        build.build(tmp_path / "x.so", compiler="no-such-compiler")
    assert not (tmp_path / "x.so").exists()


@pytest.mark.parametrize(("machine", "other"), [("x86_64", "aarch64"), ("aarch64", "x86_64")])
def test_cross_compiler_is_missing(tmp_path, monkeypatch, machine, other):
    """The message names the package to install for the wanted processor family."""
    monkeypatch.setattr(build.platform, "machine", lambda: machine)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    package = f"g++-{other.replace('_', '-')}-linux-gnu"
    with pytest.raises(build.BuildError) as refused:
        build.build(tmp_path / "x.so", machine=other)
    assert f"no C++ compiler '{other}-linux-gnu-g++'" in str(refused.value)
    assert f"apt-get install {package})" in str(refused.value)


@pytest.mark.parametrize("named", (True, False))
def test_compiler_of_another_processor_family(tmp_path, monkeypatch, named):
    """No library is built under the name of a wrong processor family, neither a named family nor this machine's."""
    other = next(machine for machine in build.MACHINES if machine != build.family(platform.machine()))
    compiler, machine = "g++", other
    if not named:
        compiler, machine = str(tmp_path / "cross-g++"), None
        (tmp_path / "cross-g++").write_text(f"#!/bin/sh\necho {other}-linux-gnu\n")
        (tmp_path / "cross-g++").chmod(0o755)
    made, asked = (other, platform.machine()) if not named else (platform.machine(), other)
    with pytest.raises(build.BuildError, match=f"makes code for {made}, asked for was {asked}.*--machine {made}"):
        build.build(tmp_path / "x.so", compiler=compiler, machine=machine)
    assert not (tmp_path / "x.so").exists()


def test_nonsense_in_a_variable_builds_nothing(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["build"])
    for name, value, allowed in (("MANYLINUX", "yes", " are 0 and 1"), ("MACHINE", "arm64", ": aarch64, x86_64")):
        monkeypatch.setenv(f"FLASH_ATTENTION_{name}", value)
        with pytest.raises(SystemExit):
            build.main()
        assert f"got '{value}', allowed{allowed}" in capsys.readouterr().err
        monkeypatch.delenv(f"FLASH_ATTENTION_{name}")


def test_flags_follow_the_processor_family():
    assert "-mavx2" in build.target_flags("avx2", "AMD64")
    assert build.target_flags("avx2", "arm64") == ()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="instruction sets beyond the base exist on x86-64 only")
def test_instructions_that_a_compiler_does_not_know_are_left_out(tmp_path, capsys):
    """A message says so once, with the name under which the set is chosen."""
    old = tmp_path / "old-g++"
    old.write_text('#!/bin/sh\ncase "$*" in *-mamx*) exit 1;; esac\nexec g++ "$@"\n')
    old.chmod(0o755)
    assert not build.knows([str(old)], "amx", "x86_64")
    assert f"{str(old)!r} does not know amx: the library is built without it" in capsys.readouterr().err
    assert build.knows([str(old)], "avx2", "x86_64") and build.knows([str(old)], "amx", "aarch64")
    assert capsys.readouterr().err == ""


def test_compiler_fails(tmp_path):
    with pytest.raises(build.BuildError, match="no-such-flag"):
        build.build(tmp_path / "x.so", flags=("--no-such-flag",))
    assert list(tmp_path.iterdir()) == []


def test_environment_variables(tmp_path, monkeypatch):
    """CXX and CXXFLAGS reach the compiler."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(build.BuildError, match="no-such-compiler"):
        build.build(tmp_path / "x.so")
    monkeypatch.setenv("CXX", "g++")
    monkeypatch.setenv("CXXFLAGS", "--no-such-flag")
    with pytest.raises(build.BuildError, match="no-such-flag"):
        build.build(tmp_path / "x.so")


def test_library_that_was_not_built(tmp_path):
    from flash_attention.backends.cpu.library import Library

    with pytest.raises(FileNotFoundError, match="python -m flash_attention.backends.cpu.build"):
        Library(tmp_path / "none.so")
    assert os.listdir(tmp_path) == []


def test_forced_instruction_set_is_used():
    """Instruction sets differ in the last bits, so the variable has an effect."""
    case = Case(seq_q=200, seq_k=200, head_dim=64, dtype="float32")
    with instruction_set("scalar"):
        first = run_case(case)
    second = run_case(case)
    assert not np.array_equal(first.output, second.output)


X86 = platform.machine().lower() in ("x86_64", "amd64")
# Instruction sets by the header in simd/ that describes them, and the flags of the targets that use it.
TARGETS = {"portable": ("scalar",)}
TARGETS.update({"avx2": ("avx2",), "avx512": ("avx512", "avx512_bf16")} if X86 else {"neon": ("neon",)})
INCLUDED = sorted(build.SOURCES.glob("*-inl.h"))
ALONE = sorted(set(build.SOURCES.glob("*.h")) - set(INCLUDED))


def compile_text(text: str, flags: tuple) -> None:
    """Check that the text compiles without a warning."""
    flags = (*flags, "-Wall", "-Wextra", "-Werror", "-Wno-unused-function")
    command = ["g++", "-std=c++17", "-fopenmp", "-fsyntax-only", *flags]
    done = subprocess.run([*command, "-I", build.SOURCES, "-x", "c++", "-"], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("header", ALONE, ids=lambda path: path.name)
def test_compiles_alone(header):
    compile_text(f'#include "{header.name}"\n#include "{header.name}"\n', ())


def pairs() -> list:
    """Return the instruction sets with the flags of a target. Further targets of the same header are slow."""
    return [
        pytest.param(simd, target, marks=[pytest.mark.slow] if index else [])
        for simd, targets in TARGETS.items()
        for index, target in enumerate(reversed(targets))
    ]


@pytest.mark.builds
@pytest.mark.parametrize(("simd", "target"), pairs())
def test_compiles_with_every_instruction_set(simd, target):
    """The header of the instruction set compiles alone, and so does each other header behind it."""
    flags = build.target_flags(target)
    instructions = f'#include "simd/{simd}.h"\n'
    compile_text(instructions * 2, flags)
    for header in INCLUDED:
        compile_text(f'{instructions}#include "{header.name}"\n', flags)
