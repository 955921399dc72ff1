"""The commands of docs/ascend.md, as they are printed there, on the virtual card."""

import json
import re
import shlex

import pytest

from tests.train.flash_attention.st.support.wheel_tools import ROOT
from tests.virtual_ascend.card import card_python, said, start

pytestmark = pytest.mark.card
PAGE = (ROOT / "docs/ascend.md").read_text()
CHEAP = (
    "python -c \"import mindspore; mindspore.set_context(device_target='Ascend'); mindspore.run_check()\"",
    "flash-attention info --all",
    "flash-attention opp --out opp",
    "flash-attention bench --quick",
    "flash-attention tune --operator forward --head-dim 64 --seq 512 --out tuning.json",
)
# What they say.
OUTCOMES = dict(
    zip(
        CHEAP,
        (
            r"installed on platform \[Ascend\] successfully",
            r"tik +ready",
            r"",
            r"S=256 float32",
            r"written: tuning.json",
        ),
    )
)
DEVICE_TUNING = "flash-attention tune --device ascend --operator backward --head-dim 128 --out tuning.json"


def called(folder, command):
    """The process that `virtual-ascend -- COMMAND` was."""
    assert command in PAGE
    python = card_python()
    script = folder / "flash-attention"
    script.write_text(f"#!{python}\nimport sys\nfrom flash_attention.cli import main\nsys.exit(main())\n")
    script.chmod(0o755)
    words = shlex.split(command)
    if words[0] == script.name:
        words[0] = str(script)
    return start(
        *(python, "-m", "virtual_ascend", "--", *words),
        cwd=folder,
        packages=(ROOT / "train",),
        minutes=20,
    )


@pytest.mark.parametrize("command", CHEAP)
def test_cheap_commands(tmp_path, command):
    assert re.search(OUTCOMES[command], said(called(tmp_path, command)))


def test_tuning_needs_the_times_of_a_device(tmp_path):
    done = called(tmp_path, DEVICE_TUNING)
    assert done.returncode == 2 and "a virtual card has no times of a device" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_operators_on_the_model(tmp_path):
    printed = said(called(tmp_path, "flash-attention bench --tik --seq 1024"))
    assert "forward D=128 causal" in printed and "of the Cube's peak" in printed


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_check(tmp_path):
    printed = said(called(tmp_path, "flash-attention check --backend tik --dtype float16"))
    assert printed.rstrip().endswith("all right") and "WRONG" not in printed


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_selftest_ends_and_only_the_times_are_not_those_of_a_card(tmp_path):
    printed = said(called(tmp_path, "flash-attention selftest --device ascend --report card.json"))
    experiments = json.loads((tmp_path / "card.json").read_text())["experiments"]
    assert {one["name"]: one["result"] for one in experiments if one["result"] != "ok"} == {"times": "not run"}
    assert len(experiments) == 16 and "all as expected" in printed
