"""Put the compiled helper into the wheel, for the machine that TIKEMU_HELPER names. CC is the compiler.

Without it the wheel is for every machine, and `python -m tikemu.build_native` adds the helper. The rest stands in
pyproject.toml.
"""

import os
import sys
import types
from pathlib import Path

import setuptools

if sys.version_info < (3, 9):  # noqa: UP036
    sys.exit(f"error: tikemu needs Python 3.9 or newer, this is {sys.version_info[0]}.{sys.version_info[1]}")
if int(setuptools.__version__.split(".")[0]) < 62:
    sys.exit(
        f"error: setuptools {setuptools.__version__} does not read pyproject.toml, 62 and newer do: "
        "pip install --upgrade setuptools, or pip install ./emulator"
    )

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1
    from wheel.bdist_wheel import bdist_wheel

MACHINE = os.environ.get("TIKEMU_HELPER", "")


class BuildWithHelper(build_py):
    """Compile the helper into what is packed."""

    def run(self) -> None:
        super().run()
        if MACHINE:
            # The package itself imports NumPy, which nothing here needs.
            package = types.ModuleType("tikemu")
            package.__path__ = [str(Path(__file__).resolve().parent / "tikemu")]
            sys.modules["tikemu"] = package
            from tikemu import build_native

            build_native.build(Path(self.build_lib) / "tikemu/native")


class PlatformDistribution(Distribution):
    """A distribution that is platform-dependent with the helper, although no Python extension is in it."""

    def has_ext_modules(self) -> bool:
        return bool(MACHINE)


class PlatformWheel(bdist_wheel):
    """One wheel for every Python 3: the helper knows the processor, not the interpreter."""

    def initialize_options(self) -> None:
        super().initialize_options()
        if MACHINE:
            self.plat_name = f"linux_{MACHINE}"

    def get_tag(self) -> tuple:
        return ("py3", "none", super().get_tag()[2])


setup(
    license="Apache-2.0",
    cmdclass={"build_py": BuildWithHelper, "bdist_wheel": PlatformWheel},
    distclass=PlatformDistribution,
)
