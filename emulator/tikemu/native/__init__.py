"""Optional compiled helper for vector instructions, loaded through ctypes.

``python -m tikemu.build_native`` compiles ``vector.c`` into the user's cache. Results are bit-equal to the NumPy path;
without the library everything works, slower. The environment variable ``TIKEMU_NATIVE=0`` switches it off,
``TIKEMU_NATIVE=generic`` selects the portable version of the code.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from functools import cache, partial
from pathlib import Path
from typing import Any, Callable

SOURCES = ("vector.c", "vector.h")
FAMILIES = ("float", "int32", "bits16", "to_int32", "from_int32", "sum", "extreme", "compare")
# Operation codes by family, in the order of the enums in vector.c.
_FLOAT = (
    "add",
    "sub",
    "mul",
    "div",
    "max",
    "min",
    "adds",
    "muls",
    "abs",
    "relu",
    "sqrt",
    "rec",
    "rsqrt",
    "conv",
    "axpy",
    "mla",
    "madd",
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
    """File name of the compiled library: it carries a digest of the sources, so that a stale one is never loaded."""
    folder = Path(__file__).parent
    digest = hashlib.sha256(b"".join((folder / name).read_bytes() for name in SOURCES)).hexdigest()[:12]
    return f"tikemu_vector_{digest}.so"


def library_folder() -> Path:
    """Where the library lies: in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tikemu"


@cache
def _load(mode: str) -> Callable[[Any], None] | None:
    if mode == "0":
        return None
    path = library_folder() / library_name()
    if not path.is_file():
        return None
    # PyDLL keeps the interpreter lock: a call takes microseconds.
    select = ctypes.PyDLL(str(path)).tik_select
    select.restype, select.argtypes = ctypes.PYFUNCTYPE(None, ctypes.c_void_p), [ctypes.c_int]
    return select(1 if mode == "generic" else 0)


def available() -> bool:
    """Whether the compiled helper is in use."""
    return _load(os.environ.get("TIKEMU_NATIVE", "")) is not None


def runner(family: str, op: str, keep: tuple[Any, ...], **fields: Any) -> Callable[[], None] | None:
    """A zero-argument function that executes one vector instruction, or None without the library.

    Args:
        family, op: see OPERATIONS.
        keep: objects whose memory the call points into.
        fields: the remaining fields of VectorCall.

    The function has the attributes ``record`` (its VectorCall) and ``status``, whose ``overflow`` counts the executions
    in which a result saturated.
    """
    function = _load(os.environ.get("TIKEMU_NATIVE", ""))
    if function is None:
        return None
    record = VectorCall(family=FAMILIES.index(family), op=OPERATIONS[family].index(op), **fields)
    run: Any = partial(function, ctypes.addressof(record))
    run.record, run.status, run.keep = record, record, keep
    return run
