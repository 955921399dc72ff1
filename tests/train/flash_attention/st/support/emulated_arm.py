"""An Arm machine for tests on x86-64: Debian's Python and MindSpore's wheel for AArch64, emulated by qemu.

Everything is unpacked into a folder beside the other environments, nothing is installed on this machine. It takes 2 GB.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from emulator.virtual_ascend.tests.environments import kept, kept_environment, run
from tests.train.flash_attention.st.support.wheel_tools import ROOT, copy_sources

RELEASE, VERSION = "2.10.0", "3.11"
PLATFORMS = ("manylinux2014_aarch64", "manylinux_2_28_aarch64")
PACKAGES = (
    f"mindspore=={RELEASE}",
    "numpy<2",
    "tqdm",
    "pytest>=8",
    "pytest-timeout",
    "pytest-xdist",
    "hypothesis>=6.100",
)
# The Debian release that has Python VERSION.
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
SUITE = "bookworm"
LIBRARIES = ("libgomp1", "libstdc++6")
# `-0` keeps the wrapper's name, so that sys.executable is the wrapper and programs that tests start are emulated too.
WRAPPER = f"""#!/bin/sh
folder="$(dirname "$(dirname "$(readlink -f "$0")")")"
export PYTHONHOME="$folder/root/usr" QEMU_LD_PREFIX="$folder/root"
exec "$folder/host/usr/bin/qemu-aarch64-static" -0 "$0" "$folder/root/usr/bin/python{VERSION}" "$@"
"""


def emulated_python() -> Path:
    """Return the command of an AArch64 Python with MindSpore; make it once and keep it."""
    return kept_environment(f"arm-mindspore-{RELEASE}", "\n".join((SUITE, *LIBRARIES, *PACKAGES, WRAPPER)), _make)


def arm_wheel() -> Path:
    """Return the wheel of `build.sh --manylinux --machine aarch64`. It is kept until the sources change."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "train").rglob("*")):
        if path.is_file() and not {"__pycache__", "lib", "build", "dist"}.intersection(path.parts):
            digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())

    def make(folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        sources = copy_sources(folder)
        options = ("--manylinux", "--machine", "aarch64")
        run("bash", sources / "build.sh", *options, cwd=Path("/"), PYTHON=sys.executable)

    (wheel,) = (kept("arm-wheel", digest.hexdigest(), make) / "train/dist").glob("*.whl")
    return wheel


def install(wheel: Path, folder: Path) -> None:
    """Unpack the wheel as pip does on an Arm machine: pip there refuses wheels for other machines."""
    _pip_install(folder, "--no-deps", "--no-index", wheel)


def _make(folder: Path) -> None:
    """Fetch the emulator, Python and MindSpore, and write the command that joins them."""
    for program, package in (("apt-get", "apt"), ("dpkg", "dpkg")):
        if shutil.which(program) is None:
            raise RuntimeError(f"no {program}, which fetches Debian's Python for Arm: install {package}")
    if not KEYRING.exists():
        raise RuntimeError(f"no {KEYRING}, which Debian's packages are signed with: install debian-archive-keyring")
    shutil.rmtree(folder, ignore_errors=True)
    here = run("dpkg", "--print-architecture", cwd=Path("/")).strip()
    _unpack(folder / "host", here, "qemu-user-static")
    _unpack(folder / "root", "arm64", f"python{VERSION}", *LIBRARIES)
    _pip_install(folder / "root/usr/lib/python3/dist-packages", *PACKAGES)
    (folder / "bin").mkdir()
    wrapper = folder / "bin/python"
    wrapper.write_text(WRAPPER)
    wrapper.chmod(0o755)


def _sources() -> str:
    """Return the Debian archives of this machine as lines for apt.

    Raises:
        RuntimeError: it takes none of SUITE.
    """
    printed = run("apt-get", "indextargets", "--format", "$(SITE) $(RELEASE) $(COMPONENT)", cwd=Path("/"))
    targets = sorted({tuple(line.split()) for line in printed.splitlines() if len(line.split()) == 3})
    lines = [
        f"deb [signed-by={KEYRING}] {site} {release} main\n"
        for site, release, component in targets
        if release.startswith(SUITE) and component == "main"
    ]
    if not lines:
        raise RuntimeError(
            f"apt has no archive of Debian {SUITE} among its sources, whose Python for Arm has {VERSION}"
        )
    return "".join(lines)


def _unpack(folder: Path, architecture: str, *packages: str) -> None:
    """Unpack Debian packages and all that they need into a folder.

    The machine's own packages and architecture do not matter.
    """
    state = folder / "apt"
    for name in ("lists/partial", "archives/partial"):
        (state / name).mkdir(parents=True)
    (state / "status").touch()
    (state / "sources.list").write_text(_sources())
    settings = {
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Sandbox::User": "",  # another user could not write here
        "Debug::NoLocking": "1",
        "Dir::State": state,
        "Dir::State::status": state / "status",
        "Dir::Cache": state,
        "Dir::Etc::sourcelist": state / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
    }
    apt = ["apt-get", "-qq", *(f"-o{key}={value}" for key, value in settings.items())]
    run(*apt, "update", cwd=folder)
    run(*apt, "install", "--yes", "--download-only", "--no-install-recommends", *packages, cwd=folder)
    for archive in sorted((state / "archives").glob("*.deb")):
        run("dpkg", "-x", archive, folder, cwd=folder)
    shutil.rmtree(state)


def _pip_install(folder: Path, *arguments) -> None:
    """Run pip of this machine, choosing and unpacking what Python VERSION on AArch64 would."""
    platforms = [option for name in PLATFORMS for option in ("--platform", name)]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", folder]
    command += ["--only-binary", ":all:", "--python-version", VERSION, *platforms, *arguments]
    # With a clean environment pip would not see the variables that name a proxy or an index.
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr[-4000:]
