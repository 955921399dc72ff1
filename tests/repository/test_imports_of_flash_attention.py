"""The modules of flash_attention depend on one another in one direction; what counts: tests/imports.py."""

from pathlib import Path

import flash_attention

from tests import imports

PACKAGE = Path(flash_attention.__file__).parent

#: Lowest first. A module or package imports from lower layers only.
LAYERS = (
    ("duplicate_installs",),
    (
        "",
        "address",
        "files",
        "text_table",
        "plotting",
    ),  # "" is the version, and names that are imported when they are used
    ("call",),
    ("kernels", "dropout", "sharding"),
    ("bridge", "variables"),
    ("backends", "reference"),
    ("plan", "rotary"),
    ("varlen", "paged"),
    ("functional", "context_parallel"),
    ("nn", "measuring"),
    ("commands",),
    ("compat", "cli"),
)

#: Only these may import MindSpore.
MINDSPORE = (
    *("nn", "functional", "context_parallel", "backends", "bridge", "sharding"),
    *("commands", "measuring", "plan", "varlen", "paged", "rotary", "dropout.seed"),
    *("compat.flash_attn", "compat.mindnlp", "compat.mindspore_ops", "compat.mindspore_patch", "compat.transformers"),
)


def test_no_cycle_between_modules_or_packages() -> None:
    assert imports.import_cycles(imports.read_imports(PACKAGE)) == []


def test_imports_lead_to_lower_layers() -> None:
    assert imports.layer_violations(imports.read_imports(PACKAGE), LAYERS) == []


def test_only_the_upper_layers_import_mindspore() -> None:
    """The description of a call, the kernels and the reference work without MindSpore."""
    found = imports.importers(PACKAGE, "mindspore")
    assert [name for name in sorted(found) if imports.unit(name, MINDSPORE) not in MINDSPORE] == []
