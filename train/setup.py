"""Builds flash_attention with its native CPU kernel inside.

FLASH_ATTENTION_MACHINE names another processor family to compile for, FLASH_ATTENTION_KERNEL=0 leaves the kernel out.
Everything stands here and not in pyproject.toml, so that the setuptools of a 2021 cluster image installs it too.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

if not (3, 9) <= sys.version_info < (3, 13):
    sys.exit(
        f"error: flash_attention needs Python 3.9 to 3.12, this is {sys.version_info[0]}.{sys.version_info[1]}; "
        "MindSpore's wheels end at 3.12. For build.sh PYTHON names another"
    )

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py
from setuptools.command.install import install
from setuptools.command.sdist import sdist
from setuptools.dist import Distribution

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1
    try:
        from wheel.bdist_wheel import bdist_wheel
    except ImportError:  # `setup.py install` needs no wheel
        bdist_wheel = None

HERE = Path(__file__).resolve().parent
# In the repository it lies above; into an archive of the sources it is copied.
README = next((path for path in (HERE / "README.md", HERE.parent / "README.md") if path.exists()), None)
MACHINE = os.environ.get("FLASH_ATTENTION_MACHINE", "")
WITH_KERNEL = {"": False, "0": False, "1": True}.get(os.environ.get("FLASH_ATTENTION_KERNEL", "1"))
if WITH_KERNEL is None:
    sys.exit(f"error: FLASH_ATTENTION_KERNEL: got {os.environ['FLASH_ATTENTION_KERNEL']!r}, allowed are 0 and 1")


def constant(module: str, name: str) -> str:
    """Return a string that a module of the package sets; importing it would want MindSpore."""
    text = (HERE / "flash_attention" / module).read_text(encoding="utf-8")
    return re.search(rf'^{name} = "([^"]*)"', text, re.MULTILINE).group(1)


ADDRESS = constant("address.py", "ADDRESS")


def long_description() -> str:
    """Return the readme, its links changed for a package index."""
    # When pip builds, the folder of setup.py is not on the path.
    sys.path.insert(0, str(HERE))
    from package_page import page

    return page(README.read_text(encoding="utf-8"), ADDRESS) if README else ""


class BuildWithKernel(build_py):
    """Compile the CPU kernel into the package folder before that is copied."""

    def run(self) -> None:
        # An isolated build has no NumPy, which the package imports: by path, and with the standard library alone.
        command = [sys.executable, "-I", "-S", "flash_attention/backends/cpu/build.py"]
        if WITH_KERNEL and subprocess.run(command, cwd=HERE).returncode:
            sys.exit("error: the CPU kernel was not built, for the reason above")
        # Setuptools may have listed the data files before the library was there.
        self.__dict__.pop("data_files", None)
        super().run()


class SourcesWithReadme(sdist):
    """Sources that can be built without the repository around them."""

    def make_release_tree(self, base_dir: str, files: list) -> None:
        super().make_release_tree(base_dir, files)
        if README:
            shutil.copy(README, Path(base_dir) / "README.md")


class PlainInstall(install):
    """`setup.py install` as new setuptools has it: copies files; old ones would fetch dependencies as eggs."""

    def run(self) -> None:
        super(install, self).run()


class PlatformDistribution(Distribution):
    """A distribution that is platform-dependent with the kernel, although no Python extension is in it."""

    def has_ext_modules(self) -> bool:
        return WITH_KERNEL


commands = {"build_py": BuildWithKernel, "install": PlainInstall, "sdist": SourcesWithReadme}

if bdist_wheel is not None:

    class PlatformWheel(bdist_wheel):
        """One wheel for every Python 3: the library knows the processor, not the interpreter."""

        def initialize_options(self) -> None:
            super().initialize_options()
            if MACHINE and WITH_KERNEL:
                self.plat_name = f"linux_{MACHINE}"

        def get_tag(self) -> tuple:
            return ("py3", "none", super().get_tag()[2])

    commands["bdist_wheel"] = PlatformWheel

setup(
    # The name of the public distribution with the same import path, which this one replaces.
    name="flash-attention",
    version=constant("__init__.py", "__version__"),
    description="FlashAttention for MindSpore: TIK operators for the Ascend 910, a native kernel for CPUs",
    long_description=long_description(),
    long_description_content_type="text/markdown",
    author="The developers of FlashAttention for MindSpore",
    license="Apache-2.0",
    platforms=["Linux"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: C++",
        "Programming Language :: Python :: 3",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in range(9, 13)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    keywords="Ascend MindSpore attention FlashAttention TIK",
    project_urls={"Source": ADDRESS, "Reports": ADDRESS} if ADDRESS else {},
    python_requires=">=3.9",
    packages=find_packages(include=["flash_attention", "flash_attention.*"]),
    package_data={
        "": ["*.json", "py.typed", "*.pyi"],
        # The sources travel too: `python -m flash_attention.backends.cpu.build` makes the kernel on another processor.
        "flash_attention.backends.cpu": [*(["lib/*.so"] if WITH_KERNEL else []), "csrc/*", "csrc/*/*"],
    },
    install_requires=["mindspore>=2.0.0", "numpy>=1.20,<2", "tqdm"],
    extras_require={
        "mindspore2-0": ["mindspore>=2.0.0,<2.1", "pillow<10"],
        "plot": ["matplotlib"],
        "torch": ["torch==2.13.0"],
    },
    entry_points={"console_scripts": ["flash-attention = flash_attention.cli:main"]},
    cmdclass=commands,
    distclass=PlatformDistribution,
    zip_safe=False,
)
