"""The commands of docs/ascend.md, as they are printed there, on the virtual card."""

import re
import shlex

import pytest

from tests.train.flash_attention.st.wheel_tools import ROOT
from tests.virtual_ascend.card import card_python, said, start

pytestmark = pytest.mark.card
PAGE = (ROOT / "docs/ascend.md").read_text()
CHEAP = (
    "python -c \"import mindspore; mindspore.set_context(device_target='Ascend'); mindspore.run_check()\"",
    "flash-attention info --all",
    "flash-attention opp --out opp",
)
# What the last lines say.
OUTCOMES = dict(zip(CHEAP, (r"installed on platform \[Ascend\] successfully", r"tik +ready", r"")))


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


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_check(tmp_path):
    printed = said(called(tmp_path, "flash-attention check --backend tik --dtype float16"))
    assert printed.rstrip().endswith("all right") and "WRONG" not in printed


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_selftest_ends_and_only_the_times_are_not_those_of_a_card(tmp_path):
    done = called(tmp_path, "flash-attention selftest --device ascend --report card.json")
    assert done.returncode == 1 and (tmp_path / "card.json").exists(), done.stderr[-4000:]
    found = re.findall(r"^(ok|FAILED) +([^:\n]+):", done.stdout, re.MULTILINE)
    assert [name for verdict, name in found if verdict == "FAILED"] == ["times"] and len(found) == 16, done.stdout
