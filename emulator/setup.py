"""Builds the wheel with the native helper inside where a C compiler is there, and without it elsewhere."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1
    from wheel.bdist_wheel import bdist_wheel

SOURCE = Path(__file__).resolve().parent / "tikemu"


def compile_helper(folder: Path) -> str:
    """Compile the helper into ``folder``; returns why not, or "". Needs no NumPy: the modules are loaded by file."""
    package = type(sys)("_tikemu")
    package.__path__ = [str(SOURCE)]
    sys.modules["_tikemu"] = package
    for name in ("native", "build_native"):
        path = SOURCE / name / "__init__.py" if name == "native" else SOURCE / f"{name}.py"
        spec = importlib.util.spec_from_file_location(f"_tikemu.{name}", path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        setattr(package, name, module)
        spec.loader.exec_module(module)
    try:
        sys.modules["_tikemu.build_native"].build(folder)
    except RuntimeError as error:
        return str(error)
    return ""


class BuildPy(build_py):
    """Copies the modules and compiles the helper beside its sources."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            reason = compile_helper(Path(self.build_lib) / "tikemu" / "native")
            if reason:
                self.warn(f"tikemu is built without its native helper and will run slower: {reason}")


class BdistWheel(bdist_wheel):
    """One wheel per platform, whatever the Python: the helper is plain C without the Python interface."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


class BinaryDistribution(Distribution):
    """A distribution with a platform."""

    def has_ext_modules(self) -> bool:
        return True


setup(cmdclass={"build_py": BuildPy, "bdist_wheel": BdistWheel}, distclass=BinaryDistribution)
