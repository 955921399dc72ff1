"""Modules import from lower layers, and no part from the parts above it.

What counts as an import: tests/imports.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import imports

ROOT = Path(__file__).resolve().parents[2]
PRODUCT, TIKEMU = ROOT / "train/flash_attention", ROOT / "emulator/tikemu"
VIRTUAL_ASCEND = ROOT / "emulator/virtual_ascend/virtual_ascend"

#: Of each package, lowest first. A module or package imports from lower layers only; "" is the package's `__init__`.
LAYERS = {
    PRODUCT: (
        ("duplicate_installs",),
        ("", "address", "files", "text_table", "plotting"),  # "": the version, and names imported when they are used
        ("call",),
        ("kernels",),
        ("bridge", "variables"),
        ("dropout", "sharding"),
        ("backends", "reference"),
        ("call_cells", "cache_update"),
        ("prepare", "rotary"),
        ("varlen", "paged"),
        ("functional",),
        ("nn", "measuring", "context_parallel"),
        ("commands",),
        ("compat", "cli"),
    ),
    TIKEMU: (
        # words: errors, the chip, findings, the C helper
        ("errors", "soc"),
        ("environment",),
        ("native",),
        ("findings",),
        ("options", "build_native"),
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
    ),
    VIRTUAL_ASCEND: (
        ("", "errors", "elf", "folders", "operator_packages", "registrations"),
        ("operator_call", "installation", "symbols", "cards"),
        ("compiler",),
        ("device",),
        ("client", "library"),
        ("cann", "cli"),  # what MindSpore imports, what users call
        ("__main__",),
    ),
}

#: By folder: packages that nothing in it imports. The product uses tikemu, and its tests use all three.
FOREIGN = {
    PRODUCT: ("virtual_ascend", "emulator", "tests"),
    TIKEMU: ("flash_attention", "mindspore", "tbe", "te", "virtual_ascend", "emulator", "tests"),
    ROOT / "emulator/tests": ("flash_attention", "virtual_ascend", "emulator.virtual_ascend", "tests"),
    VIRTUAL_ASCEND: ("flash_attention", "emulator", "tests"),
    ROOT / "emulator/virtual_ascend/tests": ("flash_attention", "emulator.tests", "tests"),
}

#: Modules of the product that may import MindSpore.
MINDSPORE = (
    *("nn", "functional", "context_parallel", "backends", "bridge", "sharding"),
    *("commands", "measuring", "call_cells", "cache_update", "prepare", "varlen", "paged", "rotary", "dropout.seed"),
    *("compat.flash_attn", "compat.mindnlp", "compat.mindspore_ops", "compat.mindspore_patch", "compat.transformers"),
)


@pytest.mark.parametrize("package", LAYERS, ids=lambda package: package.name)
def test_modules_depend_on_lower_layers_and_not_on_one_another(package: Path) -> None:
    found = imports.read_imports(package)
    assert len(found) > 50 and imports.import_cycle(found) == []
    assert imports.layer_violations(found, LAYERS[package]) == []


@pytest.mark.parametrize("folder", FOREIGN, ids=lambda folder: folder.relative_to(ROOT).as_posix())
def test_a_part_knows_nothing_of_the_parts_above(folder: Path) -> None:
    assert len(imports.modules(folder)) > 10 and imports.importers(folder, *FOREIGN[folder]) == set()


def test_only_the_upper_layers_import_mindspore() -> None:
    """The description of a call, the kernels and the reference work without MindSpore."""
    found = imports.importers(PRODUCT, "mindspore")
    assert [name for name in sorted(found) if imports.unit(name, MINDSPORE) not in MINDSPORE] == []
