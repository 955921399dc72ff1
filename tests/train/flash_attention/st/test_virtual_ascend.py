"""FlashAttention under MindSpore's own Ascend backend, on the virtual card."""

from pathlib import Path

import numpy as np
import pytest

from tests.train.flash_attention.st.support.card_kernels import BOUND
from tests.train.flash_attention.st.support.wheel_tools import ROOT
from tests.virtual_ascend.card import card_python, on_card, said, start

pytestmark = pytest.mark.card
PROGRAM = Path(__file__).with_name("support") / "card_attention.py"
PACKAGES = (ROOT / "train",)


@pytest.fixture(scope="module")
def python():
    """Return the interpreter that has MindSpore 2.0.0."""
    return card_python()


def lines(python, folder, *arguments, options=()):
    """Return the words of each line that a program on the card prints."""
    done = on_card(
        python, PROGRAM, *arguments, cwd=folder, options=options, packages=PACKAGES, EXAMPLES=ROOT / "examples"
    )
    return [line.split() for line in said(done).splitlines()]


# Every run has the gradients of test_card_kernels.py and the shared cases.
@pytest.mark.slow
@pytest.mark.parametrize("mode, layout", [("graph", "BNSD"), ("graph", "TH"), ("pynative", "TH"), ("pynative", "BSH")])
def test_output_and_gradients_of_two_calls(python, tmp_path, mode, layout):
    found = lines(python, tmp_path, "attention", mode, layout)
    assert len(found) == 12
    assert {name: error for call, name, error in found if float(error) > BOUND} == {}


@pytest.mark.parametrize("mode", ("graph", pytest.param("pynative", marks=pytest.mark.slow)))
def test_a_gpt_trains_as_on_a_cpu(python, tmp_path, mode):
    card = np.array([float(loss) for (loss,) in lines(python, tmp_path, "gpt", mode)])
    on_cpu = start(
        python, PROGRAM, "gpt", mode, cwd=tmp_path, packages=PACKAGES, DEVICE="CPU", EXAMPLES=ROOT / "examples"
    )
    cpu = np.array([float(loss) for loss in said(on_cpu).splitlines()])
    assert len(card) == len(cpu) == 4 and cpu[-1] < cpu[0] - 0.1
    np.testing.assert_allclose(card, cpu, atol=2e-3)


def test_loss_scaling_sees_an_overflow(python, tmp_path):
    """A step that overflows is skipped and halves the scale, until a step does not overflow."""
    found = lines(python, tmp_path, "scale", "graph")
    overflows = [overflow == "True" for _, overflow, _ in found]
    assert overflows[0] and not overflows[-1] and overflows == sorted(overflows, reverse=True)
    skipped = sum(overflows)
    assert {loss for loss, *_ in found[: skipped + 1]} == {found[0][0]} and found[-1][0] != found[0][0]
    assert [float(scale) for *_, scale in found] == [
        2.0 ** (36 - min(step, skipped)) for step in range(1, len(found) + 1)
    ]
