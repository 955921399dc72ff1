"""Several cards: HCCL's collectives as MindSpore calls them, and cards that do not come."""

from pathlib import Path

import pytest

from emulator.virtual_ascend.tests.card import on_card, said

pytestmark = pytest.mark.card
PROGRAM = Path(__file__).with_name("collective_programs.py")
REDUCTIONS = "sum", "sum16", "max", "min", "prod"


def verdicts(python, folder, cards, mode, *names, **variables):
    """Return the verdict of each card and name; the report is in `report`."""
    options = "--cards", str(cards), "--report", str(folder / "report")
    done = on_card(python, PROGRAM, mode, *names, cwd=folder, options=options, **variables)
    lines = [line.split("\t") for line in said(done).splitlines()]
    return {(int(card), name): verdict for card, name, verdict in lines}


def test_collectives_in_a_graph(python, tmp_path):
    names = *REDUCTIONS, "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_receive", "last", "group"
    found = verdicts(python, tmp_path, 2, "graph", *names)
    assert found == {(card, name): "right" for card in range(2) for name in names}
    for card in range(2):
        table = (tmp_path / f"report/card{card}/op_summary.csv").read_text()
        assert table.count(",HcomAllToAllV,COMMUNICATION,") == 2


def test_collectives_in_pynative(python, tmp_path):
    """In PYNATIVE, AllGather, ReduceScatter and AlltoAll of MindSpore 2.0 raise NotImplementedError."""
    names = *REDUCTIONS, "broadcast", "send_receive"
    found = verdicts(python, tmp_path, 3, "pynative", *names)
    assert found == {(card, name): "right" for card in range(3) for name in names}


def test_a_card_that_ends_is_named(python, tmp_path):
    done = on_card(python, PROGRAM, "graph", "ends", cwd=tmp_path, options=("--cards", "2"))
    assert done.returncode == 7 and "card 1 has ended: exit status 7" in done.stderr
    assert "RuntimeError" in done.stdout and "HcomAllReduce" in done.stdout
    assert "on card 0: card 1 has ended: exit status 7" in done.stdout


@pytest.mark.slow
def test_a_card_that_never_calls_is_an_error(python, tmp_path):
    found = verdicts(python, tmp_path, 2, "pynative", "never", HCCL_EXEC_TIMEOUT=3)
    assert found[1, "never"] == "right"
    assert "waited 3 seconds (HCCL_EXEC_TIMEOUT) for card 1, which did not call it" in found[0, "never"]


@pytest.mark.slow
def test_cards_that_call_something_else_are_an_error(python, tmp_path):
    found = verdicts(python, tmp_path, 2, "pynative", "other")
    assert "card 0 calls HcomAllReduce of 128 float32 (sum" in found[0, "other"]
    assert "card 1 at its place HcomAllReduce of 128 float32 (max" in found[0, "other"]


def test_no_collectives_without_cards(python, tmp_path):
    """A rank table alone does not start other cards."""
    table = tmp_path / "table.json"
    table.write_text("{}")
    done = on_card(python, PROGRAM, "graph", "sum", cwd=tmp_path, RANK_ID=0, RANK_SIZE=2, RANK_TABLE_FILE=table)
    assert done.returncode and "start it with `virtual-ascend --cards N -- python PROGRAM`" in done.stderr
