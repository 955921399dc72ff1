"""Test the commands that need CANN alone, on its stand-ins and without MindSpore."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from flash_attention.backends.tik import opp_package
from flash_attention.commands.selftest import elf, runtime
from flash_attention.commands.selftest.kernels import KERNELS, kernel_of
from flash_attention.kernels.tik import signatures

from emulator.virtual_ascend.tests.card import PACKAGES, ROOT

pytest.importorskip("tikemu")
pytestmark = pytest.mark.system
virtual_elf = pytest.importorskip("virtual_ascend.elf")

CANN = ROOT / "emulator/virtual_ascend/virtual_ascend/cann"
SELFTEST = "-m", "flash_attention.cli", "selftest"
ROWS, SINKS = "Ascend910A: rows, D=128", "Ascend910A: rows, sinks"
CCE = """// set_vector_mask(0, 0);
extern "C" __global__ __aicore__ void selftest_kernel__kernel0(__gm__ half *query) {
  set_vector_mask((uint64_t)-1, (uint64_t)-1);
  for (int32_t i = 0; i < 8; ++i) {
    vadd((__ubuf__ half *)a, (__ubuf__ half *)b, 1, 8);
    pipe_barrier(PIPE_V);
    vadd(a, b, uint8_t(8));
  }
  set_flag(PIPE_MTE2, PIPE_V, EVENT_ID0);
  wait_flag(PIPE_MTE2, PIPE_V, EVENT_ID0);
}
"""
INSTRUCTIONS = {
    "pipe_barrier PIPE_V": 1,
    "set_flag PIPE_MTE2 PIPE_V": 1,
    "set_vector_mask": 1,
    "vadd": 2,
    "wait_flag PIPE_MTE2 PIPE_V": 1,
}
TOOLKIT = f"""
import json, os, resource, sys, time
from pathlib import Path
from virtual_ascend import elf
from virtual_ascend.compiler.modules import provide
provide({{}})
from tikemu.tik import Tik
build = Tik.BuildCCE

def compile_it(self, kernel_name, inputs, outputs, config):
    does = os.environ.get("TOOLKIT", "")
    if "d_sink_rows" in [one.name for one in outputs]:
        Path(os.environ["PLACE"], "pid").write_text(str(os.getpid()))
        if does == "hangs":
            time.sleep(300)
        if does == "dies":
            print("a plugin was lost", file=sys.stderr, flush=True)
            os.abort()
        if does == "fails" or does == "forms" and "FLASH_ATTENTION_FORMS" not in os.environ:
            print("level", config.get("tbe_debug_level"), file=sys.stderr)
            raise RuntimeError("\\n".join(f"line {{n}}" for n in range(20)))  # the secret of the toolkit
    build(self, kernel_name, inputs, outputs)
    print("[WARNING] a mask was set twice", file=sys.stderr)
    print("[WARNING] stack", resource.getrlimit(resource.RLIMIT_STACK)[0], file=sys.stderr)
    folder = Path("kernel_meta")
    folder.mkdir(exist_ok=True)
    flags = os.environ.get("FLAGS", "0x860000")
    written = elf.write(bytes(100), [f"{{kernel_name}}__kernel0"], int(flags, 16)) if flags else b"text"
    (folder / f"{{kernel_name}}.o").write_bytes(written)
    description = {{"blockDim": 7, "workspace": {{"num": 1, "size": [32]}}}}
    (folder / f"{{kernel_name}}.json").write_text(json.dumps(description))
    if config["save_temp_cce_file"]:
        (folder / f"{{kernel_name}}.cce").write_text({CCE!r})

