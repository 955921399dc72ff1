"""Predictions beside published measurements of a first-generation 910."""

import pytest

pytest.importorskip("tikemu")
from benchmarks import published_kernels
from benchmarks.published_kernels import FITS, PUBLISHED, READINGS, Convolution, Published, Recurrence

FITTING = READINGS["head 12.5, late L2"]
ROWS = {row.name: row for row in PUBLISHED}


@pytest.mark.parametrize(
    "name",
    [
        "gated delta, 64 rows",
        "convolution of 4 taps, without its launch",
        "read of the memory, 30 cores",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ROWS
            if name.startswith(("gated", "the same")) and name != "gated delta, 64 rows"
        ),
    ],
)
def test_one_reading_of_the_evidence_fits_what_was_published(name: str) -> None:
    row = ROWS[name]
    assert row.ratio(row.predicted(FITTING)) == pytest.approx(1, abs=FITS)


def test_a_twin_executes_the_instructions_that_were_published() -> None:
    few, many = (
        published_kernels.tikemu.run(one, {}, numerics=False) for one in published_kernels.programs(Recurrence(rows=64))
    )
    counts = {name: (many.instructions[name].count - few.instructions[name].count) / 2 for name in many.instructions}
    assert (counts["vec_axpy"], counts["vec_dup"], counts["vec_muls"]) == (3 * 64, 2 + 1, 1 + 3)


def test_the_table_says_which_readings_fit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(published_kernels, "READINGS", {"the model": {}, "slow reads": {"ub_scalar_read": 12}})
    monkeypatch.setattr(published_kernels, "PUBLISHED", (Published("convolution", Convolution(), 18.9, 24.2, "us"),))
    assert published_kernels.main() == 0
    text = capsys.readouterr().out
    assert "within 6% of everything: the model\n" in text
    assert "not slow reads: convolution 1." in text
