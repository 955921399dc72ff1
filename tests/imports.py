"""Read the imports of a package from its sources: cycles between modules, and imports against the order of layers.

Every ``import`` and ``from ... import`` of a module of the same package counts. An import inside a function counts,
because it only hides a cycle from the interpreter. An import under ``TYPE_CHECKING`` counts, because two modules with
signatures that need each other are one concept. ``from package import name`` counts as an import of the submodule
``name`` if there is one, else of the package's ``__init__``.
"""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple


class Import(NamedTuple):
    """``importer`` imports ``imported``: dotted names inside the package, "" for its ``__init__``."""

    importer: str
    imported: str
    line: int

    def __str__(self) -> str:
        return f"{self.importer or '__init__'}:{self.line} imports {self.imported or '__init__'}"


def modules(package: Path) -> dict[str, Path]:
    """Return the modules of a package by their dotted names inside it."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def read_imports(package: Path) -> list[Import]:
    """Collect all imports of one module of the package by another."""
    known = modules(package)
    found = []
    for name, path in known.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for imported in _imported(node, name, path, package.name):
                target = _longest(imported, known)
                if target is not None and target != name:
                    found.append(Import(name, target, node.lineno))
    return found


def _imported(node: ast.AST, name: str, path: Path, package: str) -> Iterator[str]:
    """Yield the dotted names inside the package that a statement imports, submodules and attributes."""
    prefix = f"{package}."
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name == package or alias.name.startswith(prefix):
                yield alias.name[len(prefix) :]
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            here = name.split(".") if name else []
            up = node.level - (path.name == "__init__.py")
            base = ".".join([*(here[: len(here) - up] if up else here), *(base.split(".") if base else [])])
        elif base == package or base.startswith(prefix):
            base = base[len(prefix) :]
        else:
            return
        for alias in node.names:
            yield f"{base}.{alias.name}" if base else alias.name


def _longest(dotted: str, known: Mapping[str, Path]) -> str | None:
    """Return the module that ``dotted`` names, or the module that has it as an attribute."""
    while dotted not in known and dotted:
        dotted = dotted.rpartition(".")[0]
    return dotted if dotted in known else None


def import_cycle(found: Sequence[Import]) -> list[str]:
    """Return a cycle between modules, or between the children of one package.

    Children are modules and packages. An ``__init__`` belongs to its package: it may import its own modules, and they
    may import it. Without a cycle the list is empty.
    """
    edges: dict[str, set[str]] = {}
    for importer, imported, _ in found:
        upper, lower = importer.split("."), imported.split(".")
        same = 0
        while same < min(len(upper), len(lower)) and upper[same] == lower[same]:
            same += 1
        if same < len(upper) and same < len(lower) and importer and imported:
            edges.setdefault(importer, set()).add(imported)
            edges.setdefault(".".join(upper[: same + 1]), set()).add(".".join(lower[: same + 1]))
    try:
        graphlib.TopologicalSorter(edges).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def unit(module: str, units: Sequence[str]) -> str:
    """Return the unit that a module belongs to, or "" for ``__init__``. A unit is a module, or a package with all it
    holds.
    """
    fitting = [name for name in units if module == name or module.startswith(f"{name}.")]
    return max(fitting, key=len) if fitting else module


def layer_violations(found: Sequence[Import], layers: Sequence[Sequence[str]]) -> list[str]:
    """Return the imports that do not lead to a lower layer, as text.

    Args:
        found: the imports.
        layers: modules and packages, lowest layer first. Modules of one layer do not import one another.
    """
    level = {name: number for number, layer in enumerate(layers) for name in layer}
    wrong = []
    for entry in found:
        upper, lower = (unit(module, tuple(level)) for module in entry[:2])
        for module in (upper, lower):
            if module not in level:
                wrong.append(f"{module or '__init__'} has no layer ({entry})")
        if upper in level and lower in level and upper != lower and level[lower] >= level[upper]:
            wrong.append(str(entry))
    return wrong


def importers(package: Path, *foreign: str) -> set[str]:
    """Return the modules of the package that import something of a ``foreign`` package anywhere."""
    found = set()
    for name, path in modules(package).items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            if any(f"{imported}.".startswith(f"{one}.") for imported in names for one in foreign):
                found.add(name)
    return found
