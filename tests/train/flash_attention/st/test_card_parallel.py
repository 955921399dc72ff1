"""Test FlashAttention on several virtual cards: a GPT has the losses of one card."""

import re
from pathlib import Path

import numpy as np
import pytest

from tests.train.flash_attention.st.support.card_runs import losses_by_card
from tests.train.flash_attention.st.support.wheel_tools import ROOT
from tests.virtual_ascend.card import card_python, on_card, said, start

pytestmark = [pytest.mark.card, pytest.mark.timeout(900)]
PROGRAM = Path(__file__).with_name("support") / "card_parallel.py"
# float16 products are rounded in another place when they are split.
BOUND = 2e-3


@pytest.fixture(scope="module")
def python():
    """Return the interpreter that has MindSpore 2.0.0."""
    return card_python()


def losses(python, folder, cards, *arrangement):
    """Return the losses by card and step: (cards, steps)."""
    options = ("--cards", str(cards)) if cards > 1 else ()
    packages = (ROOT / "train",)
    done = on_card(python, PROGRAM, *arrangement, cwd=folder, options=options, packages=packages, minutes=14)
    return losses_by_card(said(done).splitlines(), cards)


@pytest.mark.slow
def test_one_card(python, tmp_path, alone):
    np.testing.assert_allclose(losses(python, tmp_path, 1, "stand_alone", 1, 1), [alone], atol=BOUND)


def test_two_cards_share_a_batch(python, tmp_path, alone):
    found = losses(python, tmp_path, 2, "semi_auto_parallel", 2, 1)
    np.testing.assert_allclose(found, [alone] * 2, atol=BOUND)


ARRANGEMENTS = (2, 1, 2), (2, 2, 1, "optimizer"), (4, 4, 1), (4, 2, 2), (4, 2, 2, "optimizer")


@pytest.mark.slow
@pytest.mark.parametrize("cards, dp, mp, options", [(*one[:3], one[3:]) for one in ARRANGEMENTS])
def test_batch_heads_and_optimizer_shared(python, tmp_path, alone, cards, dp, mp, options):
    found = losses(python, tmp_path, cards, "semi_auto_parallel", dp, mp, *options)
    np.testing.assert_allclose(found, [alone] * cards, atol=BOUND)


# The table of a server, as /etc/hccn.conf there gives the addresses.
HCCN = "".join(f"address_{card}=192.168.100.{card + 1}\nnetmask_{card}=255.255.255.0\n" for card in range(2))
# `virtual-ascend --cards` sets these variables; the loop sets the others.
PYTHON = """#!/bin/sh
if [ -n "$RANK_ID" ]; then
    export VIRTUAL_ASCEND_CARD=$RANK_ID VIRTUAL_ASCEND_CARDS=$RANK_SIZE VIRTUAL_ASCEND_EXCHANGE="$PWD/exchange"
    export MS_COMPILER_CACHE_PATH="$MS_COMPILER_CACHE_PATH/card$RANK_ID"
fi
exec {python} "$@"
"""


@pytest.mark.slow
def test_the_example_is_started_by_rank_table_and_loop(python, tmp_path):
    """The lines of docs/parallel.md, run for two cards, give the losses of one card."""
    page = (ROOT / "docs/parallel.md").read_text(encoding="utf-8")
    (lines,) = re.findall(r"^```\n(python examples/rank_table.py.*?)^```", page, re.MULTILINE | re.DOTALL)
    for old, new in (
        ("rank_table.py", "rank_table.py --conf hccn.conf"),
        ("RANK_SIZE=8", "RANK_SIZE=2"),
        ("0 1 2 3 4 5 6 7", "0 1"),
        ("--dp 4 --mp 2", "--dp 1 --mp 2 --steps 3"),
    ):
        assert lines.count(old) == 1
        lines = lines.replace(old, new)
    (tmp_path / "lines.sh").write_text(f"set -e\nexport PATH={tmp_path}:$PATH\n{lines}cat card*.log\n")
    (tmp_path / "hccn.conf").write_text(HCCN)
    (tmp_path / "exchange").mkdir()
    (tmp_path / "python").write_text(PYTHON.format(python=python))
    (tmp_path / "python").chmod(0o755)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    command = python, "-m", "virtual_ascend", "--", "bash", "lines.sh"
    printed = said(start(*command, cwd=tmp_path, packages=(ROOT / "train",), minutes=14))
    example = ROOT / "examples/train_parallel.py"
    options = "--device", "Ascend", "--steps", "3"
    done = on_card(python, example, *options, cwd=tmp_path, packages=(ROOT / "train",), minutes=14)
    pattern = re.compile(r"^step (\d+) loss (\S+)$", re.MULTILINE)
    expected = {int(step): float(loss) for step, loss in pattern.findall(said(done))}
    found = pattern.findall(printed)
    assert len(expected) == 3 and len(found) == 6
    for step, loss in found:
        assert float(loss) == pytest.approx(expected[int(step)], abs=BOUND)


EVERY_LAYOUT = (
    ("key", "value", "last", "turned", "mask-whole", "mask-last", "mask-rank-3", "mask-float", "bias-sinks"),
    (
        "bias-last",
        "segments",
        "prefix",
        "prefix-whole",
        "BSH",
        "casts",
        "everything",
        "recompute",
        "split-batch",
        "optimizer",
    ),
)


@pytest.mark.parametrize(
    "dp, mp, cases",
    [
        (1, 2, ("query", "mask", "output")),
        *(pytest.param(1, 2, cases, marks=pytest.mark.slow) for cases in EVERY_LAYOUT),
        *(
            pytest.param(dp, mp, cases, marks=pytest.mark.slow)
            for dp, mp in ((2, 1), (2, 2))
            for cases in (("query", "mask", "output"), *EVERY_LAYOUT)
        ),
    ],
)
def test_inputs_arrive_in_any_layout(python, tmp_path, dp, mp, cases):
    """Gradients equal the reference's, if MindSpore has to gather, split or exchange an input before the layer."""
    program, options = PROGRAM.with_name("card_layouts.py"), ("--cards", str(dp * mp))
    done = on_card(
        python, program, dp, mp, *cases, cwd=tmp_path, options=options, packages=(ROOT / "train",), minutes=14
    )
    found = {tuple(line.split("\t")[:2]): line.split("\t")[2] for line in said(done).splitlines()}
    assert found == {(str(card), name): "right" for card in range(dp * mp) for name in cases}


@pytest.mark.slow
def test_data_parallel(python, tmp_path, alone):
    """Each card has its part of the batch, and prints the loss of this part."""
    found = losses(python, tmp_path, 2, "data_parallel", 1, 1)
    assert (found[0] != found[1]).all()
    np.testing.assert_allclose(found.mean(0), alone, atol=BOUND)


@pytest.mark.slow
def test_a_sequence_over_two_cards(python, tmp_path):
    """GatherAttention is right; RingAttention says what MindSpore 2.0 lacks."""
    names = "causal", "causal-float16-gqa", "window", "sinks-softcap-width", "prefix-documents"
    program, options, packages = PROGRAM.with_name("card_gather.py"), ("--cards", "2"), (ROOT / "train", ROOT)
    done = on_card(python, program, *names, "ring", cwd=tmp_path, options=options, packages=packages, minutes=14)
    found = {tuple(line.split("\t")[:2]): line.split("\t")[2] for line in said(done).splitlines()}
    for card in "01":
        assert "has no mindspore.mint.distributed" in found.pop((card, "ring"))
    assert found == {(card, name): "right" for card in "01" for name in names}