Tik.BuildCCE = compile_it
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Make a folder with the toolkit, and a MindSpore that cannot be imported."""
    (tmp_path / "packages/tbe").mkdir(parents=True)
    (tmp_path / "packages/tbe/__init__.py").write_text(TOOLKIT)
    (tmp_path / "packages/mindspore.py").write_text("raise ImportError('MindSpore is not here')\n")
    return tmp_path


@pytest.fixture(scope="module")
def operators(tmp_path_factory) -> Path:
    """Write the operator package."""
    return opp_package.write("ascend910", tmp_path_factory.mktemp("opp") / "package")


@pytest.fixture
def card(place: Path, operators: Path) -> Path:
    """Make the folder of a server with a card: the stand-in for CANN, and the operator package."""
    shutil.rmtree(place / "packages/tbe")
    for package in CANN.iterdir():
        (place / "packages" / package.name).symlink_to(package)
    shutil.copytree(operators, place / "opp")
    return place


def start(place: Path, *words: str, **variables: object) -> subprocess.Popen:
    """Start a program in the folder."""
    packages = place / "packages", *PACKAGES, ROOT / "train"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("ASCEND", "FLASH_ATTENTION"))},
        "PYTHONPATH": os.pathsep.join(map(str, packages)),
        "PLACE": str(place),
        "VIRTUAL_ASCEND_CANN": "7.6",
        **{name: str(value) for name, value in variables.items()},
    }
    return subprocess.Popen(
        ["bash", "-c", 'ulimit -S -s 8192; exec "$@"', "start", sys.executable, *words],
        cwd=place,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def compiling(place: Path, *options: str, only: str = ROWS, **variables: object) -> subprocess.Popen:
    """Start --compile."""
    return start(place, *SELFTEST, "--compile", "--only", only, *options, **variables)


def on_card(place: Path, *words: str, **variables: object) -> subprocess.Popen:
    """Start a program with the virtual card and the operator package."""
    given = {"VIRTUAL_ASCEND_SOC": "Ascend910A", "VIRTUAL_ASCEND_CORES": 32, "ASCEND_CUSTOM_OPP_PATH": place / "opp"}
    return start(place, *words, **{**given, **variables})


def through_acl(place: Path, *options: str, **variables: object) -> subprocess.Popen:
    """Start --through acl."""
    words = "--device", "ascend", "--through", "acl", "--report", "card.json"
    return on_card(place, *SELFTEST, *words, *options, **variables)


def finish(command: subprocess.Popen) -> tuple[int, str, str]:
    """Return the status, stdout and stderr of the command."""
    told, warned = command.communicate(timeout=120)
    return command.returncode, told, warned


def kernels(place: Path) -> dict:
    """Return the report's kernels."""
    return json.loads((place / "compile.json").read_text())["kernels"]


