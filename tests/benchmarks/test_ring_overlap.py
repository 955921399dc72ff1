"""The predicted table: it follows from the formulas, and docs/figures.md shows what the command prints."""

from pathlib import Path

from benchmarks import ring_overlap

DOCS = Path(__file__).parents[2] / "docs" / "figures.md"


def test_docs_show_what_the_command_prints(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["ring_overlap"])
    ring_overlap.main()
    assert capsys.readouterr().out.strip() in DOCS.read_text(encoding="utf-8")


def test_computing_grows_faster_than_passing():
    short, long = (ring_overlap.step(seq, 8, 32, 8, 128, 0.4) for seq in (8192, 131072))
    assert short.hidden_forward < 1 == long.hidden_forward
    assert long.compute_forward / short.compute_forward == 256
    assert long.pass_forward / short.pass_forward == 16


def test_volume():
    # 4 cards with 2 tokens each, 1 head of 8: a key/value pair of 32 elements.
    assert ring_overlap.volume(8, 4, 1, 8) == (3 * 64, 3 * 64 + 4 * 128)
