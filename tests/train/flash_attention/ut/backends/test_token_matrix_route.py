"""Layouts on the TIK operators, run by the emulator: which ones reach the kernels as matrices of tokens."""

from dataclasses import replace

import pytest
from flash_attention.backends.registry import get_backend
from flash_attention.backends.tik import BACKEND
from flash_attention.call.layout import CALL_LAYOUTS

from tests.train.flash_attention.support.cases import Case, assert_same
from tests.train.flash_attention.support.layouts import OTHER_LAYOUTS
from tests.train.flash_attention.support.problems import make_problem
from tests.train.flash_attention.support.run import run_case

pytest.importorskip("tikemu")

SMALL = Case(
    batch=2, heads=2, kv_heads=1, seq_q=19, seq_k=37, head_dim=16, mask="causal", dropout=0.2, alibi="slopes_all"
)


# A graph of each takes seconds.
EACH = [("pynative", layout) for layout in OTHER_LAYOUTS]
EACH += [pytest.param("graph", layout, marks=[] if layout == "BSH" else pytest.mark.slow) for layout in OTHER_LAYOUTS]


@pytest.mark.parametrize(("mode", "layout"), EACH, indirect=["mode"])
def test_every_layout_gives_the_same_bits(mode, layout):
    assert_same(run_case(SMALL, "emulator", layout), run_case(SMALL, "emulator"))


def test_heads_that_share_fractals_are_separated_first():
    case = replace(SMALL, head_dim=24)
    assert_same(run_case(case, "emulator", "TH"), run_case(case, "emulator"))


@pytest.mark.parametrize("backend", [BACKEND, get_backend("emulator")], ids=["tik", "emulator"])
def test_what_the_kernels_take(backend):
    sizes = {"batch": 2, "heads": 4, "seq_q": 20, "seq_k": 20}
    for layout in CALL_LAYOUTS:
        expected = "BNSD" if layout == "BNSD" else "TH"
        assert backend.layout(make_problem(**sizes, head_dim=32, layout=layout)) == expected
        assert backend.layout(make_problem(**sizes, head_dim=40, layout=layout)) == "BNSD"
        assert backend.layout(make_problem(**sizes, head_dim=32, layout=layout), sharded=True) == "BNSD"
