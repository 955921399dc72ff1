"""Test that MindSpore compiles operators from entry files and copies, without the package's path."""

from pathlib import Path

import pytest

from tests.train.flash_attention.st.support.wheel_tools import ROOT
from tests.virtual_ascend.card import card_python, on_card, said

pytestmark = pytest.mark.card
PROGRAM = Path(__file__).with_name("support") / "card_entries.py"
CASE = "B2-H4-Sq45-Sk61-D32-float16-compact-alibi.bias_all"


@pytest.mark.parametrize("way", (pytest.param("file", marks=pytest.mark.slow), "copied"))
def test_entries(tmp_path, way):
    variables = {"FLASH_ATTENTION_ENTRIES": tmp_path / "entries"}
    done = on_card(card_python(), PROGRAM, ROOT / "train", way, CASE, cwd=tmp_path, packages=(ROOT,), **variables)
    name, verdict, copies = said(done).splitlines()[-1].split("\t")
    assert (name, verdict) == (CASE, "right"), done.stderr[-6000:]
    assert (int(copies) > 0) == (way == "copied")
