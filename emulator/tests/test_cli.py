"""``python -m tikemu``."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import tikemu
from tikemu import cli
from tikemu.frontend.platform_info import CONTAINER_APIS
from tikemu.isa import registry

PROGRAM = textwrap.dedent("""
    from tbe import tik
    from tbe.common.platform import get_soc_spec
    from helper import NAME


    def scale(elements, factor=2.0, undefined=False, build=True, answer=True):
        kernel = tik.Tik()
        x = kernel.Tensor("float16", (elements,), tik.scope_gm, "x")
        n = kernel.InputScalar("int32", "n")
        y = kernel.Tensor("float16", (elements,), tik.scope_gm, "y")
        with kernel.for_range(0, 1):
            data = kernel.Tensor("float16", (elements,), tik.scope_ubuf, "data")
            if not undefined:
                kernel.data_move(data, x, 0, 1, elements // 16, 0, 0)
            kernel.vec_muls(128, data, data, factor, n, 8, 8)
            kernel.data_move(y, data, 0, 1, elements // 16, 0, 0)
        if build:
            kernel.BuildCCE(NAME, [x, n], [y])
        return kernel if answer else None


    def numbers(dynamic=False):
        kernel = tik.Tik()
        n = kernel.InputScalar("int32", "n")
        x = kernel.Tensor("int8", (n, 32) if dynamic else (64,), tik.scope_gm, "x")
        kernel.BuildCCE("numbers", [x, n], [x])


    def broken():
        kernel = tik.Tik()
        data = kernel.Tensor("float16", (128,), tik.scope_ubuf, "data")
        kernel.vec_muls(128, data, data, 1.0, 0, 8, 8)


    def cores():
        print("cores", get_soc_spec("CORE_NUM"))
        kernel = tik.Tik()
        kernel.BuildCCE("cores", [], [])
        return kernel
""")


@pytest.fixture
def program(tmp_path):
    """Provide the path of a program with a helper module and an input beside it."""
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "helper.py").write_text('NAME = "scale_kernel"\n')
    np.save(tmp_path / "x.npy", np.arange(256, dtype=np.float16))
    yield str(tmp_path / "program.py")
    for name in ("program", "helper"):
        sys.modules.pop(name, None)


def run(program, function, *options):
    """Exit status of ``tikemu run``; FOLDER in an option stands for the program's folder."""
    folder = Path(program).parent
    return cli.main(["run", f"{program}:{function}", *(option.replace("FOLDER", str(folder)) for option in options)])


FEED = ("--arg", "256", "--feed", "x=FOLDER/x.npy", "--feed", "n=2")


@pytest.mark.parametrize("value, said", [(1, "overflow: none"), (60000, "overflow: 1 operations saturated")])
@pytest.mark.parametrize("report", [[], ["--report"]], ids=["plain", "report"])
def test_run_tells_the_overflow_status(program, capsys, value, said, report):
    np.save(Path(program).parent / "x.npy", np.full(256, value, np.float16))
    assert run(program, "scale", *FEED, *report) == 0
    out = capsys.readouterr().out
    assert out.count("overflow: ") == 1 and said in out
    assert ("program.py:" in out.split("overflow: ")[1].split("cycles")[0]) == (value > 1)


def test_run(program, capsys):
    assert run(program, "scale", *FEED, "--out", "FOLDER/results") == 0
    written = np.load(Path(program).parent / "results" / "y.npy")
    np.testing.assert_array_equal(written, 2 * np.arange(256, dtype=np.float16))
    out = capsys.readouterr().out
    assert "y: float16(256,), from 0.0 to 510.0, mean 255" in out and "estimate: " in out and " us)" in out


@pytest.mark.parametrize(
    "function, options, status, said",
    [
        ("scale", (*FEED, "--arg", "factor=3.0", "--arg", "answer=False"), 0, ["to 765.0"]),
        ("scale", ("--arg", "256", "--feed", "n=2", "--no-numerics"), 0, [" cycles ("]),
        ("scale", (*FEED, "--strict"), 0, []),
        ("scale", (*FEED, "--arg", "undefined=True"), 0, []),
        ("scale", (*FEED, "--arg", "undefined=True", "--strict"), 1, ["TikUndefinedError"]),
        ("scale", ("--arg", "256", "--arg", "build=False", "--feed", "n=1"), 1, ["TikBuildError"]),
        ("broken", (), 1, ["TikParamError: vec_muls: repeat_times", "program.py:33"]),
        ("cores", ("--soc", "Ascend910B"), 0, ["cores 30"]),
        (
            "numbers",
            ("--arg", "dynamic=True", "--feed", "n=2", "--random", "1"),
            2,
            ["--random cannot fill 'x'"],
        ),
        ("cores", ("--trace", "/dev/full"), 2, ["tikemu: --trace /dev/full: No space left on device"]),
    ],
)
def test_options(program, capsys, function, options, status, said):
    """What goes well is told on standard output, what goes wrong on standard error."""
    assert run(program, function, *options) == status
    told = capsys.readouterr()
    assert all(text in (told.err if status else told.out) for text in said)


def test_report_trace_and_dump(program, capsys):
    assert run(program, "scale", *FEED, "--report", "--dump", "--trace", "FOLDER/trace.json") == 0
    out = capsys.readouterr().out
    assert "kernel scale_kernel(x, n) -> (y) on Ascend910A" in out and "vec_muls(mask=128" in out
    assert "PIPE_V" in out or " V " in out
    events = json.loads((Path(program).parent / "trace.json").read_text())
    assert any(
        "vec_muls" in str(event.get("name"))
        for event in (events["traceEvents"] if isinstance(events, dict) else events)
    )


def test_random_inputs_are_repeatable(program):
    for folder in ("a", "b"):
        assert run(program, "scale", "--arg", "256", "--feed", "n=2", "--random", "1", "--out", f"FOLDER/{folder}") == 0
    assert run(program, "scale", "--arg", "256", "--feed", "n=2", "--random", "2", "--out", "FOLDER/c") == 0
    one, two, other = (np.load(Path(program).parent / folder / "y.npy") for folder in "abc")
    assert np.array_equal(one, two) and not np.array_equal(one, other) and one.std() > 1
    assert run(program, "numbers", "--feed", "n=2", "--random", "1", "--out", "FOLDER/d") == 0
    whole = np.load(Path(program).parent / "d" / "x.npy")
    assert whole.dtype == np.int8 and 0 <= whole.min() < whole.max()


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["nowhere.py:f"], "no file 'nowhere.py'"),
        (["program"], "FILE:FUNCTION"),
        (["PROGRAM:missing"], "no function 'missing'"),
        (["PROGRAM:NAME"], "no function 'NAME'"),
        (
            ["PROGRAM:scale", "--arg", "16", "--arg", "build=False", "--arg", "answer=0"],
            "neither returned a Tik instance nor called BuildCCE",
        ),
        (["PROGRAM:scale", "--arg", "256", "--feed", "x"], "--feed takes"),
        (["PROGRAM:scale", "--processes", "0"], "--processes must be at least 1, got 0"),
        (["PROGRAM:scale", "--arg", "256", "--feed", "x=missing.npy"], "no file 'missing.npy'"),
    ],
)
def test_wrong_command_lines(program, capsys, arguments, message):
    assert cli.main(["run", *(text.replace("PROGRAM", program) for text in arguments)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "options, reason",
    [
        (["--feed", "x=FOLDER/bad.npy"], "--feed x: 'FOLDER/bad.npy' holds no array"),
        (["--feed", "x=FOLDER/empty.npy"], "--feed x: 'FOLDER/empty.npy' holds no array"),
        (["--feed", "x=FOLDER/objects.npy"], "--feed x: 'FOLDER/objects.npy' holds no array"),
        (["--feed", "x=FOLDER/folder.npy"], "--feed x: there is no file 'FOLDER/folder.npy'"),
        (["--feed", "x=."], "--feed x: '.' is neither a number nor a file NAME.npy"),
        (["--out", "FOLDER/program.py"], "--out FOLDER/program.py: File exists"),
        (["--out", "FOLDER/program.py/deeper"], "--out FOLDER/program.py/deeper: Not a directory"),
        (["--out", "/proc/nowhere"], "--out /proc/nowhere: "),
        (["--trace", "FOLDER/missing/t.json"], "--trace FOLDER/missing/t.json: No such file or directory"),
        (["--trace", "FOLDER"], "--trace FOLDER: Is a directory"),
    ],
)
def test_files_that_cannot_be_read_or_written(program, capsys, options, reason):
    """One line and status 2, before anything is built."""
    folder = Path(program).parent
    (folder / "bad.npy").write_bytes(b"garbage")
    (folder / "empty.npy").touch()
    (folder / "folder.npy").mkdir()
    np.save(folder / "objects.npy", np.array([{}]), allow_pickle=True)
    before = sorted(folder.iterdir())
    assert run(program, "cores", "--random", "1", *options) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"tikemu: {reason.replace('FOLDER', str(folder))}") and said.err.count("\n") == 1
    assert said.out == ""
    assert sorted(folder.iterdir()) == before


