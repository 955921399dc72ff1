"""Headers: each compiles by itself, or is named -inl.h and needs nothing but an instruction set before it."""

import platform
import subprocess

import pytest
from flash_attention.backends.cpu import build

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
