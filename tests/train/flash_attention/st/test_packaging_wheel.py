"""The wheels: built from clean sources, installed and used without a compiler, with every Python and MindSpore.

With `-m versions`, environments for the MindSpore releases stay beside the environment of ./test.sh (2.7 GB each).
"""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from emulator.virtual_ascend.tests.environments import RELEASES, mindspore_environment, run
from tests.train.flash_attention.st.support.wheel_tools import copy_sources, needs_nothing_newer_than_2014, smoke

# The backend that needs both wheels.
EMULATED = """
import mindspore as ms
import numpy as np
from flash_attention import FlashAttention
tensors = [ms.Tensor(np.random.default_rng(n).standard_normal((1, 2, 40, 16)), ms.float16) for n in range(3)]
outputs = [FlashAttention(16, causal=True, backend=name)(*tensors).asnumpy() for name in ("emulator", "math")]
assert np.abs(outputs[0] - outputs[1]).max() < 4e-3
"""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--machine", "arm64"), "got 'arm64', allowed: aarch64, x86_64"),
        (("--machine",), "got '', allowed: aarch64, x86_64"),
        (("--no-kernel", "--manylinux"), "--no-kernel goes with no other option"),
        (("--no-kernel", "--machine", "aarch64"), "--no-kernel goes with no other option"),
    ],
)
def test_options_that_build_nothing(options: tuple, said: str, tmp_path: Path) -> None:
    sources = copy_sources(tmp_path)
    done = subprocess.run(["bash", sources / "build.sh", *options], capture_output=True, text=True)
    assert done.returncode == 2 and said in done.stderr
    assert not (sources / "dist").exists()


@pytest.fixture(scope="module")
def portable_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel of `build.sh --manylinux`."""
    sources = copy_sources(tmp_path_factory.mktemp("manylinux"))
    run("bash", sources / "build.sh", "--manylinux", cwd=Path("/"), PYTHON=sys.executable)
    (built,) = (sources / "dist").glob("flash_attention-*.whl")
    return built


@pytest.fixture(scope="module")
def emulator_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel of tikemu."""
    sources = copy_sources(tmp_path_factory.mktemp("tikemu"), "emulator")
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", sources, cwd=sources)
    (built,) = sources.glob("tikemu-*.whl")
    return built


@pytest.mark.versions
@pytest.mark.timeout(900)
def test_manylinux_wheel_needs_nothing_newer_than_2014(portable_wheel: Path, tmp_path: Path) -> None:
    assert f"manylinux2014_{platform.machine()}" in portable_wheel.name
    needs_nothing_newer_than_2014(portable_wheel, tmp_path)


@pytest.mark.versions
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("version", RELEASES)
def test_both_wheels_with_every_python(
    version: str, portable_wheel: Path, emulator_wheel: Path, tmp_path: Path
) -> None:
    release, _ = RELEASES[version]
    python = mindspore_environment(version)
    folder = python.parents[1]
    wheels = portable_wheel, emulator_wheel
    run(python, "-m", "pip", "install", "--no-index", "--force-reinstall", "--no-deps", *wheels, cwd=tmp_path)
    run(python, "-m", "pip", "check", cwd=tmp_path)
    printed = run(folder / "bin/flash-attention", "info", cwd=tmp_path, compiler=False)
    shown = str(folder).replace(str(Path.home()), "~", 1)  # no home folder in what users send
    assert shown in printed and "also on the path" not in printed
    assert f"ok {release} cpu graph" in smoke(python, "cpu", "math", cwd=tmp_path, compiler=False)
    run(python, "-c", EMULATED, cwd=tmp_path, compiler=False)
