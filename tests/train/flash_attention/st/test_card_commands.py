"""The commands of docs/ascend.md, as printed there, on the virtual card. It has several MindSpores."""

import json
import re
import shlex

import numpy as np
import pytest
from flash_attention.commands.selftest import elf

from emulator.virtual_ascend.tests.card import ge_python, said, start
from tests.train.flash_attention.st.support.card_runs import release_python
from tests.train.flash_attention.st.support.wheel_tools import ROOT

pytestmark = [pytest.mark.card, pytest.mark.timeout(3600)]
PAGE = (ROOT / "docs/ascend.md").read_text()
# What they print.
CHEAP = {
    "python -c \"import mindspore; mindspore.set_context(device_target='Ascend'); mindspore.run_check()\"": (
        r"installed on platform \[Ascend\] successfully"
    ),
    "flash-attention info": r"tik +",
    "flash-attention info --all": r"tik +ready",
    "flash-attention opp --out opp": "",
}
# What they print that compute on the processor and on the model.
WITHOUT_CARD = {"flash-attention bench --quick": r"S=256 float32"}
MODEL = "flash-attention bench --tik --seq 1024"
CHECK = "flash-attention check --backend tik --dtype float16"
SELFTEST = "flash-attention selftest --device ascend --report card.json"
PACKAGE = (
    "bash opp/install.sh",
    "bash opp/install.sh --install-path=$HOME/ascend_opp",
    "bash opp/install.sh --uninstall",
    "bash opp/install.sh --uninstall --install-path=$HOME/ascend_opp",
)
TRAINING = (
    "python examples/train_gpt.py --device Ascend --backend tik --seq 1024 --heads 8 --steps 10"
    " --sample 0 --held-out 0",
    "python examples/train_gpt.py --device Ascend --backend math --dtype float16 --seq 1024 --heads 8 --steps 10"
    " --sample 0 --held-out 0",
)
# Commands of the page that need a server's network, or no card. test_selftest_cann.py runs those that need only CANN.
ELSEWHERE = (
    *("pip ", "source ", "flash-attention check", "flash-attention profile", "python examples/torch_npu_attention.py"),
    *(
        f"flash-attention selftest {option}"
        for option in ("--device emulator", "--compile", "--device ascend --through")
    ),
)


def test_every_command_of_the_page_is_run_here():
    """Every command of the page runs here, but for the commands in ELSEWHERE."""
    run = {*CHEAP, *WITHOUT_CARD, MODEL, SELFTEST, *PACKAGE, *TRAINING}
    blocks = re.findall(r"^```\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    printed = {line.partition("  #")[0].rstrip() for block in blocks for line in block.splitlines()}
    assert {line for line in printed if not line.startswith(ELSEWHERE)} == run


@pytest.fixture
def called(release, tmp_path, request):
    """Return called(command): the output of `virtual-ascend -- COMMAND` with a release of MindSpore."""
    python = release_python(release)
    script = tmp_path / "flash-attention"
    script.write_text(f"#!{python}\nimport sys\nfrom flash_attention.cli import main\nsys.exit(main())\n")
    script.chmod(0o755)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    variables = {} if release == "2.0.0" else {"ASCEND_CUSTOM_OPP_PATH": request.getfixturevalue("package")}

    def run(command):
        assert f"{command}\n" in PAGE or f"{command}  " in PAGE or f"`{command}`" in PAGE
        words = [str(script) if word == script.name else word for word in shlex.split(command)]
        words = python, "-m", "virtual_ascend", "--", *words
        return said(start(*words, cwd=tmp_path, packages=(ROOT / "train",), minutes=55, **variables))

    return run


@pytest.mark.parametrize("release", ["2.0.0"])
@pytest.mark.parametrize("command", CHEAP)
def test_cheap_commands(called, command):
    assert re.search(CHEAP[command], called(command))


@pytest.mark.slow
@pytest.mark.parametrize("release", ["2.0.0"])
@pytest.mark.parametrize("command", WITHOUT_CARD)
def test_commands_that_need_no_card(called, command):
    assert re.search(WITHOUT_CARD[command], called(command))


@pytest.mark.parametrize("release", ["2.0.0"])
def test_the_operator_package_comes_and_goes(called, tmp_path):
    """The package goes into a user's folder and into CANN's. This test has its own stand-in for CANN's folder."""
    called("flash-attention opp --out opp")
    for command in PACKAGE:
        folder = tmp_path / "ascend_opp" if "--install-path" in command else tmp_path / "cann"
        words = shlex.split(command.replace("$HOME", str(tmp_path)))
        said(start(*words, cwd=tmp_path, ASCEND_OPP_PATH=tmp_path / "cann", HOME=tmp_path))
        assert (folder / "vendors/flash_attention").exists() != ("--uninstall" in command)


@pytest.mark.slow
@pytest.mark.parametrize("release", ["2.0.0", "2.6.0"])
def test_the_first_training_steps(called, tmp_path):
    """The ten losses of both backends agree to 1e-3."""
    losses = []
    for command in TRAINING:
        called(command)
        (path,) = (tmp_path / "results").glob("*/loss.csv")
        losses.append(np.loadtxt(path, delimiter=",", skiprows=1, usecols=1))
        path.unlink()
    assert len(losses[0]) == 10 and losses[0][-1] < losses[0][0] - 0.5
    np.testing.assert_allclose(losses[0], losses[1], atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("release", ["2.0.0"])
def test_operators_on_the_model(called):
    printed = called(MODEL)
    assert "forward D=128 causal" in printed and "of the Cube's peak" in printed


@pytest.mark.slow
@pytest.mark.parametrize("release", ["2.0.0", "2.6.0", "2.5.0"])
def test_check(called):
    printed = called(CHECK)
    assert printed.rstrip().endswith("all right") and "WRONG" not in printed


@pytest.mark.slow
@pytest.mark.parametrize("release", ["2.0.0", "2.6.0", "2.5.0"])
def test_selftest_ends_and_only_the_times_are_not_those_of_a_card(called, release, tmp_path):
    printed = called(SELFTEST)
    assert "all as expected" in printed and "WRONG" not in printed
    if release == "2.0.0":
        experiments = json.loads((tmp_path / "card.json").read_text())["experiments"]
        others = {one["name"]: one["result"] for one in experiments if one["result"] != "ok"}
        assert others == {one["name"]: "not run" for one in experiments if one["name"].startswith(("time", "tensor"))}
        assert len(experiments) == 45


@pytest.mark.parametrize("soc, flags, count", [("910", 0x860000, 16), ("910b", 0x930000, None)])
def test_kernels_in_a_wheel_name_their_chip(soc, flags, count):
    """The development wheel of 2.6 has kernels that CANN compiled, with their descriptions."""
    (plugin,) = ge_python("2.6.0").parents[1].glob("lib/python*/site-packages/mindspore/lib/plugin/ascend")
    objects = sorted(plugin.glob(f"custom_ascendc_{soc}/op_impl/ai_core/tbe/kernel/ascend{soc}/*/*.o"))
    assert len(objects) == (count or len(objects)) > 0
    for path in objects:
        found = elf.read(path.read_bytes())
        described = json.loads(path.with_suffix(".json").read_text())
        assert found.chip == elf.CHIPS[flags]
        assert soc != "910" or set(found.functions) == {one["kernelName"] for one in described["kernelList"]}
