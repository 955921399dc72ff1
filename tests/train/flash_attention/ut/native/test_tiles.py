"""Tile instructions (AMX): what stands in for them on other processors, and the kernel's cases on that.

If the processor has tile instructions, the tests of this folder that go over instruction sets use them as well.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from flash_attention.backends.cpu import build, library
from flash_attention.call import Call

from emulator.virtual_ascend.tests.environments import run
from tests.train.flash_attention.st.support.wheel_tools import ROOT
from tests.train.flash_attention.ut.native.support import calls
from tests.train.flash_attention.ut.native.support.calls import instruction_set

HERE = Path(__file__).parent
HAS_TILES = library.TILES_ISA in library.instruction_sets()
SCALAR = "-DFLASH_ATTENTION_SCALAR_TILES"
# 16 rows of sums and of pairs, as the register has them.
SIDE = 16
SMALLEST = np.float32(2.0**-126)
# Least and largest exponents of sums, left and right operands.
EXPONENTS = (
    ((0, 0), (0, 0), (0, 0)),
    ((-60, 15), (-60, 15), (-60, 15)),
    ((-120, -100), (-140, -127), (10, 34)),
    ((-120, -100), (10, 34), (-140, -127)),
    ((-140, -120), (-70, -60), (-75, -60)),
)
MISUSES = ("none", "palette", "reserved", "ninth", "rows", "bytes", "half", "absent", "sizes", "odd", "released")
# They compile, choose between other instruction sets, or measure time.
LEFT_OUT = [f"test_{name}.py" for name in ("build", "memcheck", "tiles", "bfloat16_rate", "peak")]
# The target scalar is tested elsewhere, as float32 is, and 65536 rows take minutes.
SELECTED = "not scalar and not 65536 and not more_sums_than_are_kept and not float32"


needs_tiles = pytest.mark.skipif(not HAS_TILES, reason="the processor has no tiles")


@pytest.fixture(scope="module", params=("scalar", pytest.param("intrinsics", marks=needs_tiles)))
def driver(request, tmp_path_factory) -> Path:
    """Build tiles_driver.cpp with one of the two implementations."""
    program = tmp_path_factory.mktemp("tiles") / "driver"
    flags = (SCALAR,) if request.param == "scalar" else ("-DINTRINSICS", "-mamx-tile", "-mamx-bf16")
    sources = (HERE / "tiles_driver.cpp", build.SOURCES / "tile_permission.cpp")
    command = ["g++", "-O1", "-std=c++17", "-ffp-contract=off", "-fopenmp", "-w", *flags, "-I", build.SOURCES, *sources]
    subprocess.run([*command, "-o", program], check=True)
    return program


def flushed(values: np.ndarray) -> np.ndarray:
    """Round to float32, with zeros for subnormal numbers."""
    rounded = values.astype(np.float32)
    return np.where(np.abs(rounded) < SMALLEST, np.copysign(np.float32(0), rounded), rounded)


def pairs(bits: np.ndarray) -> np.ndarray:
    """Return the first and the second bfloat16 of units, flushed, as float64."""
    halves = np.stack([bits << np.uint32(16), bits & np.uint32(0xFFFF0000)]).view(np.float32)
    return flushed(halves).astype(np.float64)


def dot(sums: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Compute the instruction as Intel's manual describes it: first and second values apart, then together, then the
    sums.
    """
    partial = np.zeros((2, SIDE, SIDE))
    for k in range(SIDE):
        partial = flushed(pairs(left)[:, :, k, None] * pairs(right)[:, None, k] + partial).astype(np.float64)
    return flushed(flushed(sums).astype(np.float64) + flushed(partial[0] + partial[1]))


def test_products_are_those_of_the_manual(driver) -> None:
    """Bit by bit: numbers of like size, which show the order of sums, and numbers that are partly or all subnormal."""
    rng = np.random.default_rng(0)
    tiles = []
    for exponents in EXPONENTS:
        for _ in range(8):
            sizes = np.stack([rng.integers(low, high + 1, (SIDE, SIDE, 2)) for low, high in exponents])
            numbers = (rng.standard_normal(sizes.shape) * 2.0**sizes).astype(np.float32).view(np.uint32)
            units = numbers[..., 0] >> np.uint32(16) | numbers[..., 1] & np.uint32(0xFFFF0000)
            units[0] = numbers[0, ..., 0]
            tiles.append(units)
    done = subprocess.run([driver, "dot"], input=np.array(tiles).tobytes(), capture_output=True, check=True)
    results = np.frombuffer(done.stdout, np.uint32).reshape(len(tiles), SIDE, SIDE)
    for (sums, left, right), result in zip(tiles, results):
        np.testing.assert_array_equal(result, dot(sums.view(np.float32), left, right).view(np.uint32))


@pytest.mark.parametrize("what", ("sessions", "small"))
def test_configuration(driver, what: str) -> None:
    assert subprocess.run([driver, what]).returncode == 0


@pytest.mark.parametrize("what", MISUSES)
@pytest.mark.parametrize("driver", ("scalar",), indirect=True)
def test_what_a_processor_refuses_ends_the_program(driver, what: str) -> None:
    done = subprocess.run([driver, what], capture_output=True, text=True)
    assert done.returncode != 0 and done.stderr.startswith("tiles: ")


