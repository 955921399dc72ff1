"""Tell how a release of MindSpore runs TIK operators. Needs no MindSpore."""

from __future__ import annotations


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def needs_package(version: str) -> bool:
    """Return True if MindSpore `version` finds TBE operators in an operator package, through GE. MindSpore 2.0 to 2.2
    compile them.
    """
    return _release(version) >= (2, 3)


def refuse_mode(version: str, graph: bool, jit_level: str) -> str | None:
    """Return why MindSpore `version` cannot run a package's operators in a mode, or None.

    Operators that MindSpore runs one by one get no attributes, and the TIK operators need theirs.
    """
    if not needs_package(version):
        return None
    if not graph and _release(version) < (2, 6):
        return f"runs in GRAPH mode with MindSpore {version}, which runs PYNATIVE and @jit operator by operator"
    if jit_level not in ("", "O2"):
        return f"runs in graphs that GE compiles: got jit_level {jit_level}, allowed is O2"
    return None
