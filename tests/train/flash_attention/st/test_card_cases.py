"""Attention of every kind on the virtual card, with three releases of MindSpore.

MindSpore 2.5 and 2.6 drive the first Ascend 910 through GE.
"""

import itertools

import numpy as np
import pytest

from emulator.virtual_ascend.tests.card import said, start
from tests.train.flash_attention.st.support.card_runs import release_python, verdicts, words
from tests.train.flash_attention.st.support.wheel_tools import ROOT
from tests.train.flash_attention.support.case_list import covering, in_float16, on_a_card, rules_of

MINUTES = 60
pytestmark = [pytest.mark.card, pytest.mark.timeout(60 * MINUTES)]  # the first one of a release makes an environment
MODES = "graph", "pynative"
SLOW = {"marks": pytest.mark.slow}
LAYOUTS = "BNSD", "BSND", "BSH", "SBH", "TH"


# Together they have every rule and layout.
CASES = list(map(":".join, zip(itertools.cycle(LAYOUTS), map(str, covering(rules_of, in_float16(on_a_card))))))
PARTS = 12
TRAINED = "inference", "two alike", "accumulated", "dropout"
# Of card_calls.py and card_training.py the checks that show most for their time.
CHOSEN = (
    ("2.0.0", "card_cases.py", "graph", CASES[1::2]),
    ("2.0.0", "card_cases.py", "pynative", CASES[::2]),
    ("2.6.0", "card_cases.py", "graph", CASES[::2]),
    ("2.6.0", "card_cases.py", "pynative", CASES[1::2]),
    ("2.0.0", "card_calls.py", "graph", ("unlike", "packed.sinks_prefix", "dropout_by_seed", "server.paged")),
    ("2.0.0", "card_calls.py", "pynative", ("paged.sinks", "cache.paged")),
    ("2.6.0", "card_calls.py", "graph", ("unlike", "packed.sinks_prefix", "cache.paged")),
    ("2.6.0", "card_calls.py", "pynative", ("paged.sinks", "packed.sinks_prefix")),
    *(("2.6.0", "card_chain.py", mode, ("th", "bsh")) for mode in MODES),
    ("2.0.0", "card_training.py", "graph", (*TRAINED, "recompute", "recomputed dropout")),
    ("2.0.0", "card_training.py", "pynative", TRAINED),
    ("2.6.0", "card_training.py", "graph", (*TRAINED, "recompute")),
    ("2.6.0", "card_training.py", "pynative", ("inference", "inputs without gradient")),
    ("2.0.0", "card_data.py", "graph", ("train", "checkpoint", "export", "sink by two")),
    pytest.param("2.6.0", "card_data.py", "graph", ("train", "checkpoint"), **SLOW),
)
# What is run, and how many checks it has at least. These releases recompute in graphs only.
EVERY = (
    *(("2.0.0", "card_cases.py", mode, 400 // PARTS, f"{part}/{PARTS}") for mode in MODES for part in range(PARTS)),
    *((release, "card_cases.py", "graph", 400, "0/1") for release in ("2.6.0", "2.5.0")),
    *(
        (release, program, mode, count)
        for release, mode in (
            *(("2.0.0", mode) for mode in MODES),
            *(("2.6.0", mode) for mode in MODES),
            ("2.5.0", "graph"),
        )
        for program, count in (("card_calls.py", 16), ("card_training.py", {"graph": 14, "pynative": 12}[mode]))
    ),
    ("2.0.0", "card_data.py", "graph", 8),
    ("2.0.0", "card_data.py", "pynative", 4),
)


@pytest.mark.parametrize("release, program, mode, names", CHOSEN)
def test_chosen(card, program, mode, names):
    """Calls have dropout by seed, packed sequences and caches; every step of a training has other data."""
    assert set(verdicts(card(program, mode, *names))) == set(names)


@pytest.mark.slow
@pytest.mark.parametrize("release, program, mode, count, part", [(*one, "")[:5] for one in EVERY])
def test_every(card, program, mode, count, part):
    assert len(verdicts(card(program, mode, *filter(None, [part]), minutes=MINUTES))) >= count


@pytest.mark.parametrize(
    "release, mode, bound",
    [
        ("2.0.0", "graph", 2e-3),
        pytest.param("2.0.0", "pynative", 2e-3, **SLOW),
        *(pytest.param(release, "graph", 1e-4, **SLOW) for release in ("2.6.0", "2.5.0")),
    ],
)
def test_a_gpt_trains_as_on_a_cpu(card, release, mode, bound, tmp_path):
    program = "card_attention.py", "gpt", mode
    on_card = np.array([float(loss) for (loss,) in words(card(*program))])
    path = ROOT / "tests/train/flash_attention/st/support" / program[0]
    variables = {"packages": (ROOT / "train",), "DEVICE": "CPU", "EXAMPLES": ROOT / "examples"}
    done = start(release_python(release), path, *program[1:], cwd=tmp_path, **variables)
    cpu = np.array([float(loss) for loss in said(done).splitlines()])
    assert len(on_card) == len(cpu) == 4 and cpu[-1] < cpu[0] - 0.1
    np.testing.assert_allclose(on_card, cpu, atol=bound)


@pytest.mark.parametrize("release", ["2.0.0", "2.6.0"])
def test_loss_scaling_sees_an_overflow(card):
    """A step that overflows is skipped and halves the scale, until a step does not overflow."""
    found = words(card("card_attention.py", "scale", "graph"))
    overflows = [overflow == "True" for _, overflow, _ in found]
    assert overflows[0] and not overflows[-1] and overflows == sorted(overflows, reverse=True)
    skipped = sum(overflows)
    assert {loss for loss, *_ in found[: skipped + 1]} == {found[0][0]} and found[-1][0] != found[0][0]
    scales = [2.0 ** (36 - min(step, skipped)) for step in range(1, len(found) + 1)]
    assert [float(scale) for *_, scale in found] == scales


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
        pytest.param("2.6.0", 0, "O1", "tik", ONE_BY_ONE.format("O1"), **SLOW),
        pytest.param("2.5.0", 0, "O2", "tik", "1.0", **SLOW),
        pytest.param("2.5.0", 1, "O2", "tik", IN_GRAPHS, **SLOW),
        pytest.param("2.5.0", 1, "O2", "math", "1.0", **SLOW),
    ],
)
def test_first_call(card, tmp_path, mode, level, backend, printed):
    """The package is imported before a device is chosen. The report names the operator and the model."""
    program = tmp_path / "first.py"
    program.write_text(FIRST_CALL.format(mode=mode, level=level, backend=backend))
    done = card(program, options=("--report", "report"))
    assert printed in (done.stdout if printed == "1.0" else done.stderr), done.stdout + done.stderr[-3000:]
    if printed == "1.0" and backend == "tik":
        lines = (tmp_path / "report/op_summary.csv").read_text().splitlines()
        (kernel,) = [line for line in lines if "FlashAttentionForward" in line]
        assert "FRACTAL_NZ" in kernel and kernel.endswith("tikemu")
