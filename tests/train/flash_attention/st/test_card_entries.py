"""Test that MindSpore compiles operators from entry files and copies, without the package's path.

They also test the launches around the operators in PYNATIVE if a call differs from the call before.
"""

import math
import re
from pathlib import Path

import pytest

from emulator.virtual_ascend.tests.card import card_python, on_card, said
from tests.train.flash_attention.st.support.wheel_tools import ROOT

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


DROPOUT = """
import mindspore as ms, numpy as np, flash_attention
from mindspore import Parameter, Tensor, nn, ops
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.gain = Parameter(Tensor(np.ones((1, 1), np.float32)), name="gain")
        self.drop, self.attention = nn.Dropout(p=0.1), flash_attention.FlashAttention(64, causal=True)
    def construct(self, x):
        x = ops.cast(self.drop(x * self.gain[0, 0]), ms.float16).reshape(2, 1, 48, 64)
        return self.attention(x, x, x).sum()
ms.set_context(mode=ms.PYNATIVE_MODE, device_target="Ascend")
net = Net().set_train()
gradient = ops.GradOperation(get_by_list=True)(net, ms.ParameterTuple(net.trainable_params()))
for seed in range(3):
    x = Tensor(np.random.default_rng(seed).standard_normal((2, 48, 64)).astype(np.float32))
    print(float(net(x).asnumpy()), float(gradient(x)[0].asnumpy()))
"""


@pytest.mark.slow
def test_dropout_before_the_layer(tmp_path):
    """MindSpore asks the card for a shape in the third step."""
    (tmp_path / "dropout.py").write_text(DROPOUT)
    options = "--report", "report"
    done = on_card(card_python(), "dropout.py", cwd=tmp_path, options=options, packages=(ROOT / "train",))
    numbers = [float(word) for line in said(done).splitlines() for word in line.split()]
    assert len(numbers) == 6 and all(map(math.isfinite, numbers))
    assert "\nShape," in (tmp_path / "report/op_summary.csv").read_text()
    summary = re.search(r"^ +operators in TIK .* us .*%  FlashAttentionForward \d+ times", done.stderr, re.M)
    assert summary, done.stderr[-3000:]