def test_a_trace_that_is_there_survives_a_program_that_fails(program):
    trace = Path(program).parent / "t.json"
    assert run(program, "broken", "--trace", "FOLDER/t.json") == 1
    assert not trace.exists()
    trace.write_text("kept")
    assert run(program, "broken", "--trace", "FOLDER/t.json") == 1
    assert trace.read_text() == "kept"


def test_without_numerics_there_are_no_values(program, capsys):
    assert run(program, "scale", *FEED, "--no-numerics", "--out", "FOLDER/out") == 0
    said = capsys.readouterr()
    assert said.out.startswith("estimate:") and said.out.count("\n") == 1
    assert said.err == "tikemu: --out writes nothing: with --no-numerics no outputs are computed\n"
    assert not (Path(program).parent / "out").exists()


def test_the_version(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"tikemu {tikemu.__version__}\n"


def test_settings_of_a_run_and_ctrl_c(program, capsys, monkeypatch):
    seen = []

    def interrupted(*_, options, **__):
        seen.append(options)
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "run_kernel", interrupted)
    assert run(program, "scale", *FEED, "--sync", "conservative", "--processes", "3") == 130
    assert capsys.readouterr().err == "tikemu: interrupted\n"
    assert (seen[0].sync, seen[0].processes) == ("conservative", 3)


