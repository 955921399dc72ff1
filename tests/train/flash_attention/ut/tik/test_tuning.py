"""The tuning table: which problems an entry speaks of, and how it changes the order of the strategies."""

import json

import pytest
from flash_attention.kernels.tik import tuning
from flash_attention.kernels.tik.backward.work import choose as choose_backward
from flash_attention.kernels.tik.forward.work import choose
from flash_attention.kernels.tik.tuning import Entry

from tests.train.flash_attention.support.problems import make_kernel_problem

ENTRY = Entry("forward", 64, "causal", 300, 600, "single64")


def problem(seq=512, head_dim=64, **features):
    """A causal problem."""
    return make_kernel_problem(1, 1, seq, seq, head_dim, **{"causal": True, **features})


def test_an_entry_puts_its_strategy_first() -> None:
    with tuning.using(()):
        usual = choose(problem()).plan
    with tuning.using((ENTRY,)):
        assert choose(problem()).plan.strategy == "single64" != usual.strategy


@pytest.mark.parametrize(
    "other",
    [
        problem(seq=299),
        problem(seq=601),
        problem(head_dim=48),
        problem(causal=False),
        problem(dropout_rate=0.1),
        problem(window_left=8),
        problem(softcap=30.0),
        problem(mask="per_key"),
        problem(bias="per_score"),
        problem(value_dim=32),
        problem(sinks=True),
    ],
    ids=str,
)
def test_an_entry_leaves_other_problems_alone(other) -> None:
    assert not ENTRY.matches("forward", other)


def test_an_entry_holds_for_any_scale_and_head_dims_that_pad_to_its_own() -> None:
    assert ENTRY.matches("forward", problem(scale=0.3)) and ENTRY.matches("forward", problem(head_dim=50))
    assert not ENTRY.matches("backward", problem())


def test_a_strategy_that_does_not_fit_or_is_unknown_changes_nothing() -> None:
    wide = problem(head_dim=256)
    with tuning.using(()):
        usual = choose_backward(wide, "split", False).plan
    names = ("rows64keys192", "nothing")
    for name in names:
        with tuning.using((Entry("backward", 256, "causal", 1, 10**6, name),)):
            assert choose_backward(wide, "split", False).plan == usual


def test_scores_stay_in_float32_where_an_entry_says_so() -> None:
    for half_scores in (True, False):
        with tuning.using((Entry("forward", 128, "causal", 1, 1024, "pair128", half_scores),)):
            assert choose(problem(head_dim=128)).plan.half_scores is half_scores


def test_scores_that_vector_does_not_scale_leave_in_float16_whatever_an_entry_says() -> None:
    # Their range is looked after there alone, see forward.score_bound.
    with tuning.using((Entry("forward", 64, "causal", 1, 1024, "pair128", False),)):
        assert choose(problem()).plan.half_scores


def test_the_environment_names_another_table(tmp_path, monkeypatch) -> None:
    path = tmp_path / "table.json"
    path.write_text(tuning.to_json([(ENTRY, {"gain": 0.5})]))
    monkeypatch.setenv("FLASH_ATTENTION_TUNING", str(path))
    assert tuning.current() == (ENTRY,)
    assert choose(problem()).plan.strategy == "single64"


def test_the_table_of_the_package_names_strategies_that_fit() -> None:
    for entry in tuning.read(tuning.PATH):
        with tuning.using((entry,)):
            size = problem(entry.high, entry.head_dim, causal=entry.rules == "causal", cores=1)
            chosen = choose(size) if entry.operator == "forward" else choose_backward(size, "split", False)
            assert chosen.plan.strategy == entry.strategy


@pytest.mark.parametrize("text", ["", "[]", '{"entries": [{"operator": "forward"}]}', '{"entries": [3]}'])
def test_what_is_no_table_is_refused(text, tmp_path) -> None:
    path = tmp_path / "table.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"tuning table {path}: "):
        tuning.read(path)


def test_operators_and_rules_of_entries_are_checked(tmp_path) -> None:
    path = tmp_path / "table.json"
    entry = {**json.loads(tuning.to_json([(ENTRY, {})]))["entries"][0], "rules": "sideways"}
    path.write_text(json.dumps({"entries": [entry]}))
    with pytest.raises(ValueError, match="sideways"):
        tuning.read(path)
