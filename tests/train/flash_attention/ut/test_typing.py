"""Type checkers see the names that the packages load on first use."""

import ast
import importlib
from pathlib import Path

import pytest


@pytest.mark.parametrize("name", ("flash_attention", "flash_attention.context_parallel"))
def test_the_stub_has_every_public_name_from_where_it_is(name: str) -> None:
    package = importlib.import_module(name)
    stub = ast.parse(Path(package.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    found = {
        alias.asname: statement.module
        for statement in stub.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert found == package._EXPORTS
    assert (Path(importlib.import_module("flash_attention").__file__).parent / "py.typed").exists()
