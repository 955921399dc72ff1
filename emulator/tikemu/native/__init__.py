"""Optional compiled helper for vector instructions and the checks of strict mode, loaded through ctypes.

Wheels for one processor family have the library in them. Otherwise ``python -m tikemu.build_native`` compiles
``vector.c`` and ``marks.c`` into the user's cache. Results are bit-equal to the NumPy path. Without the library
everything works, but slower. The environment variable ``TIKEMU_NATIVE=0`` switches it off, and
``TIKEMU_NATIVE=generic`` selects the portable version of the code.

The last bytes of the library are the digest of the others. To load half a library would end the process.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import warnings
from array import array
from contextlib import suppress
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, Callable

from .. import environment
from ..errors import TikWarning

Piece = tuple[int, int, int, int, int, int]
SOURCES = ("vector.c", "marks.c")
HEADERS = ("vector.h",)
FAMILIES = ("float", "int32", "bits16", "to_int32", "from_int32", "sum", "extreme", "compare")
# Operation codes by family, in the order of the enums in vector.c.
_FLOAT = (
    *("add", "sub", "mul", "div", "max", "min", "adds", "muls", "abs", "relu", "sqrt", "rec", "rsqrt", "conv"),
    *("axpy", "mla", "madd"),
)
OPERATIONS: dict[str, tuple[str, ...]] = {
    "float": _FLOAT,
    "int32": _FLOAT,
    "bits16": ("and", "or", "not", "table"),
    "to_int32": ("round", "floor", "ceil", "away-zero", "to-zero"),
    "from_int32": ("",),
    "sum": ("",),
    "extreme": _FLOAT,
    "compare": ("lt", "gt", "le", "ge", "eq", "ne"),
}


class VectorCall(ctypes.Structure):
    """One vector instruction as ``tik_vector`` in vector.c; strides in bytes."""

    _fields_ = [
        *(
            (name, ctypes.c_int32)
            for name in ("family", "op", "dst_kind", "src_kind", "repeats", "lanes", "full", "reads_dst")
        ),
        *((name, ctypes.c_int64) for name in ("dst_rep", "dst_blk", "a_rep", "a_blk", "b_rep", "b_blk")),
        *((name, ctypes.c_void_p) for name in ("dst", "a", "b", "lane", "table")),
        ("scalar", ctypes.c_double),
        ("overflow", ctypes.c_int64),
    ]


def library_name() -> str:
    """Return the file name of the compiled library.

    It has a digest of the sources, so a stale library is never loaded.
    """
    folder = Path(__file__).parent
    digest = hashlib.sha256(b"".join((folder / name).read_bytes() for name in (*SOURCES, *HEADERS))).hexdigest()[:12]
    return f"tikemu_vector_{digest}_sealed.so"


def sealed(content: bytes) -> bytes:
    """Return a library with its digest behind it."""
    return content + hashlib.sha256(content).digest()


def intact(path: Path) -> bool:
    """Return whether a file is a library as it was written, to its last byte. Raises OSError if it cannot be read."""
    content = path.read_bytes()
    size = len(content) - hashlib.sha256().digest_size
    return size > 0 and sealed(content[:size]) == content


def library_folder() -> Path:
    """Return the folder for the compiled library: the user's cache.

    Raises:
        RuntimeError: there is no XDG_CACHE_HOME, and the user has no home.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tikemu"


@cache
def _load(mode: str) -> _Helper | None:
    if mode == "0":
        return None
    folders = [Path(__file__).parent]
    with suppress(RuntimeError):
        folders.append(library_folder())
    for path in (folder / library_name() for folder in folders):
        if path.is_file():
            try:
                if intact(path):
                    return _Helper(path, mode == "generic")
                reason = "it is damaged"
            except OSError as error:
                reason = str(error)
            warnings.warn(
                f"the compiled helper {path} is not used: {reason}; NumPy computes, slower. "
                "python -m tikemu.build_native compiles it anew",
                TikWarning,
                stacklevel=2,
            )
    return None


class _Helper:
    """The functions of the compiled library; each takes the address of a record."""

    def __init__(self, path: Path, generic: bool) -> None:
        # PyDLL keeps the interpreter lock: a call takes microseconds.
        library = ctypes.PyDLL(str(path))
        select = library.tik_select
        select.restype, select.argtypes = ctypes.PYFUNCTYPE(None, ctypes.c_void_p), [ctypes.c_int]
        self.vector: Callable[[int], None] = select(int(generic))
        self.defined, self.mark = library.tik_defined, library.tik_mark
        self.defined.argtypes = self.mark.argtypes = [ctypes.c_void_p]


def _helper() -> _Helper | None:
    return _load(environment.native())


def available() -> bool:
    """Return whether the compiled helper is in use."""
    return _helper() is not None


def runner(family: str, op: str, keep: tuple[Any, ...], **fields: Any) -> Callable[[], None] | None:
    """Return a zero-argument function that executes one vector instruction, or None without the library.

    Args:
        family, op: see OPERATIONS.
        keep: objects that own the memory to which the call points.
        fields: the remaining fields of VectorCall.

    The function has the attributes ``record`` (its VectorCall) and ``status``. ``status.overflow`` counts the
    executions in which a result saturated.
    """
    helper = _helper()
    if helper is None:
        return None
    record = VectorCall(family=FAMILIES.index(family), op=OPERATIONS[family].index(op), **fields)
    run: Any = partial(helper.vector, ctypes.addressof(record))
    run.record, run.status, run.keep = record, record, keep
    return run


class Marks:
    """Test the marks of bytes that an operation reads, and mark its results.

    Args:
        reads, writes: pieces of bytes as in ``isa.region``; the first entry of a piece is an address in this process.

    Attributes:
        defined: ``defined()`` is 1 if every byte read is marked.
        mark: ``mark()`` marks every byte written.
    """

    __slots__ = ("defined", "mark", "_record")

    def __init__(self, helper: _Helper, reads: list[Piece], writes: list[Piece]) -> None:
        self._record = array("q", (len(reads), len(writes), *chain.from_iterable(reads), *chain.from_iterable(writes)))
        address = self._record.buffer_info()[0]
        self.defined: Callable[[], int] = partial(helper.defined, address)
        self.mark: Callable[[], int] = partial(helper.mark, address)


def marks(reads: list[Piece], writes: list[Piece]) -> Marks | None:
    """Return the marks of one operation, or None without the library."""
    helper = _helper()
    return None if helper is None else Marks(helper, reads, writes)
