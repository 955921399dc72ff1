"""Run MindSpore 2.5 and 2.6 on several virtual cards: collectives are nodes of GE's graphs."""

import re
from pathlib import Path

import numpy as np
import pytest

from tests.train.flash_attention.st.support.card_runs import losses_by_card
from tests.train.flash_attention.st.support.wheel_tools import ROOT
from tests.virtual_ascend.card import ge_python, on_card, said

pytestmark = [pytest.mark.card, pytest.mark.timeout(1800)]
SUPPORT = Path(__file__).with_name("support")
COLLECTIVES = ROOT / "tests/virtual_ascend/collective_programs.py"
# float16 products are rounded in another place when they are split.
BOUND = 2e-3
NAMES = (
    *("sum", "sum16", "max", "min", "prod", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_receive"),
    *("last", "group"),
)


def started(package, folder, release, cards, program, *words, **variables):
    """Return the finished process of a program for several cards."""
    options = ("--cards", str(cards)) if cards > 1 else ()
    variables = {"ASCEND_CUSTOM_OPP_PATH": package, **variables}
    packages = ROOT / "train", ROOT
    return on_card(
        *(ge_python(release), program, *words), cwd=folder, options=options, packages=packages, minutes=28, **variables
    )


def verdicts(*arguments, **variables):
    """Return the arrays by card and name."""
    lines = [line.split("\t") for line in said(started(*arguments, **variables)).splitlines()]
    return {(int(card), name): verdict for card, name, verdict in lines}


def losses(package, folder, release, cards, *arrangement):
    """Return losses by card and step: (cards, steps)."""
    printed = said(started(package, folder, release, cards, SUPPORT / "card_parallel.py", *arrangement))
    return losses_by_card(re.findall(r"^\d [0-9.]+$", printed, re.MULTILINE), cards)  # beside lines of MindSpore


def test_collectives_in_graphs(package, tmp_path):
    """The collectives lie between nodes that two seeds order differently. The second call has other data."""
    found = verdicts(package, tmp_path, "2.6.0", 2, COLLECTIVES, "graph", *NAMES)
    assert found == {(card, name): "right" for card in range(2) for name in NAMES}


@pytest.mark.slow
def test_collectives_in_graphs_of_2_5(package, tmp_path):
    found = verdicts(package, tmp_path, "2.5.0", 2, COLLECTIVES, "graph", *NAMES)
    assert found == {(card, name): "right" for card in range(2) for name in NAMES}


@pytest.mark.slow
def test_a_card_that_ends_is_named(package, tmp_path):
    done = started(package, tmp_path, "2.6.0", 2, COLLECTIVES, "graph", "ends")
    assert done.returncode == 7 and "card 1 has ended: exit status 7" in done.stderr
    assert "HcomAllReduce" in done.stdout and "on card 0: card 1 has ended: exit status 7" in done.stdout


@pytest.mark.slow
def test_cards_that_call_something_else_are_an_error(package, tmp_path):
    found = verdicts(package, tmp_path, "2.6.0", 2, COLLECTIVES, "graph", "other")
    for card, mine, others in ((0, "sum", "max"), (1, "max", "sum")):
        assert f"card {card} calls HcomAllReduce of 24 float32 ({mine}" in found[card, "other"]
        assert f"card {1 - card} at its place HcomAllReduce of 24 float32 ({others}" in found[card, "other"]


def test_two_cards_share_heads(package, tmp_path, alone):
    found = losses(package, tmp_path, "2.6.0", 2, "semi_auto_parallel", 1, 2)
    np.testing.assert_allclose(found, [alone] * 2, atol=BOUND)


ARRANGEMENTS = (2, 2, 1), (2, 2, 1, "optimizer"), (4, 2, 2), (4, 2, 2, "optimizer")


@pytest.mark.slow
@pytest.mark.parametrize("cards, dp, mp, options", [(*one[:3], one[3:]) for one in ARRANGEMENTS])
def test_batch_heads_and_optimizer_shared(package, tmp_path, alone, cards, dp, mp, options):
    found = losses(package, tmp_path, "2.6.0", cards, "semi_auto_parallel", dp, mp, *options)
    np.testing.assert_allclose(found, [alone] * cards, atol=BOUND)


@pytest.mark.slow
@pytest.mark.parametrize("release", ["2.6.0", "2.5.0"])
def test_data_parallel(package, tmp_path, alone, release):
    """Each card has its part of the batch, and prints the loss of this part."""
    found = losses(package, tmp_path, release, 2, "data_parallel", 1, 1)
    assert (found[0] != found[1]).all()
    np.testing.assert_allclose(found.mean(0), alone, atol=BOUND)


@pytest.mark.slow
def test_what_2_5_cannot_split_is_an_error_of_the_layer(package, tmp_path):
    done = started(package, tmp_path, "2.5.0", 2, SUPPORT / "card_parallel.py", "semi_auto_parallel", 2, 1)
    assert done.returncode and re.search(r"has no shard strategies that MindSpore 2\.5\S* hands on to GE", done.stderr)


LAYOUTS = (
    *("query", "mask", "key", "value", "last", "turned", "mask-whole", "mask-last", "mask-rank-3", "mask-float"),
    *("bias-sinks", "bias-last", "segments", "BSH", "everything", "recompute", "split-batch", "optimizer"),
)


@pytest.mark.parametrize(
    "dp, mp, cases",
    [
        (1, 2, ("query", "output")),
        pytest.param(2, 1, LAYOUTS, marks=pytest.mark.slow),
        pytest.param(1, 2, LAYOUTS, marks=pytest.mark.slow),
        pytest.param(2, 2, (*LAYOUTS, "output"), marks=pytest.mark.slow),
    ],
)
def test_inputs_arrive_in_any_layout(package, tmp_path, dp, mp, cases):
    """Gradients equal the reference's, if MindSpore has to gather, split or exchange an input before the layer."""
    found = verdicts(package, tmp_path, "2.6.0", dp * mp, SUPPORT / "card_layouts.py", dp, mp, *cases)
    assert found == {(card, name): "right" for card in range(dp * mp) for name in cases}


@pytest.mark.slow
def test_the_example(package, tmp_path):
    """Two cards have the losses of one."""
    pattern = re.compile(r"^step (\d+) loss (\S+)$", re.MULTILINE)
    words = ROOT / "examples/train_parallel.py", "--device", "Ascend", "--steps", 3
    expected = dict(pattern.findall(said(started(package, tmp_path, "2.6.0", 1, *words))))
    found = pattern.findall(said(started(package, tmp_path, "2.6.0", 2, *words, "--dp", 1, "--mp", 2)))
    assert len(expected) == 3 and len(found) == 6
    for step, loss in found:
        assert float(loss) == pytest.approx(float(expected[step]), abs=BOUND)
