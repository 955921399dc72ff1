"""The kernels that MindSpore launches around the operators, for each layout: card_kernels.txt."""

import pytest

from emulator.virtual_ascend.tests.card import card_python
from tests.train.flash_attention.st.support.card_kernels import expected, kernels

EVERY_RUN = "graph TH 64", "pynative BSH 64"
FORWARD = "FlashAttentionForward"


def second_call(name):
    """Return the launches of the second call; the first call has another order."""
    types = expected()[name]
    return types[len(types) // 2 :]


@pytest.mark.card
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in EVERY_RUN else pytest.mark.slow) for name in expected()]
)
def test_what_is_launched(name):
    assert kernels(card_python(), *name.split()) == expected()[name]


@pytest.mark.parametrize("layout", ("TH 64", "BSH 64", "BSND 64"))
def test_no_conversion_between_the_projections_and_the_operators(layout):
    """In GRAPH the operators take the fractals of MatMul's result without a conversion, forward and backward."""
    types = second_call(f"graph {layout}")
    place = types.index(FORWARD)
    assert types[place - 1] == "MatMul"
    backward = types.index("FlashAttentionGradRows")
    assert types[backward : backward + 3] == ["FlashAttentionGradRows", "AtomicAddrClean", "FlashAttentionGrad"]


@pytest.mark.parametrize("layout", ("SBH 64", "BNSD 64", "BSH 24"))
def test_others_are_converted_transposed_and_converted_again(layout):
    types = second_call(f"graph {layout}")
    place = types.index(FORWARD)
    first, transpose, last = types[place - 3 : place]
    assert first == last == "TransData" and transpose in ("ConfusionTransposeD", "Transpose")
