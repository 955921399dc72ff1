"""Find a MindSpore with a plugin that the stand-in is for."""

from __future__ import annotations

import importlib.util
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from .errors import SetupError

PYTHON, SYSTEM = (3, 9), ("Linux", "x86_64")
_ADVICE = (
    'on Linux x86-64, in Python 3.9: pip install mindspore==2.0.0 "numpy<2" "pillow<10", or in Python 3.9 to 3.11: '
    'pip install mindspore-dev==2.6.0.dev20250323 (or 2.5.0.dev20250202) "numpy<2"'
)


class Installation(NamedTuple):
    """Hold the paths of an installation.

    Attributes:
        python: the interpreter that has MindSpore.
        ge: whether it drives the card through GE, as MindSpore from 2.3 on does.
        plugin: MindSpore's library for the first Ascend 910.
        others: more libraries that call CANN, the library for HCCL first.
    """

    python: Path
    ge: bool
    plugin: Path
    others: tuple[Path, ...]


def find() -> Installation:
    """Return the installation beside this package.

    Raises:
        SetupError: another system, Python or MindSpore than the stand-in is for.
    """
    system = platform.system(), platform.machine()
    if system != SYSTEM:
        raise SetupError(f"the stand-in is for Linux on x86_64, this is {' on '.join(system)}; {_ADVICE}")
    version = _version()
    ge = version.startswith(("2.5.0.dev", "2.6.0.dev"))
    if version != "2.0.0" and not ge:
        raise SetupError(f"the stand-in is for MindSpore 2.0.0, 2.5 and 2.6, installed is {version}; {_ADVICE}")
    if sys.version_info[:2] != PYTHON and not ge:
        raise SetupError(f"MindSpore 2.0.0 needs Python 3.9 here, this is {platform.python_version()}; {_ADVICE}")
    spec = importlib.util.find_spec("mindspore")
    assert spec is not None and spec.submodule_search_locations is not None
    folder = Path(spec.submodule_search_locations[0]) / "lib"
    plugin = folder / f"plugin/libmindspore_ascend.so.{2 if ge else 1}"
    collectives = folder / "plugin/ascend/libhccl_plugin.so"
    for library in (plugin, collectives):
        if not library.exists():
            raise SetupError(f"this MindSpore has no Ascend backend: {library} does not exist; {_ADVICE}")
    # Of 2.6, which has its backend in several libraries.
    more = "plugin/ascend/libmindspore_ascend_res_manager.so", "libmindspore_ge_backend.so"
    parts = tuple(path for path in (folder / name for name in (*more, "plugin/libmindspore_ops_ascend.so")) if ge)
    return Installation(Path(sys.executable), ge, plugin, (collectives, *filter(Path.exists, parts)))


def _version() -> str:
    for name in ("mindspore", "mindspore-dev"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    raise SetupError(f"MindSpore is not installed beside virtual_ascend; {_ADVICE}")
