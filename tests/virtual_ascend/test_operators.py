"""Built-in operators on the virtual card, against MindSpore's kernels for the CPU."""

from pathlib import Path

import numpy as np
import pytest

from tests.virtual_ascend.card import on_card, said, start

pytestmark = pytest.mark.card
PROGRAM = Path(__file__).with_name("operator_cases.py")
FAMILIES = "elementwise", "indexing", "layout", "matmul", "normalisation", "optimizer", "reduce"
# Largest difference over the largest number: some roundings of float32, one or two of float16.
BOUNDS = {"float32": 1e-5, "float16": 1e-3}


@pytest.fixture(scope="module")
def results(python, tmp_path_factory):
    """All results, by case: of the card, of the CPU."""
    folder = tmp_path_factory.mktemp("operators")
    said(on_card(python, PROGRAM, "Ascend", folder / "card.npz", cwd=folder))
    said(start(python, PROGRAM, "CPU", folder / "cpu.npz", cwd=folder))
    return np.load(folder / "card.npz"), np.load(folder / "cpu.npz")


@pytest.mark.parametrize("family", FAMILIES)
def test_family(results, family):
    card, cpu = results
    names = [name for name in cpu.files if name.startswith(family)]
    assert names and set(card.files) == set(cpu.files)
    for name in names:
        ours, theirs = card[name], cpu[name]
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), name
        if ours.dtype.kind == "f":
            error, largest = np.abs(ours.astype(float) - theirs).max(), np.abs(theirs.astype(float)).max()
            assert error <= BOUNDS[str(ours.dtype)] * largest, (name, error, largest)
        else:
            np.testing.assert_array_equal(ours, theirs, name)
