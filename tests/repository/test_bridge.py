"""Faults, versions and private names of MindSpore are known in one folder, `bridge/`."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

PRODUCT = Path(__file__).resolve().parents[2] / "train/flash_attention"
#: Names by which modules import MindSpore or its parts.
MINDSPORE = ("mindspore", "ms", "mstype", "nn", "ops")
MARKS = ("OLD", "VERSION")


def root(node: ast.expr) -> str:
    """Return the first name of an expression `a.b.c`, "" if it is none."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def marks(source: str) -> list[str]:
    """Return what code knows of MindSpore's versions and private names, with the lines."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            module = getattr(node, "module", None) or ""
            names = [f"{module}.{one.name}".strip(".") for one in node.names]
            private = [one for one in names if one.split(".")[0] == "mindspore" and "._" in one]
            found += [(node.lineno, one) for one in private]
            if module.startswith("flash_attention.bridge"):
                found += [(node.lineno, one.name) for one in node.names if one.name in MARKS]
        elif isinstance(node, ast.Attribute) and root(node) in MINDSPORE:
            if node.attr.startswith("_") and node.attr != "__version__":
                found.append((node.lineno, node.attr))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            probe = node.func.id == "hasattr" or (node.func.id == "getattr" and len(node.args) == 3)
            if probe and (root(node.args[0]) in MINDSPORE or _names_a_method(node.args[1])):
                found.append((node.lineno, ast.unparse(node)))
        elif isinstance(node, ast.Compare) and "ms.__version__" in ast.unparse(node):
            found.append((node.lineno, ast.unparse(node)))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and re.search(r"MindSpore \d", token.string):
            found.append((token.start[0], token.string))
    return [f"{line}: {what}" for line, what in found]


def _names_a_method(node: ast.expr) -> bool:
    """Return True for the name of a method of Tensor that only some versions have."""
    return isinstance(node, ast.Constant) and node.value in ("data_ptr", "get_bytes", "is_contiguous", "jit_context")


def test_nothing_else_knows_versions_and_private_names_of_mindspore() -> None:
    found = {}
    for path in PRODUCT.rglob("*.py"):
        name = path.relative_to(PRODUCT).as_posix()
        if not name.startswith("bridge/"):
            found[name] = marks(path.read_text("utf-8"))
    assert len(found) > 100
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_each_kind_of_mark_is_found() -> None:
    for line in (
        "from mindspore.nn.cell import _pynative_executor",
        "from mindspore._c_expression import MSContext",
        "from flash_attention.bridge.versions import OLD",
        "if hasattr(ops, 'Morph'): pass",
        "x = getattr(ms, 'bfloat16', None)",
        "x = hasattr(tensor, 'data_ptr')",
        "x = ms.__version__ >= '2.3'",
        "x = ms.ops._private(3)",
        "x = 0  # MindSpore 2.0 wants it",
    ):
        assert marks(line), line
