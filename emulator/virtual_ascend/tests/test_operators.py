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
    *("activations", "elementwise", "functions", "images", "indexing", "layout", "losses", "matmul", "normalisation"),
    *("open shapes", "optimizer", "padding", "reduce", "scattering", "sequences", "fused"),
)
CARD = "card: "
# Largest difference over the largest number: some roundings of float32, one or two of float16.
BOUNDS = {"float32": 1e-5, "float16": 1e-3}
# For families of operators that compute float32 through float16 on the card, because the Cube takes nothing else.
HALF = {"images": 2e-3}


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
            assert error <= HALF.get(family, BOUNDS[str(ours.dtype)]) * largest, (name, error, largest)
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


def test_a_roll(results):
    np.testing.assert_array_equal(results[0][f"{CARD}Roll: 0"], np.roll(np.arange(12), 3))


def test_lamb_is_that_of_its_paper(results):
    """Algorithm 2 of arXiv:1904.00962, two steps; MindSpore has no Lamb on a CPU."""
    generator = np.random.default_rng(1)
    weights, mean, square = generator.standard_normal((20, 8)), 0.0, 0.0
    for count in (1, 2):
        gradient = generator.standard_normal((20, 8))
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        update = mean / (1 - 0.9**count) / (np.sqrt(square / (1 - 0.999**count)) + 1e-6) + 0.01 * weights
        weights = weights - 0.1 * np.linalg.norm(weights) / np.linalg.norm(update) * update
    np.testing.assert_allclose(results[0][f"{CARD}Lamb: 0"], weights, atol=1e-4)


def of_case(results, name):
    """Return all arrays that the card gave for one of its cases."""
    card, _ = results
    found = [key for key in card.files if key.startswith(f"{CARD}{name}: ")]
    return [card[f"{CARD}{name}: {index}"] for index in range(len(found))]


def test_the_soft_margin_loss(results):
    """log(1 + exp(-y x)), of all elements, their mean and their sum; MindSpore has none on a CPU."""
    x, y, *ours = of_case(results, "soft margin")
    terms = np.log1p(np.exp(-np.sign(y) * x))
    for loss, expected in zip(ours[::2], (terms, terms.mean(), terms.sum())):
        np.testing.assert_allclose(loss.reshape(expected.shape), expected, rtol=1e-5)
    slopes = -np.sign(y) / (1 + np.exp(np.sign(y) * x))
    weights = np.linspace(-1, 1, x.size).reshape(x.shape)
    for gradient, expected in zip(ours[1::2], (slopes * weights, -slopes / x.size, -slopes)):
        np.testing.assert_allclose(gradient, expected, atol=1e-6)


def test_random_numbers(results):
    """The statistics of 65536 numbers are right within five standard errors."""
    normal, uniform, dropped = (results[0][f"{CARD}{name}: 0"] for name in ("StandardNormal", "UniformReal", "dropout"))
    assert abs(normal.mean()) < 0.02 and abs(normal.std() - 1) < 0.014 and (np.abs(normal) > 3).mean() < 0.004
    assert abs(uniform.mean() - 0.5) < 0.006 and 0 <= uniform.min() < 0.001 and 0.999 < uniform.max() < 1
    assert set(np.unique(dropped)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs((dropped == 0).mean() - 0.25) < 0.009
