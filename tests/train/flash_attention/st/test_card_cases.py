"""Attention of every kind on the virtual card, forward and backward, in both execution modes."""

import pytest

from tests.train.flash_attention.st.support.card_runs import verdicts
from tests.train.flash_attention.support.case_list import daily_names
from tests.virtual_ascend.card import card_python

pytestmark = pytest.mark.card
MODES = "graph", "pynative"
# Together they have masks, biases, windows, dropout by bits, shared keys and a soft cap. They also have sinks,
# prefixes, segments, values of another width, few queries on many keys, and the layouts. test_card_entries.py has
# another case.
CASES = daily_names("card")
PARTS = 12
# The limit fits slow tests on a machine that others use too.
MINUTES = 20
# The checks of card_calls.py and card_training.py that show most for their time.
CALLS = {
    "graph": ("packed.sinks_prefix", "dropout_by_seed", "server.paged"),
    "pynative": ("paged.sinks", "cache.paged"),
}
TRAINING = "two alike", "accumulated", "dropout"


@pytest.fixture(scope="module")
def python():
    """Return the interpreter that has MindSpore 2.0.0."""
    return card_python()


@pytest.mark.parametrize("mode, names", [("graph", CASES[1::2]), ("pynative", CASES[::2])], ids=MODES)
def test_shared_cases(python, tmp_path, mode, names):
    assert set(verdicts(python, tmp_path, "card_cases.py", mode, *names)) == set(names)


@pytest.mark.slow
@pytest.mark.timeout(60 * MINUTES)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("mode", MODES)
def test_every_shared_case(python, tmp_path, mode, part):
    assert len(verdicts(python, tmp_path, "card_cases.py", mode, f"{part}/{PARTS}", minutes=MINUTES)) > 400 // PARTS


@pytest.mark.parametrize("mode, names", CALLS.items(), ids=CALLS)
def test_calls(python, tmp_path, mode, names):
    """The calls have dropout by seed, packed sequences and caches."""
    assert set(verdicts(python, tmp_path, "card_calls.py", mode, *names)) == set(names)


@pytest.mark.slow
@pytest.mark.timeout(60 * MINUTES)
@pytest.mark.parametrize("mode", MODES)
def test_every_call(python, tmp_path, mode):
    assert len(verdicts(python, tmp_path, "card_calls.py", mode, minutes=MINUTES)) == 16


@pytest.mark.parametrize("mode", MODES)
def test_training(python, tmp_path, mode):
    """The networks have two layers of one shape, accumulated gradients, or dropout. Each step has other data."""
    names = (*TRAINING, *(["recompute", "recomputed dropout"] if mode == "graph" else []))
    verdicts(python, tmp_path, "card_training.py", mode, *names)


def test_around_a_network(python, tmp_path):
    """Model.train, sunk data, checkpoints and export work."""
    verdicts(python, tmp_path, "card_data.py", "graph", "train", "checkpoint", "export", "sink by two")


@pytest.mark.slow
@pytest.mark.timeout(60 * MINUTES)
@pytest.mark.parametrize("mode, count", [("graph", 8), ("pynative", 4)])
def test_all_around_a_network(python, tmp_path, mode, count):
    assert len(verdicts(python, tmp_path, "card_data.py", mode, minutes=MINUTES)) == count


@pytest.mark.slow
@pytest.mark.timeout(60 * MINUTES)
@pytest.mark.parametrize("mode, count", [("graph", 13), ("pynative", 11)])
def test_all_training(python, tmp_path, mode, count):
    assert len(verdicts(python, tmp_path, "card_training.py", mode, minutes=MINUTES)) == count
