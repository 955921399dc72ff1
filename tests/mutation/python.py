"""Mutation test of the rules in Python: which small changes do the unit tests of their modules notice?

    PYTHONPATH=train:emulator python -m tests.mutation.python             # all; goes on where it was interrupted
    PYTHONPATH=train:emulator python -m tests.mutation.python visibility  # modules whose path holds this word
    PYTHONPATH=train:emulator python -m tests.mutation.python --one-in 3  # a third of the mutants, evenly spread

A mutant has one comparison, operator, number, condition or statement changed. It is killed when a test of its module
fails, hangs or crashes. A killed mutant is remembered until its module changes, a survivor until the tests change too.
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
import importlib.machinery
import os
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np  # noqa: F401  # children find it imported

from tests.fuzz import REPOSITORY
from tests.mutation.verdicts import Verdicts, in_child, outcome, run_pytest

PACKAGE = "train/flash_attention/"
TESTS = "tests/train/flash_attention/ut/"
_PROBLEM = ("test_problem.py", "test_problem_edges.py", "test_tiling.py")
_FORWARD, _BACKWARD = ("tik/test_forward_scheduler.py",), ("tik/test_backward_scheduler.py",)
MODULES = {
    "problem/visibility.py": ("test_visibility.py", "native/test_band.py"),
    "problem/checks.py": _PROBLEM,
    "problem/inputs.py": _PROBLEM,
    "problem/layout.py": _PROBLEM,
    "problem/optional.py": _PROBLEM,
    "problem/problem.py": _PROBLEM,
    "problem/tiling.py": _PROBLEM,
    "kernels/tik/common/work_split.py": (*_FORWARD, *_BACKWARD),
    "kernels/tik/forward/scheduler.py": _FORWARD,
    "kernels/tik/backward/scheduler.py": _BACKWARD,
}
LIMIT = 120.0

_SWAPS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
    ast.Div: ast.Mult, ast.Pow: ast.Mult, ast.LShift: ast.RShift,
}  # fmt: skip
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
_TEXT = (ast.JoinedStr, ast.arguments, ast.AnnAssign)


def changes(node: ast.AST) -> Iterator[ast.AST | None]:
    """What may stand in the place of a node; None stands for nothing."""
    if isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            changed = copy.deepcopy(node)
            changed.ops[index] = _SWAPS[type(operator)]()
            yield changed
    elif isinstance(node, (ast.BinOp, ast.BoolOp)) and type(node.op) in _SWAPS:
        changed = copy.deepcopy(node)
        changed.op = _SWAPS[type(node.op)]()
        yield changed
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.IfExp):
        yield node.body
        yield node.orelse
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in _NAMES:
        yield ast.Name(_NAMES[node.id], node.ctx)
    elif (
        isinstance(node, (ast.Raise, ast.Continue, ast.Break, ast.AugAssign))
        or isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
    ):
        yield ast.Pass()


def mutants(source: str) -> Iterator[tuple[str, str]]:
    """(description, source) of every mutant. Messages, defaults of parameters and decorators stay as they are."""
    tree = ast.parse(source)

    def walk(parent):
        for name, value in ast.iter_fields(parent):
            if name in ("decorator_list", "annotation", "returns") or isinstance(parent, _TEXT):
                continue
            for index, node in enumerate(value if isinstance(value, list) else [value]):
                if not isinstance(node, ast.AST):
                    continue
                for changed in changes(node):
                    before = ast.unparse(node)
                    _put(parent, name, index, changed)
                    yield f"line {node.lineno}: {before} -> {ast.unparse(changed)}", ast.unparse(tree)
                    _put(parent, name, index, node)
                yield from walk(node)

    yield from walk(tree)


def _put(parent: ast.AST, name: str, index: int, node: ast.AST) -> None:
    """Puts a node in a field, or at a place of a field that is a list."""
    if isinstance(getattr(parent, name), list):
        getattr(parent, name)[index] = node
    else:
        setattr(parent, name, node)


def run_tests(path: Path, source: str | None, tests: tuple) -> int:
    """Runs tests with `source` in the place of the module at `path`; in a process that has not imported it."""
    if source is not None:
        loader = importlib.machinery.SourceFileLoader
        usual = loader.get_code
        loader.get_code = lambda self, name: (
            compile(source, str(path), "exec") if self.path == str(path) else usual(self, name)
        )
    return run_pytest(["-x", *(str(REPOSITORY / TESTS / test) for test in tests)])


def main() -> int:
    """Judges the mutants and prints the survivors."""
    parser = argparse.ArgumentParser(description="Mutation test of the rules in Python.")
    parser.add_argument("word", nargs="?", default="", help="part of a module's path")
    parser.add_argument("--one-in", type=int, default=1, metavar="N", help="run one mutant in N")
    arguments = parser.parse_args()
    os.chdir(REPOSITORY)
    verdicts = Verdicts("python")
    for module, tests in MODULES.items():
        if arguments.word not in module:
            continue
        path = REPOSITORY / PACKAGE / module
        text = path.read_text()
        tested = hashlib.sha256(b"".join((REPOSITORY / TESTS / test).read_bytes() for test in tests)).hexdigest()
        assert in_child(lambda: run_tests(path, None, tests), 600) == 0, f"{module}: fails without a mutant"  # noqa: B023
        results = {}
        for what, source in mutants(text):
            key = module, source
            if zlib.crc32(source.encode()) % arguments.one_in:
                continue
            if not verdicts.has(key, tested):
                status = in_child(lambda: run_tests(path, source, tests), LIMIT)  # noqa: B023
                verdicts.add(key, tested, outcome(status))
            results[what, source] = verdicts.of(key)
        verdicts.report(module, {what: verdict for (what, _), verdict in results.items()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
