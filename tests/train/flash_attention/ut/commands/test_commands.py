"""The command line: what it prints, and its exit status."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from flash_attention import __version__, cli, reference
from flash_attention.backends import registry
from flash_attention.commands import check, info
from flash_attention.text_table import table

pytestmark = pytest.mark.system


def test_version(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.split() == ["flash_attention", __version__]


def test_every_command_has_a_line_of_help(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    printed = " ".join(capsys.readouterr().out.split())
    for name, module in cli.command_modules().items():
        assert f"{name} {module.__doc__.split(chr(10))[0]}" in printed


def test_commands_import_nothing_heavy(run_python) -> None:
    program = (
        "import sys; from flash_attention import cli; cli.parser(); print({'mindspore', 'numpy'} & {*sys.modules})"
    )
    assert run_python("-c", program).strip() == "set()"


@pytest.mark.parametrize("arguments", (["info"], ["info", "--all"]), ids=("files", "all"))
def test_info_lists_every_backend(arguments: list, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(arguments) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert __version__ in lines["flash_attention"]
    assert lines["math"].split()[1] == "ready"
    assert "Ascend" in lines["fused"] or "Atlas" in lines["fused"]
    assert set(registry.backend_names()) <= set(lines)
    assert ("MindSpore device" in "\n".join(lines.values())) == ("--all" in arguments)


def test_info_imports_no_mindspore_unless_asked(run_python) -> None:
    program = "import sys; from flash_attention import cli; cli.main(['info']); print('mindspore' in sys.modules)"
    printed = run_python("-c", program).splitlines()
    assert printed[-1] == "False" and any(line.startswith("mindspore ") for line in printed)


@pytest.mark.parametrize("name", registry.backend_names())
def test_files_tell_what_mindspore_says(name: str, monkeypatch) -> None:
    """If the files cannot tell, because the machine has more than a CPU, the verdict says so."""
    if info.only_a_cpu():
        assert (info.verdict_by_files(name) == "ready") == (info.verdict(name) == "ready")
    monkeypatch.setenv(info.CANN_VARIABLES[0], "/nowhere")
    ready = {"cpu": "ready", "math": "ready", "tik": "the Ascend driver is not installed"}
    assert info.verdict_by_files(name).startswith(ready.get(name, "ready if MindSpore's device is"))


MINDSPORE_IS_MISSING = "MindSpore is not installed: pip install mindspore"


@pytest.mark.parametrize(
    ("installed", "python", "fault"),
    [
        ({}, (3, 12), MINDSPORE_IS_MISSING),
        ({}, (3, 13), f"{MINDSPORE_IS_MISSING}; its wheels end at Python 3.12, this is 3.13"),
        ({"mindspore": "2.10.0"}, (3, 12), 'NumPy is not installed: pip install "numpy<2"'),
        (
            {"mindspore": "2.0.0", "numpy": "1.26", "pillow": "11.3.0"},
            (3, 9),
            'MindSpore 2.0.0 does not work with Pillow 11.3.0: pip install "pillow<10"',
        ),
        ({"mindspore": "2.0.0", "numpy": "1.26", "pillow": "9.5.0"}, (3, 9), None),
        ({"mindspore": "2.7.0", "numpy": "1.26", "pillow": "11.3.0"}, (3, 9), None),
    ],
)
def test_what_keeps_mindspore_from_running_is_named(installed: dict, python: tuple, fault: str | None, monkeypatch):
    monkeypatch.setattr(info, "installed_version", installed.get)
    monkeypatch.setattr("sys.version_info", python)
    assert info.mindspore_fault() == fault


@pytest.mark.parametrize("words", (["selftest", "--compile"], ["opp", "--out", "package"]), ids=" ".join)
def test_a_command_that_needs_no_mindspore_asks_for_numpy_alone(words: list, tmp_path: Path) -> None:
    program = f"import sys; sys.path[1:1] = [{str(Path(cli.__file__).parents[1])!r}]; "
    program += f"from flash_attention import cli; sys.exit(cli.main({words}))"
    started = [sys.executable, "-I", "-S", "-c", program]
    done = subprocess.run(started, cwd=tmp_path, capture_output=True, text=True)
    message = f'flash-attention {words[0]}: NumPy is not installed: pip install "numpy<2"\n'
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)


@pytest.mark.parametrize("numpy", (False, True))
def test_every_command_without_mindspore_says_so(numpy: bool, tmp_path: Path) -> None:
    """`info` still shows the rest. NumPy may be missing too."""
    if numpy:
        (tmp_path / "numpy").symlink_to(Path(np.__file__).parent)
        for libraries in Path(np.__file__).parents[1].glob("numpy.libs"):
            (tmp_path / libraries.name).symlink_to(libraries)
    path = [str(Path(cli.__file__).parents[1]), str(tmp_path)]
    for command in (["info"], ["info", "--all"], ["check"], ["profile"], ["bench"], ["profile", "--seq", "64"]):
        program = f"import sys; sys.path[1:1] = {path}; from flash_attention import cli; sys.exit(cli.main({command}))"
        done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True)
        if command[0] == "info":
            assert done.returncode == 0 and done.stderr == ""
            rows = done.stdout.splitlines()
            assert any(row.split()[:3] == ["mindspore", "not", "installed"] for row in rows)
            assert sum(row.endswith(MINDSPORE_IS_MISSING) for row in rows) == len(registry.backend_names())
        else:
            assert done.returncode == 2 and done.stdout == ""
            assert done.stderr == f"flash-attention {command[0]}: {MINDSPORE_IS_MISSING}\n"


def test_versions_are_read_from_files(tmp_path: Path, monkeypatch) -> None:
    """The packages have metadata or none, and an import of them fails."""
    for name, file, text in (
        ("one_here", "__init__.py", '__version__ = "1.2"'),
        ("two_here", "version.py", "__version__ = '3.4'"),
        ("none_here", "__init__.py", ""),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError\n", encoding="utf-8")
        with open(tmp_path / name / file, "a", encoding="utf-8") as written:
            written.write(text)
    monkeypatch.syspath_prepend(tmp_path)
    found = [info.installed_version(name) for name in ("one_here", "two_here", "none_here", "not_here", "numpy")]
    assert found == ["1.2", "3.4", "installed, version unknown", None, np.__version__]


def test_check_passes_a_right_backend(capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["check", "--backend", "cpu", "--dtype", "float16", "--only", "ALiBi"]) == 0
    printed = capsys.readouterr().out
    assert printed.count(" ok\n") == 4 and "all right" in printed
    assert "calls: 4 on cpu; about" in printed
    summary = printed.splitlines()[-3].split()
    assert summary[0] == "float16" and len(summary) == 9  # error and baseline of four results


def test_check_gives_backend_math_what_it_takes(capsys: pytest.CaptureFixture) -> None:
    """Of all backends it alone is particular about the dtype of a mask."""
    assert cli.main(["check", "--backend", "math", "--dtype", "float32"]) == 0
    assert "all right" in capsys.readouterr().out


def test_check_quick_is_a_part_of_the_whole(capsys: pytest.CaptureFixture, monkeypatch) -> None:
    """The first line says how much runs: a few problems on every backend, in all dtypes that the backend takes."""
    ran = []
    monkeypatch.setattr(
        check, "measure", lambda name, problem, item: ran.append((name, item.label, problem)) or ({}, [])
    )
    assert cli.main(["check", "--quick"]) == 0
    here = registry.available_backends()
    counts = ", ".join(f"{len(check.QUICK)} on {name}" for name in here)
    assert f"calls: {counts}; about" in capsys.readouterr().out
    assert [(name, label) for name, label, _ in ran] == [(name, label) for name in here for label in check.QUICK]
    dtypes = {dtype for dtype in check.DTYPES if hasattr(ms, dtype)}
    assert {problem.dtype for name, _, problem in ran if name == "cpu"} == dtypes
    assert {problem.dtype for name, _, problem in ran if name == "emulator"} == {"float16"}
    assert check.SECONDS * len(ran) < 30


def test_largest_errors_are_kept_by_result() -> None:
    def error(name, own, baseline):
        return reference.Error(name, own, 0.0, baseline, 0.0, 1.0, 1.0)

    one = {"output": error("output", 0.5, 0.25)}
    other = {"output": error("output", 0.125, 0.75), "d_key": error("d_key", 1.0, 2.0)}
    expected = ["float32", "5.0e-01 (7.5e-01)", "-", "1.0e+00 (2.0e+00)", "-"]
    assert check.largest_rows({"float32": [one, other]}) == [expected]


@pytest.mark.parametrize("fault", ("output", "d_key", "repeat", "fully masked"))
def test_check_finds_a_wrong_backend(fault: str, capsys: pytest.CaptureFixture, monkeypatch) -> None:
    right = check.execute

    def wrong(*arguments, **gradients):
        results = right(*arguments, **gradients)
        for result in results:
            if fault == "output":
                result.output[0, 0, 1, 0] += 0.02
            elif fault == "d_key":
                result.d_key *= np.float32(1.01)
            elif fault == "fully masked":
                result.output[0, 0, 0, 0] = 1e-30
            elif result is results[0]:
                result.d_query[0, 0, 1, 0] = np.nextafter(result.d_query[0, 0, 1, 0], np.float32(9))
        return results

    monkeypatch.setattr(check, "execute", wrong)
    assert cli.main(["check", "--backend", "cpu", "--dtype", "float32", "--only", "fully masked"]) == 1
    named = {"output": "output", "d_key": "d_key", "repeat": "two runs differ", "fully masked": "not zero"}[fault]
    assert f"WRONG: {named}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["check", "--backend", "nonsense"], "nonsense"),
        (["check", "--only", "nonsense"], "--only: got 'nonsense', allowed is a part of a call's label: no mask; "),
        (["selftest", "--only", "nonsense"], "allowed is a part of an experiment's name: chip; shifted operands"),
        (["bench", "--threads", "0"], "--threads: got 0, allowed is an integer >= 1"),
        (["bench", "--seq", "64", "--seq", "0"], "--seq: got 0, allowed is an integer >= 1"),
        (["profile", "--seq", "512", "0"], "--seq: got 0, allowed is an integer >= 1"),
        (["profile", "--head-dim", "0"], "--head-dim: got 0, allowed is an integer >= 1"),
        (["profile", "--window-blocks", "-1"], "--window-blocks: got -1, allowed is an integer >= 0"),
        # What the chosen way of a command would not read.
        (["profile", "forward"], "CASE: got forward, allowed is none with --backend cpu"),
        (
            ["profile", "--backend", "emulator", "--seq", "64"],
            "--seq: got [64], allowed is none with --backend emulator",
        ),
        (
            ["profile", "--backend", "emulator", "--tile", "64"],
            "--tile: got 64, allowed is none with --backend emulator",
        ),
        (["bench", "--packed", "--dtype", "float16"], "--dtype: got ['float16'], allowed is none with --packed"),
        (["bench", "--tik", "--threads", "1"], "--threads: got 1, allowed is none with --tik"),
        (["bench", "--decode", "--out", "x"], "--out: got x, allowed is none with --decode"),
        (["selftest", "--through", "acl"], "--through: got acl, allowed is none with --device emulator"),
        (["selftest", "--compile", "--through", "acl"], "--through: got acl, allowed is none with --device cann"),
    ],
)
def test_a_wrong_option_is_named(arguments: list, message: str, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(arguments) == 2
    assert message in capsys.readouterr().err


def test_table_aligns_numbers_right() -> None:
    lines = table(["name", "ms"], [["a", "1.5"], ["longer", "10.25"]]).splitlines()
    assert lines == ["name       ms", "------  -----", "a         1.5", "longer  10.25"]


@pytest.mark.parametrize(
    ("words", "ready", "stopped"),
    [
        (["selftest", "--only", "attention"], "attention 1:", "stopped after 1 of"),
        (["check", "--dtype", "float16", "--backend", "cpu", "--backend", "emulator"], " ok", "check: stopped"),
        (["bench", "--seq", "8192", "--dtype", "float32"], "cases", "bench: stopped"),
        (["profile", "--seq", "64", "16384"], "", "profile: stopped"),
    ],
    ids=lambda words: words[0] if isinstance(words, list) else "",
)
def test_ctrl_c_is_one_line_and_status_130(words: list, ready: str, stopped: str, tmp_path: Path) -> None:
    """Also after MindSpore was used, whose own handler would end the process without a word."""
    command = subprocess.Popen(
        [sys.executable, "-u", "-m", "flash_attention.cli", *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell starts what it runs in the background with Ctrl-C ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert command.stdout is not None
    line = "" if ready else "nothing"
    while ready not in line:
        line = command.stdout.readline()
        assert line, command.communicate()
    time.sleep(0 if words[0] == "selftest" else 3)  # in the midst of it
    os.killpg(command.pid, signal.SIGINT)
    told, warned = command.communicate(timeout=60)
    assert command.returncode == 130 and "Traceback" not in told + warned
    assert stopped in (told if words[0] == "selftest" else warned).splitlines()[-1]


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_ctrl_c_that_is_dropped_comes_again(number: str, run_python) -> None:
    """MindSpore drops it in some of its calls back into Python, and Python where no caller can be told."""
    program = textwrap.dedent(f"""
        import os, signal, sys, time
        from flash_attention import cli
        from flash_attention.commands import info

        class Dropping:
            def __del__(self):
                os.kill(os.getpid(), signal.{number})
                time.sleep(0.1)

        def run(options):
            Dropping()
            time.sleep(20)
            return 0

        sys.unraisablehook = lambda _: None
        info.run = run
        print(cli.main(["info"]))
    """)
    assert run_python("-c", program).splitlines()[-1] == "130"


def test_a_command_leaves_the_timer_of_its_caller(capsys: pytest.CaptureFixture) -> None:
    before = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    rest = signal.setitimer(signal.ITIMER_REAL, 1000)
    try:
        assert cli.main(["bench", "--threads", "0"]) == 2
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 900 and signal.getsignal(signal.SIGALRM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *rest)


def test_a_reader_that_ends_is_no_error() -> None:
    program = f"{sys.executable} -m flash_attention.cli info | head -1; echo $" + "{PIPESTATUS[0]}"
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True)
    assert done.stderr == "" and done.stdout.splitlines()[0].startswith("flash_attention")
    assert done.stdout.splitlines()[1] in ("0", "141")


@pytest.mark.parametrize("name", ("tik", "fused"))
def test_check_of_a_backend_that_cannot_run_says_so_once(name: str, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["check", "--backend", name]) == 1
    (line,) = capsys.readouterr().out.strip().splitlines()
    assert line.startswith(f"backend {name}: cannot run here: ")
