"""Run MindSpore 2.5 and 2.6 on the virtual card. They drive the first Ascend 910 through GE."""

import shlex
from pathlib import Path

import numpy as np
import pytest

from tests.train.flash_attention.st.support.card_runs import verdicts
from tests.train.flash_attention.st.support.wheel_tools import ROOT
from tests.train.flash_attention.st.test_card_commands import CHECK, SELFTEST, TRAINING
from tests.train.flash_attention.support.case_list import daily_names
from tests.virtual_ascend.card import ge_python, on_card, said, start

pytestmark = [pytest.mark.card, pytest.mark.timeout(1800)]  # the first one makes an environment
SUPPORT = Path(__file__).with_name("support")
PROGRAM = SUPPORT / "card_attention.py"
MINUTES = 60
CASES = daily_names("ge")
CALLS = {"graph": ("packed.sinks_prefix", "cache.paged"), "pynative": ("paged.sinks", "packed.sinks_prefix")}
TRAINED = "two alike", "accumulated", "recompute", "dropout"


@pytest.fixture
def run(tmp_path, package):
    """Return run(release, program, mode, *names), which gives the verdicts of a program that checks something."""
    return lambda release, *what, **options: verdicts(
        ge_python(release), tmp_path, *what, ASCEND_CUSTOM_OPP_PATH=package, **options
    )


@pytest.mark.parametrize("mode, names", [("graph", CASES[::2]), ("pynative", CASES[1::2])])
def test_shared_cases(run, mode, names):
    assert set(run("2.6.0", "card_cases.py", mode, *names)) == set(names)


@pytest.mark.slow
@pytest.mark.timeout(60 * MINUTES)
@pytest.mark.parametrize("release", ("2.6.0", "2.5.0"))
def test_every_shared_case(run, release):
    assert len(run(release, "card_cases.py", "graph", "0/1", minutes=MINUTES)) > 400


@pytest.mark.parametrize("mode, names", CALLS.items(), ids=CALLS)
def test_calls(run, mode, names):
    assert set(run("2.6.0", "card_calls.py", mode, *names)) == set(names)


@pytest.mark.slow
@pytest.mark.timeout(60 * MINUTES)
@pytest.mark.parametrize("release, mode", [("2.6.0", "graph"), ("2.6.0", "pynative"), ("2.5.0", "graph")])
def test_every_call(run, release, mode):
    assert len(run(release, "card_calls.py", mode, minutes=MINUTES)) == 16


def test_training(run):
    """The network has two layers of one shape and weights behind them. Each step has other data."""
    assert set(run("2.6.0", "card_training.py", "graph", *TRAINED)) == set(TRAINED)


@pytest.mark.slow
@pytest.mark.timeout(60 * MINUTES)
@pytest.mark.parametrize("release, mode", [("2.6.0", "graph"), ("2.6.0", "pynative"), ("2.5.0", "graph")])
def test_all_training(run, release, mode):
    """PYNATIVE has two cases less: these releases recompute in graphs only, like MindSpore 2.0."""
    count = {"graph": 13, "pynative": 11}[mode]
    assert len(run(release, "card_training.py", mode, minutes=MINUTES)) == count


@pytest.mark.slow
def test_around_a_network(run):
    run("2.6.0", "card_data.py", "graph", "train", "checkpoint")