def wait(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds, a minute at the most."""
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.2)


def test_every_operator_type_is_among_the_kernels():
    for cores in (30, 32):
        types = {signatures.arguments(*kernel_of(name, cores))[0].type for name in KERNELS}
        assert types == {operator.type for operator in signatures.OPERATORS}


def test_report_and_the_next_run(place: Path):
    status, told, _ = finish(compiling(place, "--keep", "kept"))
    assert status == 0 and told.splitlines()[-1].startswith("1 of 1 kernels compile"), told
    (one,) = kernels(place).values()
    assert {name: one[name] for name in ("operator", "cores", "blocks", "chip", "workspace")} == {
        "operator": "FlashAttentionGradRows",
        "cores": 32,
        "blocks": 7,
        "chip": "Ascend910",
        "workspace": {"num": 1, "size": [32]},
    }
    assert one["instructions"] == INSTRUCTIONS and one["object_bytes"] > 100
    assert one["warnings"] == ["[WARNING] a mask was set twice", f"[WARNING] stack {64 << 20}"]
    assert (place / "kept/Ascend910A/rows__D_128/kernel_meta/selftest_kernel.cce").read_text() == CCE

    status, told, _ = finish(compiling(place, only="910A: rows", TOOLKIT="fails"))
    assert status == 1 and "1 kernels are in compile.json already" in told and f"FAILED  {SINKS}" in told
    assert "1 of 2 kernels compile" in told and kernels(place)[ROWS] == one
    assert kernels(place)[SINKS]["error"][:1] == ["RuntimeError: line 0"]
    assert kernels(place)[SINKS]["error"][-1] == "line 19" and "secret" not in (place / "compile.json").read_text()
    assert [one["error"][0] for one in kernels(place)[SINKS]["retries"].values()] == 2 * ["RuntimeError: line 0"]


def test_a_failed_kernel_is_compiled_again(place: Path):
    """With TIK's debug level, then with the safe forms of instructions; the report keeps all outcomes."""
    status, told, _ = finish(compiling(place, "--keep", "kept", only=SINKS, TOOLKIT="forms"))
    assert status == 1 and "; it compiles with FLASH_ATTENTION_FORMS=shifted_operands=0,mixed_axpy=0" in told
    level, forms = kernels(place)[SINKS]["retries"].values()
    assert level["error"][0] == "RuntimeError: line 0" and forms["chip"] == "Ascend910"
    assert list((place / "kept").rglob("*.o"))


def test_an_object_for_another_chip_is_an_error(place: Path):
    status, told, _ = finish(compiling(place, only=ROWS, FLAGS="0x930000"))
    assert status == 1 and "compiled for Ascend910B1 to 910B4, or Ascend910_93, Ascend910A is Ascend910" in told


@pytest.mark.parametrize("flags, chip", [("0x7", "machine 0x1029, flags 0x7"), ("", "got an object that begins with")])
def test_an_object_that_nobody_has_seen_is_an_answer(place: Path, flags: str, chip: str):
    """The kernel counts as compiled, and the report has what the object begins with."""
    status, told, _ = finish(compiling(place, only=ROWS, FLAGS=flags))
    assert status == 0 and told.splitlines()[-1].startswith("1 of 1 kernels compile"), told
    assert kernels(place)[ROWS]["chip"].startswith("unknown") and chip in kernels(place)[ROWS]["chip"]


@pytest.mark.parametrize("change", (lambda o: b"text", lambda o: o[:90]))
def test_what_is_no_kernel_is_refused(change: Callable[[bytes], bytes]):
    right = virtual_elf.write(b"code", ["one__kernel0", "two"])
    assert elf.read(right) == elf.Object("Ascend910", ("one__kernel0", "two"))
    with pytest.raises(ValueError, match="^got an? (damaged )?object"):
        elf.read(change(right))


@pytest.mark.parametrize(
    "does, error",
    [("dies", ["the process ended with status -6", "a plugin was lost"]), ("hangs", ["not done within 3 s"])],
)
def test_a_process_that_ends_without_a_result(place: Path, does: str, error: list):
    status, told, _ = finish(compiling(place, "--limit", "3", only=SINKS, TOOLKIT=does))
    assert status == 1 and error[0] in told and kernels(place)[SINKS]["error"] == error
    assert len(kernels(place)[SINKS].get("retries", {})) == (2 if does == "dies" else 0)


def test_ctrl_c_ends_the_processes_and_keeps_what_is_done(place: Path):
    command = compiling(place, only="910A: rows", TOOLKIT="hangs")
    wait(lambda: (place / "pid").exists() and (place / "compile.json").exists() and ROWS in kernels(place))
    os.killpg(command.pid, signal.SIGINT)
    status, told, _ = finish(command)
    assert status == 130 and "the same command goes on" in told and set(kernels(place)) == {ROWS}
    with pytest.raises(ProcessLookupError):
        os.kill(int((place / "pid").read_text()), 0)


def test_what_is_missing_or_wrong_is_one_line(place: Path):
    (place / "compile.json").write_text('{"software": {}}')
    status, _, warned = finish(compiling(place))
    assert status == 2 and "is of other software, or no report" in warned
    assert "--only: got 'x', allowed is a part of a kernel's name" in finish(compiling(place, only="x"))[2]


LACKS = "CANN's Python package tbe cannot be imported: ModuleNotFoundError: No module named 'decorator'"


@pytest.mark.parametrize("words", [("info",), ("selftest", "--compile"), ("selftest", "--device", "ascend")])
def test_every_command_names_what_the_compiler_lacks(card: Path, words: tuple):
    """tbe is there, and does not import."""
    (card / "packages/tbe").unlink()
    (card / "packages/tbe").mkdir()
    (card / "packages/tbe/__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'decorator'\")\n")
    through = ("--through", "acl") if "--device" in words else ()
    status, told, warned = finish(on_card(card, "-m", "flash_attention.cli", *words, *through, ASCEND_HOME_PATH=card))
    if words == ("info",):  # beside CANN, which the self-test needs, and beside the backend
        assert status == 0 and " ".join(told.split()).count(LACKS) == 2, told
    else:
        assert status == 2 and told == "" and warned.count("\n") == 1 and LACKS in warned


def experiments(place: Path) -> dict[str, dict]:
    """Return the report's experiments by name."""
    return {one["name"]: one for one in json.loads((place / "card.json").read_text())["experiments"]}


def test_experiments_through_acl(card: Path):
    status, told, warned = finish(through_acl(card))
    assert status == 0 and "soc Ascend910A, virtual" in told and "please send it" in told, told + warned
    for name, one in experiments(card).items():
        timed = name in ("times", "tensor beyond 4 GiB") or name.startswith("time of ")
        assert one["result"] == ("not run" if timed else "ok"), one["found"]
        assert not name.startswith("attention") or "d_query" in one["found"] and "bit-equal: True" in one["found"]


def test_types_without_a_prototype_need_what_mindspore_sets(card: Path):
    """The self-test sets it, and its report says so; a user's own value stays."""
    assert finish(through_acl(card, "--only", "exponential"))[0] == 0
    said = json.loads((card / "card.json").read_text())
    assert said["ignore_infer_error"] == said["fast_ignore_infer_error"] == "1"
    assert said["saturation_mode"] == "0" and " of " in said["free_bytes"] and said["stack_bytes"] == str(64 << 20)
    status, told, _ = finish(through_acl(card, "--only", "exponential", IGNORE_INFER_ERROR=0))
    assert status == 1 and "SelftestExponential has no prototype" in told


def test_an_operator_that_is_not_compiled_is_a_finding(card: Path):
    entry = card / "opp/op_impl/ai_core/tbe/flash_attention_impl/flash_attention_grad.py"
    entry.write_text(entry.read_text().replace("    import os\n", "    raise RuntimeError('refused here')\n"))
    status, told, _ = finish(through_acl(card, "--only", "attention 1"))
    assert status == 1 and told.rstrip().endswith("FAILED: 1")
    found = experiments(card)["attention 1: D=16, S=40"]["found"]
    assert "aclopCompile of FlashAttentionGrad gave 500002" in found and "refused here" in found


def through_runtime(place: Path, *options: str, **variables: object) -> subprocess.Popen:
    """Start --through runtime, without any operator package."""
    words = "--device", "ascend", "--through", "runtime", "--report", "card.json"
    return on_card(place, *SELFTEST, *words, *options, **{"ASCEND_CUSTOM_OPP_PATH": "", **variables})


def test_experiments_through_the_runtime(card: Path):
    status, told, warned = finish(through_runtime(card))
    assert status == 0 and "through runtime" in told, told + warned
    for name, one in experiments(card).items():
        timed = name in ("times", "tensor beyond 4 GiB") or name.startswith("time of ")
        assert one["result"] == ("not run" if timed else "ok"), one["found"]


@pytest.mark.parametrize("spelling", ("kernel0", "plain", "listed"))
def test_the_runtime_launches_functions_of_every_spelling(card: Path, spelling: str):
    """Objects of static kernels, of AKG's and of dynamic ones name their function differently."""
    status, told, warned = finish(through_runtime(card, "--only", "atomic", VIRTUAL_ASCEND_SPELLING=spelling))
    assert status == 0 and "all as expected" in told, told + warned


@pytest.mark.parametrize(
    "described, functions, launched",
    [
        ({"kernelName": "one", "kernelList": [{"kernelName": "one_1"}]}, ("two", "one_1"), "one_1"),
        ({"kernelName": "one"}, ("one__kernel0",), "one__kernel0"),
        ({"kernelName": "one__kernel0"}, (), "one__kernel0"),  # its symbols were stripped
        ({"kernelName": "one"}, ("two", "three"), None),
        ({}, (), None),
    ],
)
def test_the_function_to_launch_is_looked_up(described: dict, functions: tuple, launched: str | None):
    if launched is None:
        with pytest.raises(RuntimeError, match="the description names the functions"):
            runtime.function_of(described, functions)
    else:
        assert runtime.function_of(described, functions) == launched


def test_the_described_object_is_launched(tmp_path: Path):
    for names, message in (((), "no object"), (("a.o", "b.o"), "a.o, b.o"), (("a.json", "b.json"), "a.o, b.o")):
        for name in names:
            (tmp_path / name).write_text("{}")
        with pytest.raises(RuntimeError, match=f"CANN wrote {message}, expected is one object with a description"):
            runtime.read_compiled(tmp_path)
    (tmp_path / "a.json").unlink()
    assert runtime.read_compiled(tmp_path) == ({}, b"{}")


def test_the_runtime_says_what_did_not_compile(card: Path):
    status, told, _ = finish(through_runtime(card, "--only", "exponential", VIRTUAL_ASCEND_SPELLING="other"))
    assert status == 1 and "selftest_exponential was not compiled, status 1: " in told
    assert "KeyError: 'other'" in told


MISSING = {
    "another chip": ({"VIRTUAL_ASCEND_SOC": "Ascend910B3"}, "the card is Ascend910B3, allowed are Ascend910A,"),
    "no operator package": (
        {"ASCEND_CUSTOM_OPP_PATH": ""},
        "the operator package is not installed: flash-attention opp",
    ),
    # Not even root may write to this one.
    "no permission": ({"VIRTUAL_ASCEND_NODE": "/proc/sys/kernel/version"}, "version failed: Permission denied"),
    "a full card": ({"VIRTUAL_ASCEND_MEMORY": 1 << 17}, "acl.rt.malloc gave 200000: no room for"),
}


@pytest.mark.parametrize("name", MISSING)
def test_what_a_server_lacks_is_named(card: Path, name: str):
    variables, message = MISSING[name]
    status, told, warned = finish(through_acl(card, "--only", "exponential", **variables))
    if name == "a full card":
        assert status == 1 and message in told
    else:
        assert status == 2 and told == "" and warned.count("\n") == 1 and message in warned


def test_without_acl_one_line_says_so(card: Path):
    (card / "packages/acl").unlink()
    status, told, warned = finish(through_acl(card))
    assert status == 2 and told == "" and warned.count("\n") == 1
    assert "CANN's Python package acl cannot be imported" in warned


def test_without_mindspore_one_line_says_so(place: Path):
    absent = "raise ModuleNotFoundError(\"No module named 'mindspore'\", name='mindspore')\n"
    (place / "packages/mindspore.py").write_text(absent)
    status, told, warned = finish(start(place, *SELFTEST, "--device", "ascend"))
    message = "MindSpore is not installed; --through runtime asks the card without it"
    assert status == 2 and told == "" and warned.count("\n") == 1 and message in warned, warned


def test_ctrl_c_keeps_what_the_card_answered(card: Path):
    command = through_acl(card)
    wait(lambda: (card / "card.json").exists())
    os.killpg(command.pid, signal.SIGINT)
    status, told, warned = finish(command)
    assert status == 130, told + warned
    assert "stopped after" in told and "Traceback" not in warned and experiments(card)
    with pytest.raises(ProcessLookupError):  # as soon as the device process has noticed
        wait(lambda: os.killpg(command.pid, 0) is not None)


def test_ctrl_c_while_an_operator_compiles(card: Path):
    entry = card / "opp/op_impl/ai_core/tbe/flash_attention_impl/flash_attention_grad.py"
    interrupt = "    import signal\n    signal.raise_signal(signal.SIGINT)\n"
    entry.write_text(entry.read_text().replace("    import os\n", f"{interrupt}    import os\n"))
    status, told, warned = finish(through_acl(card, "--only", "attention 1"))
    assert status == 130, told + warned
    assert "stopped after 0 of 1 experiments" in told and "Traceback" not in warned


def test_the_example_for_torch_npu_without_it(card: Path):
    status, told, warned = finish(on_card(card, str(ROOT / "examples/torch_npu_attention.py")))
    assert status == 0 and "plain memory of the card: largest error" in told, told + warned