@pytest.mark.builds
@pytest.mark.timeout(3600)
def test_native_cases_on_scalar_tiles(tmp_path) -> None:
    """The tests of this folder pass in a checkout with a library that has to use tiles, which C++ stands for."""
    unwanted = shutil.ignore_patterns("__pycache__", "lib", "build", "dist")
    shutil.copytree(ROOT / "train", tmp_path / "train", ignore=unwanted)
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=unwanted)
    shutil.copy(ROOT / "pytest.ini", tmp_path)
    build.build(tmp_path / "train" / build.LIBRARY.relative_to(ROOT / "train"), flags=("-O1", SCALAR), isas=())
    folder = HERE.relative_to(ROOT)
    options = ["-q", "-p", "no:cacheprovider", "--timeout=0", "-k", SELECTED]
    options += [f"--ignore={folder / name}" for name in LEFT_OUT]
    path = f"{tmp_path / 'train'}:{tmp_path}"
    environment = {"PYTHONPATH": path, library.ISA_VARIABLE: library.TILES_ISA}
    printed = run(sys.executable, "-m", "pytest", *options, folder, cwd=tmp_path, **environment)
    assert int(re.search(r"(\d+) passed", printed)[1]) > 250, printed[-2000:]


@pytest.mark.skipif(HAS_TILES, reason="the processor has them")
def test_tiles_that_are_not_there_are_refused() -> None:
    call = Call(1, 1, 4, 4, 16, dtype="bfloat16")
    tensors = [np.zeros((1, 1, 4, 16), np.float32)] * 4
    with instruction_set(library.TILES_ISA), pytest.raises(library.KernelError, match="missing on this processor"):
        calls.run(call, *tensors)


# A process of its own prints the permission before and after calls, the instruction set of bfloat16, and the result
# of a call.
PROGRAM = """
import ctypes, sys
import numpy as np
from flash_attention.backends.cpu import library
from flash_attention.commands import info
from flash_attention.call import Call

def permitted():
    features = ctypes.c_uint64()
    assert ctypes.CDLL(None).syscall(158, 0x1022, ctypes.byref(features)) == 0
    return features.value >> 18 & 1

def output(dtype):
    query = np.random.default_rng(0).standard_normal((1, 2, 40, 32), np.float32)
    if dtype == "float16":
        query = query.astype(np.float16)
    if dtype == "bfloat16":
        query = (query.view(np.uint32) >> 16).astype(np.uint16)
    return library.forward(Call(1, 2, 40, 40, 32, dtype=dtype), query, query, query)[0]

kernel = library.load()
names = kernel.instruction_sets()
output("float32")
print(permitted(), end=" ")
result = output("bfloat16")
print(permitted(), kernel.bfloat16_isa(), names[0], hash(result.tobytes()))
print(info.bfloat16_arithmetic())
"""


@needs_tiles
@pytest.mark.parametrize("dtype", library.TILE_PARTS)
def test_tiles_come_first_and_are_asked_for_at_the_first_problem_that_takes_them(run_python, dtype: str) -> None:
    program = PROGRAM.replace('output("bfloat16")', f'output("{dtype}")')
    chosen, said = run_python("-c", program, **{library.ISA_VARIABLE: ""}).splitlines()
    assert chosen.split()[:4] == ["0", "1", library.TILES_ISA, library.TILES_ISA]
    assert said == "tiles: the processor has them, and Linux permits them"


@needs_tiles
def test_without_permission_other_instructions_are_used(run_python, tmp_path) -> None:
    """A sandbox may refuse the permission. Then the next instruction set computes the result, and info says so."""
    source, refusal = tmp_path / "refusal.c", tmp_path / "refusal.so"
    source.write_text(
        "#include <dlfcn.h>\n"
        "long syscall(long number, long a, long b, long c, long d, long e, long f) {\n"
        "  if (number == 158 && a == 0x1023) return -1;\n"
        '  return ((long (*)(long, ...))dlsym((void*)-1l, "syscall"))(number, a, b, c, d, e, f);\n'
        "}\n"
    )
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", refusal, source], check=True)
    refused = {"LD_PRELOAD": str(refusal), "PYTHONHASHSEED": "0"}
    chosen, said = run_python("-c", PROGRAM, **refused, **{library.ISA_VARIABLE: ""}).splitlines()
    before, after, isa, first, result = chosen.split()
    assert (before, after, first) == ("0", "0", library.TILES_ISA) and isa == library.instruction_sets()[1]
    assert said.startswith(("float32: ", "dot product: ")) and "Linux does not permit tiles to this process" in said
    forced, _ = run_python("-c", PROGRAM, PYTHONHASHSEED="0", **{library.ISA_VARIABLE: isa}).splitlines()
    assert forced.split()[-1] == result
    program = f"import os; os.environ[{library.ISA_VARIABLE!r}] = {library.TILES_ISA!r}\ntry:\n    exec({PROGRAM!r})"
    program += "\nexcept library.KernelError as error:\n    print(error)"
    assert "not permitted to this process by Linux" in run_python("-c", program, **refused)
