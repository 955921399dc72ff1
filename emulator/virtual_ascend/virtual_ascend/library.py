"""The stand-in for CANN's libraries: compiled at first use, and kept.

MindSpore's plugin wants some 440 symbols of CANN. The symbols that runtime/ implements are compiled into one library.
Every other symbol becomes a function that prints its name and aborts: no call gets an answer that nobody thought of.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .device import nn
from .errors import SetupError
from .installation import Installation
from .symbols import elftools, needed_libraries, read_symbols

SOURCES = Path(__file__).parent / "runtime"
#: Sources for GE, beside the others; MindSpore 2.0 constructs GE's objects too.
GE = Path(__file__).parent / "ge"
# The same names and layouts of std::string as in the plugin.
FLAGS = ("-std=c++17", "-O1", "-fPIC", "-D_GLIBCXX_USE_CXX11_ABI=0", "-Wall", "-Wextra")
# Names of AscendCL and HCCL as strings in a library. Functions of aclnn are not among them: MindSpore asks for each.
_FUNCTIONS = re.compile(rb"(?<=\0)((?:acl(?!nn)[a-z]*|Hccl|Hcom)[A-Z][A-Za-z0-9]*)(?=\0)")
# Libraries that MindSpore from 2.3 on opens beside the library of aclrtGetSocName.
_OPENED = ["libacl_op_compiler.so", "libacl_tdt_channel.so", "libmsprofiler.so", "libopapi.so", "libnnopbase.so"]
_OBJECTS = ("_ZTV", "_ZTI", "_ZTS")


def cache_folder() -> Path:
    """Return the folder of compiled libraries: VIRTUAL_ASCEND_CACHE, or the user's cache."""
    chosen = os.environ.get("VIRTUAL_ASCEND_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "virtual_ascend"


def prepare(installation: Installation) -> Path:
    """Return the folder that stands in for CANN's.

    It has lib64 with the libraries, opp, and MindSpore's registrations of operators. The first call for a plugin and
    these sources makes the folder. Other processes wait meanwhile.

    Raises:
        SetupError: no compiler, or a plugin with other symbols than these sources are for.
    """
    compiler = shlex.split(os.environ.get("CXX") or "g++")  # such as "ccache g++"
    if not compiler or not shutil.which(compiler[0]):
        raise SetupError(
            f"the runtime has to be compiled, and there is no {' '.join(compiler)}: install g++ (C++17), or set CXX"
        )
    key = hashlib.sha256("\0".join([*compiler, *FLAGS]).encode())
    for source in (
        *sorted(SOURCES.iterdir()),
        *sorted(GE.iterdir()),
        Path(nn.__file__),
        *sorted(Path(__file__).parent.glob("*.py")),
    ):
        key.update(source.read_bytes())
    state = installation.plugin.stat()
    key.update(f"{installation.plugin} {state.st_size} {state.st_mtime_ns}".encode())
    elftools()  # before anything is compiled
    cache = cache_folder()
    place = cache / key.hexdigest()[:16]
    folder = place / "latest"  # MindSpore from 2.3 on finds CANN by the name of this folder
    if folder.exists():  # a cache that was made once may be read-only
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with open(cache / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                with tempfile.TemporaryDirectory(dir=cache) as made:
                    _make(Path(made) / "cann/latest", compiler, installation)
                    os.rename(Path(made) / "cann", place)
    except OSError as error:
        raise SetupError(
            f"the compiled runtime cannot be kept in {cache}: {error.strerror}; "
            "VIRTUAL_ASCEND_CACHE names another folder"
        ) from None
    return folder


def _make(folder: Path, compiler: list[str], installation: Installation) -> None:
    libraries = folder / "lib64"  # MindSpore 2.0 finds CANN by the name of this folder
    libraries.mkdir(parents=True)
    objects = folder / "objects"
    objects.mkdir()
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        sources = [
            *SOURCES.glob("*.cc"),
            *(GE.glob("*.cc") if installation.ge else (GE / "objects.cc", GE / "prototypes.cc")),
        ]
        if installation.ge:
            functions = folder / "nn.cc"
            functions.write_text(nn.source())
            sources.append(functions)
        commands = [
            (*compiler, *FLAGS, "-I", GE, "-c", source, "-o", objects / f"{source.stem}.o") for source in sources
        ]
        list(pool.map(lambda command: _run(*command), commands))
    compiled = sorted(objects.glob("*.o"))
    implemented = frozenset().union(*(read_symbols(path, ".symtab").defined for path in compiled))
    names, wanted = missing(installation)
    if installation.ge:
        wanted |= named(installation)
        names += _OPENED
        (folder / "opp_kernel").mkdir()  # without this folder MindSpore reports an error
    else:
        check(implemented, wanted)
    stubs = folder / "stubs.cc"
    stubs.write_text(stubs_source(wanted - implemented))
    shared = libraries / "libruntime.so"
    _run(*compiler, *FLAGS, "-shared", "-Wl,-soname,libruntime.so", stubs, *compiled, "-o", shared, "-ldl", "-lpthread")
    for name in dict.fromkeys(names):
        if name != shared.name:
            (libraries / name).symlink_to(shared.name)
    shutil.rmtree(objects)
    for source in folder.glob("*.cc"):
        source.unlink()
    # MindSpore reads this table of CANN's built-in operators. The operators that we know are in the registrations.
    table = folder / "opp/built-in/op_impl/ai_core/tbe/config/ascend910/aic-ascend910-ops-info.json"
    table.parent.mkdir(parents=True)
    table.write_text("{}\n")
    if installation.ge:
        return
    script = Path(__file__).with_name("registrations.py")
    _run(installation.python, "-I", script, folder / "registrations.json", cwd=folder)


def _run(*command: object, cwd: Path | None = None) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=cwd)
    if done.returncode:
        raise SetupError(f"{' '.join(map(str, command))} failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")


def missing(installation: Installation) -> tuple[list[str], frozenset[str]]:
    """Return the missing libraries that plugins load, and the symbols that nobody else offers."""
    folder = installation.plugin.parent.parent
    plugins = installation.plugin, *installation.others
    offered: set[str] = set()
    for path in (*folder.glob("*.so*"), *folder.parent.glob("_c_expression*.so"), *plugins):
        offered |= read_symbols(path).defined
    absent, others = [], [ctypes.CDLL(None)]
    for name in dict.fromkeys(name for plugin in plugins for name in needed_libraries(plugin)):
        if (folder / name).exists():
            continue
        try:
            others.append(ctypes.CDLL(name))
        except OSError:
            absent.append(name)
    wanted = frozenset().union(*(read_symbols(plugin).wanted for plugin in plugins)) - offered
    return absent, frozenset(name for name in wanted if not any(hasattr(library, name) for library in others))


def named(installation: Installation) -> frozenset[str]:
    """Return the CANN functions that the plugins name: MindSpore looks them up when it needs them."""
    found: set[bytes] = set()
    for path in (installation.plugin, *installation.others):
        found.update(_FUNCTIONS.findall(path.read_bytes()))
    return frozenset(name.decode() for name in found)


def check(implemented: frozenset[str], wanted: frozenset[str]) -> None:
    """Check that the sources implement every C function of CANN that the plugin wants."""
    functions = {name for name in implemented if name.startswith(("rt", "acl")) and name.isalnum()}
    unwanted = sorted(functions - wanted)
    if unwanted:
        raise SetupError(
            f"this plugin does not ask for {', '.join(unwanted)}, which the plugin of MindSpore 2.0.0 does; needed is "
            "the x86-64 wheel of MindSpore 2.0.0 from PyPI, unchanged"
        )


def stubs_source(names: frozenset[str]) -> str:
    """Return the source of functions that name themselves and abort. Tables of them stand for objects."""
    lines = ['extern "C" {', "[[noreturn]] void virtual_ascend_missing(const char *name);"]
    for name in sorted(names):
        function = name
        if name.startswith(_OBJECTS):
            function = f"{name}_entry"
            lines.append(f"void {function}(); void (*{name}[64])() = {{{', '.join([function] * 64)}}};")
        lines.append(f'void {function}() {{ virtual_ascend_missing("{name}"); }}')
    return "\n".join([*lines, "}", ""])