@pytest.mark.parametrize("processes", [1, 2])
def test_ctrl_c_in_a_shell(tmp_path, processes):
    """A shell sends the signal to all processes of the command; none of them prints a traceback."""
    (tmp_path / "long.py").write_text(
        textwrap.dedent("""
        from tbe import tik

        def long():
            kernel = tik.Tik()
            y = kernel.Tensor("float16", (2, 16), tik.scope_gm, "y")
            with kernel.for_range(0, 2, block_num=2) as block:
                data = kernel.Tensor("float16", (16,), tik.scope_ubuf, "data")
                kernel.vec_dup(16, data, 0.0, 1, 8)
                with kernel.for_range(0, 100000000):
                    kernel.vec_adds(16, data, data, 1.0, 1, 8, 8)
                kernel.data_move(y[block, 0], data, 0, 1, 1, 0, 0)
            kernel.BuildCCE("long", [], [y])
            print("built", flush=True)
            return kernel
        """)
    )
    command = [sys.executable, "-m", "tikemu", "run", "long.py:long", "--processes", str(processes)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    started = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert started.stdout is not None and started.stdout.readline() == "built\n"
    time.sleep(1.0)
    os.killpg(started.pid, signal.SIGINT)
    _, said = started.communicate(timeout=60)
    assert started.returncode == 130
    assert said == "tikemu: interrupted\n"


@pytest.mark.parametrize(
    "name, value, allowed",
    [
        ("TIKEMU_NATIVE", "yes", "one of 0, 1, generic"),
        ("TIKEMU_TRACEBACK", "long", "one of full, short"),
        ("TIKEMU_PROCESSES", "many", "a number of processes, at least 1"),
        ("TIKEMU_PROCESSES", "0", "a number of processes, at least 1"),
        ("TIKEMU_PROCESSES", "-1", "a number of processes, at least 1"),
        ("TIKEMU_PROCESSES", "1" * 5000, "a number of processes, at least 1"),
        ("TIKEMU_PROCESSES", "\u0664", "a number of processes, at least 1"),
    ],
)
def test_nonsense_in_the_environment(program, capsys, monkeypatch, name, value, allowed):
    """One error that names the variable, from the command line as from ``tikemu.run``."""
    message = f"the environment variable {name} must be {allowed}, got {value!r}"
    tikemu.install(soc="Ascend910A")
    kernel = tikemu.tik.Tik()
    kernel.BuildCCE("k", [], [])
    monkeypatch.setenv(name, value)
    for command in (["run", f"{program}:cores"], ["info"]):
        assert cli.main(command) == 2
        assert capsys.readouterr().err == f"tikemu: {message}\n"
    for processes in (None, 1):
        with pytest.raises(tikemu.TikEnvironmentError) as caught:
            tikemu.run(kernel, {}, options=tikemu.Options(processes=processes))
        assert caught.value.message == message


def test_apis_lists_the_whole_table(capsys):
    assert cli.main(["apis"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert set(lines) == {"API", *CONTAINER_APIS, *registry.specs(), *registry.unsupported()}
    for name, family in (
        ("h_add", "whole tensor"),
        ("vadd", "legacy v"),
        ("mmad", "cube"),
        ("data_move", "movement"),
        ("pipe_barrier", "synchronisation"),
        ("scalar_max", "scalar"),
        ("for_range", "container"),
    ):
        assert lines[name].split(maxsplit=1)[1].startswith(family)
    assert "yes" in lines["vec_add"] and "float16 float32 int32" in lines["vec_add"] and " V " in lines["vec_add"]
    assert "no" in lines["data_move_pad"].split() and registry.unsupported()["data_move_pad"] in lines["data_move_pad"]


def test_apis_by_name(capsys):
    assert cli.main(["apis", "load2d"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["API", "load2dv1", "load2dv2"]


@pytest.mark.parametrize("mode,answer", [("0", "not in use"), ("", "in use")])
def test_info_says_whether_the_native_helper_is_there(capsys, monkeypatch, native_library, mode, answer):
    monkeypatch.setenv("TIKEMU_NATIVE", mode)
    assert cli.main(["info"]) == 0
    assert f"native helper: {answer}" in capsys.readouterr().out


def test_lines_are_the_users_where_the_path_holds_dots(tmp_path):
    """sys.path entries with ".." must not make the emulator's own lines look like the user's."""
    root = os.path.dirname(os.path.dirname(tikemu.__file__))
    script = tmp_path / "kernel.py"
    dotted = os.path.join(tmp_path, os.path.relpath(root, tmp_path))
    script.write_text(
        f"import sys; sys.path.insert(0, {dotted!r})\n"
        "from tikemu import tik\n"
        "tik.Tik().Tensor('float16', (16,), tik.scope_ubuf, '1st')  # the line\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert f"{script}:3" in done.stderr.strip().splitlines()[-1], done.stderr


def test_socs(capsys):
    assert cli.main(["socs"]) == 0
    out = capsys.readouterr().out
    assert "Ascend910PremiumA  32     1220" in out and len(out.splitlines()) == 6


def test_as_a_module():
    environment = {**os.environ, "PYTHONPATH": ":".join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-m", "tikemu", "socs"], capture_output=True, text=True, env=environment, timeout=60
    )
    assert done.returncode == 0 and "Ascend910A" in done.stdout
    done = subprocess.run([sys.executable, "-m", "tikemu"], capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 2 and "usage" in done.stderr
