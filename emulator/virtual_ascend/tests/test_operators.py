"""Built-in operators on the virtual card, against MindSpore's kernels for the CPU."""

import csv
import fcntl
import re
from pathlib import Path

import numpy as np
import pytest
from virtual_ascend.device import channels, operators
from virtual_ascend.device.by_name import entry_of
from virtual_ascend.device.report import AI_CPU

from emulator.virtual_ascend.tests.card import on_card, said, start

pytestmark = pytest.mark.card
PROGRAM = Path(__file__).with_name("operator_cases")
FAMILIES = (
    *("activations", "elementwise", "indexing", "layout", "losses", "matmul", "normalisation", "optimizer", "reduce"),
    "fused",
)
CARD = "card: "
# Largest difference over the largest number: some roundings of float32, one or two of float16.
BOUNDS = {"float32": 1e-5, "float16": 1e-3}


@pytest.fixture(scope="module")
def folder(python, tmp_path_factory, worker_id):
    """Return the folder with all results by case and the report of the launches. The results are card.npz and cpu.npz.
    They are made once for all processes of pytest.
    """
    own = tmp_path_factory.getbasetemp()
    place = (own if worker_id == "master" else own.parent) / "operators"
    place.mkdir(exist_ok=True)
    with open(place / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "cpu.npz").exists():
            report = "--report", place / "report"
            said(on_card(python, PROGRAM, "Ascend", place / "card.npz", cwd=place, options=report))
            said(start(python, PROGRAM, "CPU", place / "cpu.npz", cwd=place))
    return place


@pytest.fixture(scope="module")
def results(folder):
    """Return the results of the card and of the CPU."""
    return np.load(folder / "card.npz"), np.load(folder / "cpu.npz")


@pytest.mark.parametrize("family", FAMILIES)
def test_family(results, family):
    card, cpu = results
    names = [name for name in cpu.files if name.startswith(family)]
    assert names and {name for name in card.files if not name.startswith(CARD)} == set(cpu.files)
    for name in names:
        ours, theirs = card[name], cpu[name]
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), name
        if ours.dtype.kind == "f":
            error, largest = np.abs(ours.astype(float) - theirs).max(), np.abs(theirs.astype(float)).max()
            assert error <= BOUNDS[str(ours.dtype)] * largest, (name, error, largest)
        else:
            np.testing.assert_array_equal(ours, theirs, name)


def launched(report):
    """Return the functions behind all launches of a report."""
    found = []
    with open(report / "op_summary.csv") as file:
        for row in csv.DictReader(file):
            name, kind = row["Op Name"], row["OP Type"]
            if row["Task Type"] == AI_CPU:
                found.append(operators.AICPU[kind])
            else:  # of an operator that MindSpore compiled: the entry, its shapes and a count
                found.append(operators.TABLE.get(entry_of(kind) if name == kind else re.sub(r"_\d+_\d+$", "", name)))
    return found


def test_every_built_in_operator_has_a_case(folder):
    """Operators on batches from the host have cases in test_device.py, Shape has one in test_card_entries.py."""
    cases = {*launched(folder / "report"), *channels.AICPU.values(), operators.TABLE["shape"]}
    every = (*operators.TABLE.items(), *operators.AICPU.items())
    assert [name for name, function in every if function not in cases] == []


def test_mindspore_fuses_a_difference_with_the_wrong_factor(results):
    """For gradient - sum(gradient * y) MindSpore 2.0.0 hands its fused operator the gradient twice, and no y."""
    card, cpu = results
    name = "difference: 0"
    assert np.abs(card[f"{CARD}other {name}"] - cpu[f"fused: {name}"]).max() > 1


def test_the_overflow_status(results):
    card, _ = results
    for case, told in (("overflow", 1), ("no overflow", 0)):
        first, second, cleared = (card[f"{CARD}{case}: {index}"] for index in range(3))
        assert first[0] == second[0] == told and not cleared.any(), case


def test_parts_of_given_sizes(results):
    card, _ = results
    parts = [card[f"{CARD}SplitV: {index}"] for index in range(2)]
    np.testing.assert_array_equal(np.concatenate(parts, 1), np.arange(96).reshape(3, 32))
    assert parts[0].shape == (3, 10)


def test_dropout(results):
    """The share of 65536 numbers that are dropped is right within five standard errors."""
    dropped = results[0][f"{CARD}dropout: 0"]
    assert set(np.unique(dropped)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs((dropped == 0).mean() - 0.25) < 0.009