def words(package, folder, release, *arguments):
    """Return the words of each line that card_attention.py prints."""
    variables = {"ASCEND_CUSTOM_OPP_PATH": package, "EXAMPLES": ROOT / "examples"}
    packages = (ROOT / "train",)
    done = on_card(ge_python(release), PROGRAM, *arguments, cwd=folder, packages=packages, **variables)
    return [line.split() for line in said(done).splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(60 * MINUTES)
@pytest.mark.parametrize("release", ("2.6.0", "2.5.0"))
def test_a_gpt_trains_as_on_a_cpu(package, tmp_path, release):
    card = np.array([float(loss) for (loss,) in words(package, tmp_path, release, "gpt", "graph")])
    command = ge_python(release), PROGRAM, "gpt", "graph"
    variables = {"DEVICE": "CPU", "EXAMPLES": ROOT / "examples"}
    on_cpu = said(start(*command, cwd=tmp_path, packages=(ROOT / "train",), **variables))
    np.testing.assert_allclose(card, [float(loss) for loss in on_cpu.splitlines()], atol=1e-4)


def test_loss_scaling_sees_an_overflow(package, tmp_path):
    """A step that overflows is skipped and halves the scale, until a step does not overflow."""
    found = words(package, tmp_path, "2.6.0", "scale", "graph")
    overflows = [overflow == "True" for _, overflow, _ in found]
    skipped = sum(overflows)
    assert overflows == [True] * skipped + [False] * (len(found) - skipped) and 0 < skipped < len(found)
    assert {loss for loss, *_ in found[: skipped + 1]} == {found[0][0]} and found[-1][0] != found[0][0]
    assert float(found[-1][2]) == 2.0 ** (36 - skipped)


FIRST_CALL = """
import numpy as np
from flash_attention import FlashAttention, attention_backend
import mindspore as ms
ms.set_device("Ascend")
ms.set_context(mode={mode}, jit_config={{"jit_level": {level!r}}})
query = ms.Tensor(np.ones((1, 2, 32, 16), np.float16))
with attention_backend({backend!r}):
    print(float(FlashAttention(16)(query, query, query).asnumpy().mean()))
"""
IN_GRAPHS = "runs in GRAPH mode with MindSpore 2.5.0"
ONE_BY_ONE = "runs in graphs that GE compiles: got jit_level {}, allowed is O2"


@pytest.mark.parametrize(
    "release, mode, level, backend, printed",
    [
        ("2.6.0", 0, "O2", "tik", "1.0"),
        ("2.6.0", 0, "O0", "tik", ONE_BY_ONE.format("O0")),
        pytest.param("2.6.0", 0, "O1", "tik", ONE_BY_ONE.format("O1"), marks=pytest.mark.slow),
        pytest.param("2.5.0", 0, "O2", "tik", "1.0", marks=pytest.mark.slow),
        pytest.param("2.5.0", 1, "O2", "tik", IN_GRAPHS, marks=pytest.mark.slow),
        pytest.param("2.5.0", 1, "O2", "math", "1.0", marks=pytest.mark.slow),
    ],
)
def test_first_call(package, tmp_path, release, mode, level, backend, printed):
    """The package is imported before a device is chosen."""
    program = tmp_path / "first.py"
    program.write_text(FIRST_CALL.format(mode=mode, level=level, backend=backend))
    done = on_card(
        ge_python(release), program, cwd=tmp_path, packages=(ROOT / "train",), ASCEND_CUSTOM_OPP_PATH=package
    )
    assert printed in (done.stdout if printed == "1.0" else done.stderr), done.stdout + done.stderr[-3000:]


def command(package, folder, release, text):
    """Run a command of docs/ascend.md. Return its output."""
    words = shlex.split(text)
    if words[0] == "flash-attention":
        words = ["-m", "flash_attention.cli", *words[1:]]
    else:
        words = [ROOT / words[1], *words[2:]]
    packages = (ROOT / "train",)
    variables = {"ASCEND_CUSTOM_OPP_PATH": package}
    return said(on_card(ge_python(release), *words, cwd=folder, packages=packages, minutes=MINUTES, **variables))


COMMANDS = {CHECK: "all right", SELFTEST: "all as expected"}


@pytest.mark.slow
@pytest.mark.timeout(60 * MINUTES)
@pytest.mark.parametrize("text", COMMANDS)
@pytest.mark.parametrize("release", ("2.6.0", "2.5.0"))
def test_commands(package, tmp_path, release, text):
    printed = command(package, tmp_path, release, text)
    assert COMMANDS[text] in printed and "WRONG" not in printed


@pytest.mark.slow
@pytest.mark.timeout(60 * MINUTES)
def test_the_first_training_steps(package, tmp_path):
    """The ten losses of both backends agree to 1e-3."""
    losses = []
    for text in TRAINING:
        command(package, tmp_path, "2.6.0", text)
        (path,) = (tmp_path / "results").glob("*/loss.csv")
        losses.append(np.loadtxt(path, delimiter=",", skiprows=1, usecols=1))
        path.unlink()
    assert len(losses[0]) == 10 and losses[0][-1] < losses[0][0] - 0.5
    np.testing.assert_allclose(losses[0], losses[1], atol=1e-3)


def test_what_the_report_says(package, tmp_path):
    program = tmp_path / "first.py"
    program.write_text(FIRST_CALL.format(mode=0, level="O2", backend="tik"))
    options, packages = ("--report", "report"), (ROOT / "train",)
    done = on_card(
        *(ge_python("2.6.0"), program),
        cwd=tmp_path,
        packages=packages,
        options=options,
        ASCEND_CUSTOM_OPP_PATH=package,
    )
    said(done)
    lines = (tmp_path / "report/op_summary.csv").read_text().splitlines()
    (kernel,) = [line for line in lines if "flash_attention_forward" in line]
    assert "FRACTAL_NZ" in kernel and kernel.endswith("tikemu")
