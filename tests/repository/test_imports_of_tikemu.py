"""Test that the modules of tikemu depend on one another in one direction. tests/imports.py says what counts as a
dependence.
"""

from __future__ import annotations

from pathlib import Path

import tikemu

from tests import imports

PACKAGE = Path(tikemu.__file__).parent
TESTS = Path(__file__).parents[1] / "emulator"

#: Lowest first. A module or package imports from lower layers only.
LAYERS = (
    # words: errors, the chip, findings, the C helper
    ("errors", "soc"),
    ("environment",),
    ("native",),
    ("findings",),
    ("options", "build_native"),
    ("settings",),
    # meaning: the recorded program, the table of instructions, time, the run
    ("program",),
    ("isa",),
    ("timing",),
    ("result",),
    ("machine",),
    ("processes",),
    # what programs write to
    ("frontend",),
    ("tik",),
    ("shim",),
    # what users call
    ("api",),
    ("",),
    ("cli",),
    ("__main__",),
)


def test_no_cycle_between_modules_or_packages() -> None:
    assert imports.import_cycles(imports.read_imports(PACKAGE)) == []


def test_imports_lead_to_lower_layers() -> None:
    assert imports.layer_violations(imports.read_imports(PACKAGE), LAYERS) == []


def test_only_numpy_is_needed() -> None:
    """tikemu knows nothing of attention, of MindSpore, or of a real CANN."""
    assert imports.importers(PACKAGE, "flash_attention", "mindspore", "tbe", "te") == set()


def test_these_tests_need_nothing_of_the_attention_package() -> None:
    assert imports.importers(TESTS, "flash_attention") == set()
