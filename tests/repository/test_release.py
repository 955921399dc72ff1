"""Test the files that `scripts/release.sh` puts into dist/: contents, metadata, and a first call of each.

The script runs these tests on its files; FLASH_ATTENTION_DIST names their folder.
"""

from __future__ import annotations

import email
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from pathlib import Path

import pytest
from flash_attention.address import ADDRESS

from emulator.virtual_ascend.tests.environments import environment, mindspore_environment, run
from tests.train.flash_attention.st.support.emulated_arm import emulated_python
from tests.train.flash_attention.st.support.emulated_arm import install as install_for_arm
from tests.train.flash_attention.st.support.wheel_tools import LIBRARY, needs_nothing_newer_than_2014, smoke

pytestmark = [pytest.mark.builds, pytest.mark.timeout(1800)]
if "FLASH_ATTENTION_DIST" not in os.environ:
    pytest.skip("scripts/release.sh runs these tests", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
HERE = platform.machine()
FOLDERS = {"flash_attention": "train", "tikemu": "emulator", "virtual_ascend": "emulator/virtual_ascend"}
PLATFORMS = {"flash_attention": (HERE, "any"), "tikemu": (HERE, "any"), "virtual_ascend": ("any",)}
WHEELS = [(name, machine) for name, machines in PLATFORMS.items() for machine in machines]
if HERE != "aarch64":
    WHEELS += [("flash_attention", "aarch64"), ("tikemu", "aarch64")]

ATTENTION = """
import sys
import numpy as np
from mindspore import Tensor
from flash_attention import FlashAttention
tensors = [Tensor(np.random.default_rng(n).standard_normal((1, 2, 40, 16)).astype(np.float16)) for n in range(3)]
ours, composed = (FlashAttention(16, causal=True, backend=name)(*tensors).asnumpy() for name in (sys.argv[1], "math"))
assert np.abs(ours - composed).max() < 4e-3
print("first call:", sys.argv[1])
"""
UNNAMED = """
import mindspore as ms
import numpy as np
from flash_attention import FlashAttention
tensors = [ms.Tensor(np.ones((1, 2, 40, 16)), ms.float32) for _ in range(3)]
np.testing.assert_allclose(FlashAttention(16, causal=True)(*tensors).asnumpy(), 1, rtol=1e-6)
"""
TIK = """
import numpy as np, tikemu
tikemu.install(soc="Ascend910A")
from tbe import tik
instance = tik.Tik()
x, y = (instance.Tensor("float16", (128,), tik.scope_gm, name) for name in "xy")
ub = instance.Tensor("float16", (128,), tik.scope_ubuf, "ub")
instance.data_move(ub, x, 0, 1, 8, 0, 0)
instance.vec_adds(128, ub, ub, 1.0, 1, 8, 8)
instance.data_move(y, ub, 0, 1, 8, 0, 0)
instance.BuildCCE("add_one", [x], [y])
result = tikemu.run(instance, {"x": np.arange(128, dtype=np.float16)})
assert (result.outputs["y"] == np.arange(1, 129)).all()
print("first call:", "with helper" if tikemu.native.available() else "without helper")
"""


@pytest.fixture
def dist() -> Path:
    """Return the folder that the script wrote."""
    return Path(os.environ["FLASH_ATTENTION_DIST"])


def wheel_of(dist: Path, name: str, machine: str) -> Path:
    """Return the only wheel of a distribution for a machine, or "any"."""
    found = list(dist.glob(f"{name}-*-py3-none-{'any' if machine == 'any' else f'*_{machine}'}.whl"))
    if machine == "aarch64" and not found:
        pytest.skip("the script said that it left out the wheels for aarch64")
    assert len(found) == 1, (name, machine, found)
    return found[0]


def tracked(folder: str) -> set[str]:
    """Return the files that git has under a folder, by paths inside it."""
    printed = subprocess.run(["git", "ls-files"], cwd=ROOT / folder, capture_output=True, text=True, check=True).stdout
    return set(printed.split())


def metadata(wheel: Path) -> Message:
    """Return the fields of METADATA; the payload is the description."""
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    return email.message_from_bytes(archive.read(name))


@pytest.mark.parametrize(("name", "machine"), WHEELS)
def test_contents_are_what_git_has_and_the_library(dist: Path, name: str, machine: str) -> None:
    files = set(zipfile.ZipFile(wheel_of(dist, name, machine)).namelist())
    packed = {file for file in files if ".dist-info/" not in file and not file.endswith("/")}
    wanted = {file for file in tracked(FOLDERS[name]) if file.startswith(f"{name}/")}
    libraries = {file for file in packed - wanted if file.endswith(".so")}
    if machine == "any":
        assert not libraries
    else:
        (library,) = libraries
        assert library == LIBRARY or re.fullmatch(r"tikemu/native/tikemu_vector_\w+\.so", library)
    assert packed - libraries == wanted
    assert any(file.endswith("LICENSE") for file in files)


@pytest.mark.parametrize("name", FOLDERS)
def test_archive_of_sources_is_what_git_has(dist: Path, name: str) -> None:
    (archive,) = dist.glob(f"{name}-*.tar.gz")
    with tarfile.open(archive) as opened:
        files = {member.name.partition("/")[2] for member in opened if member.isfile()}
    made = {"PKG-INFO", "setup.cfg", "README.md"}
    packed = {file for file in files if ".egg-info/" not in file} - made
    wanted = tracked(FOLDERS[name]) - made
    if name == "tikemu":
        wanted = {file for file in wanted if not file.startswith("virtual_ascend/")}
    wanted = {file for file in wanted if not file.startswith("tests/")}
    # For the repository alone.
    assert wanted - packed <= {"build.sh", "CHANGELOG.md"} and packed <= wanted


@pytest.mark.parametrize(("name", "machine"), WHEELS)
def test_metadata(dist: Path, name: str, machine: str) -> None:
    fields = metadata(wheel_of(dist, name, machine))
    assert fields["Author"] == "The developers of FlashAttention for MindSpore"
    assert fields["License"] == "Apache-2.0" and fields["Summary"] and fields["Requires-Python"] == ">=3.9"
    systems = [value for value in fields.get_all("Classifier") if value.startswith("Operating System")]
    assert systems == ["Operating System :: POSIX :: Linux"]
    wanted = [ADDRESS, ADDRESS] if ADDRESS else []
    assert [value.split(", ")[1] for value in fields.get_all("Project-URL", [])] == wanted
    # A page of an index stands beside no file of the repository.
    text = fields.get_payload()
    assert len(text) > 1000
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert all(link.startswith("https://") for link in links), links


def test_checksums(dist: Path) -> None:
    lines = (dist / "SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, name in (line.split() for line in lines)}
    assert set(sums) == {path.name for path in dist.iterdir()} - {"SHA256SUMS"}
    for name, digest in sums.items():
        assert hashlib.sha256((dist / name).read_bytes()).hexdigest() == digest


def installed(folder: Path, *packages: Path, python: str | Path = sys.executable) -> Path:
    """Return the Python of a new environment with these packages. It also sees the packages of `python`."""
    interpreter = environment(folder, str(python))
    options = ("--no-index", "--no-deps", "--ignore-installed", "--no-build-isolation")
    run(interpreter, "-m", "pip", "install", *options, *packages, cwd=folder)
    return interpreter


@pytest.mark.parametrize("machine", [HERE, "any"])
def test_first_call_of_attention(dist: Path, tmp_path: Path, machine: str) -> None:
    python = installed(tmp_path / "venv", wheel_of(dist, "flash_attention", machine))
    printed = run(tmp_path / "venv/bin/flash-attention", "info", cwd=tmp_path, compiler=False)
    assert str(tmp_path / "venv") in printed
    # Without a kernel, backend cpu names what is missing, and without a name the backend is another.
    assert ("build it with: python -m flash_attention.backends.cpu.build" in printed) == (machine == "any")
    run(python, "-c", UNNAMED, cwd=tmp_path, compiler=False)
    smoke(python, "math" if machine == "any" else "cpu", cwd=tmp_path, compiler=False)


@pytest.mark.parametrize("machine", [HERE, "any"])
def test_first_call_of_tikemu_and_of_the_emulated_operators(dist: Path, tmp_path: Path, machine: str) -> None:
    wheels = wheel_of(dist, "tikemu", machine), wheel_of(dist, "flash_attention", machine)
    python = installed(tmp_path / "venv", *wheels)
    # With its own, empty cache: the library in use came with the wheel.
    printed = run(python, "-c", TIK, cwd=tmp_path, XDG_CACHE_HOME=str(tmp_path))
    assert printed == f"first call: {'without' if machine == 'any' else 'with'} helper\n"
    if machine == "any":
        run(python, "-m", "tikemu.build_native", cwd=tmp_path, XDG_CACHE_HOME=str(tmp_path))
        assert run(python, "-c", TIK, cwd=tmp_path, XDG_CACHE_HOME=str(tmp_path)) == "first call: with helper\n"
    printed = run(python, "-c", ATTENTION, "emulator", cwd=tmp_path, XDG_CACHE_HOME=str(tmp_path))
    assert "first call: emulator" in printed


@pytest.mark.parametrize("machine", [HERE, "aarch64"])
def test_every_linux_since_2014_can_load_it(dist: Path, tmp_path: Path, machine: str) -> None:
    for name in ("flash_attention", "tikemu"):
        assert f"manylinux2014_{machine}" in wheel_of(dist, name, machine).name
    needs_nothing_newer_than_2014(wheel_of(dist, "flash_attention", machine), tmp_path)


def test_first_call_with_the_dependencies_of_an_index(dist: Path, tmp_path: Path) -> None:
    """In an empty environment pip fetches the packages that the metadata names."""
    python = environment(tmp_path / "venv", share=False)
    wheel = wheel_of(dist, "flash_attention", HERE)
    # With a clean environment pip would not see the variables that name an index.
    done = subprocess.run([python, "-m", "pip", "install", "--quiet", wheel], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "first call: cpu" in run(python, "-c", ATTENTION, "cpu", cwd=tmp_path, compiler=False)
    shutil.rmtree(tmp_path / "venv")


def test_first_call_on_the_virtual_card(dist: Path, tmp_path: Path) -> None:
    wheels = (wheel_of(dist, name, "any") for name in FOLDERS)
    installed(tmp_path / "venv", *wheels, python=mindspore_environment("3.9"))
    (tmp_path / "program.py").write_text(
        "import mindspore\nmindspore.set_context(mode=mindspore.GRAPH_MODE, device_target='Ascend')\n" + ATTENTION
    )
    command = tmp_path / "venv/bin/virtual-ascend"
    assert "first call: tik" in run(command, "--", "python", "program.py", "tik", cwd=tmp_path)


@pytest.mark.skipif(not shutil.which("apt-get"), reason="no apt-get, which fetches Debian's Python for Arm")
def test_first_calls_on_arm_under_emulation(dist: Path, tmp_path: Path) -> None:
    for name in ("flash_attention", "tikemu"):
        install_for_arm(wheel_of(dist, name, "aarch64"), tmp_path)
    variables = {"PYTHONPATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    assert "first call: cpu" in run(emulated_python(), "-c", ATTENTION, "cpu", cwd=tmp_path, **variables)
    assert "first call: with helper" in run(emulated_python(), "-c", TIK, cwd=tmp_path, **variables)
