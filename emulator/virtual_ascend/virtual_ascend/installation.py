"""Find the one MindSpore whose plugin the stand-in is for."""

from __future__ import annotations

import importlib.util
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from .errors import SetupError

MINDSPORE, PYTHON, SYSTEM = "2.0.0", (3, 9), ("Linux", "x86_64")
_ADVICE = 'in an environment of Python 3.9 on Linux x86-64: pip install mindspore==2.0.0 "numpy<2" "pillow<10"'


class Installation(NamedTuple):
    """Hold the paths of an installation.

    Attributes:
        python: the interpreter that has MindSpore.
        plugin: MindSpore's library for the first Ascend 910.
        collectives: the one that it calls HCCL with.
    """

    python: Path
    plugin: Path
    collectives: Path


def find() -> Installation:
    """The installation beside this package.

    Raises:
        SetupError: another system, Python or MindSpore than the stand-in is for.
    """
    system = platform.system(), platform.machine()
    if system != SYSTEM:
        raise SetupError(f"the stand-in is for Linux on x86_64, this is {' on '.join(system)}; {_ADVICE}")
    if sys.version_info[:2] != PYTHON:
        raise SetupError(f"MindSpore 2.0.0 needs Python 3.9 here, this is {platform.python_version()}; {_ADVICE}")
    try:
        version = metadata.version("mindspore")
    except metadata.PackageNotFoundError:
        raise SetupError(f"MindSpore is not installed beside virtual_ascend; {_ADVICE}") from None
    if version != MINDSPORE:
        raise SetupError(f"the stand-in is for MindSpore {MINDSPORE}, installed is {version}; {_ADVICE}")
    spec = importlib.util.find_spec("mindspore")
    assert spec is not None and spec.submodule_search_locations is not None
    plugin = Path(spec.submodule_search_locations[0]) / "lib/plugin/libmindspore_ascend.so.1"
    collectives = plugin.parent / "ascend/libhccl_plugin.so"
    for library in (plugin, collectives):
        if not library.exists():
            raise SetupError(f"this MindSpore has no Ascend backend: {library} does not exist; {_ADVICE}")
    return Installation(Path(sys.executable), plugin, collectives)
