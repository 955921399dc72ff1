"""The reader of imports, tests/imports.py, on a small package."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import imports


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package with a cycle in each form: at the top, inside a function, for the type checker."""
    folder = tmp_path / "house"
    for name, text in {
        "__init__.py": "from .roof import Roof\n",
        "roof.py": "from .walls import wall\nclass Roof: ...\n",
        "walls/__init__.py": "from . import brick\n",
        "walls/wall.py": "def build():\n    from ..roof import Roof\n",
        "walls/brick.py": "import house.floor\n",
        "floor.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.walls.brick import Brick\n",
        "garden.py": "import numpy\nfrom house import floor\n",
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_every_form_of_import_is_read(package: Path) -> None:
    found = {(entry.importer, entry.imported) for entry in imports.read_imports(package)}
    assert found == {
        ("", "roof"),
        ("roof", "walls.wall"),
        ("walls", "walls.brick"),
        ("walls.wall", "roof"),
        ("walls.brick", "floor"),
        ("floor", "walls.brick"),
        ("garden", "floor"),
    }


def test_cycles_are_found_whatever_the_form(package: Path) -> None:
    assert imports.import_cycles(imports.read_imports(package)) == [
        ["floor", "roof", "walls", "walls.brick", "walls.wall"]
    ]


def test_an_import_of_a_higher_layer_is_named_with_its_line(package: Path) -> None:
    wrong = imports.layer_violations(imports.read_imports(package), (("floor",), ("walls",), ("roof",), ("", "garden")))
    assert wrong == ["floor:3 imports walls.brick", "walls.wall:2 imports roof"]


def test_a_module_without_layer_is_named(package: Path) -> None:
    wrong = imports.layer_violations(imports.read_imports(package), (("floor",), ("walls",), ("roof",), ("",)))
    assert "garden has no layer (garden:2 imports floor)" in wrong


def test_foreign_imports_are_found(package: Path) -> None:
    assert imports.importers(package, "numpy") == {"garden"}
