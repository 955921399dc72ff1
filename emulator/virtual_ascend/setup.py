"""Refuse what would install nothing under the name UNKNOWN. The rest stands in pyproject.toml."""

import sys

import setuptools

if sys.version_info < (3, 9):  # noqa: UP036
    sys.exit(f"error: virtual_ascend needs Python 3.9 or newer, this is {sys.version_info[0]}.{sys.version_info[1]}")
if int(setuptools.__version__.split(".")[0]) < 63:
    sys.exit(
        f"error: setuptools {setuptools.__version__} does not read pyproject.toml, 63 and newer do: "
        "pip install --upgrade setuptools, or pip install ./emulator/virtual_ascend"
    )

setuptools.setup(license="Apache-2.0")
