"""`flash-attention selftest --compile` with a toolkit that writes what CANN's does, and where MindSpore is not there."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from flash_attention.commands.selftest.requests import REQUESTS, planned
from flash_attention.kernels.tik import describe

from tests.virtual_ascend.card import PACKAGES, ROOT

pytest.importorskip("tikemu")

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
TOOLKIT = f'''
import json, os, sys, time
from pathlib import Path
from virtual_ascend.compiler.modules import provide
provide()
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
        if does == "fails":
            raise RuntimeError("\\n".join(f"line {{n}}" for n in range(20)))  # the secret of the toolkit
    build(self, kernel_name, inputs, outputs)
    print("[WARNING] a mask was set twice", file=sys.stderr)
    folder = Path("kernel_meta")
    folder.mkdir()
    (folder / f"{{kernel_name}}.o").write_bytes(bytes(100))
    (folder / f"{{kernel_name}}.json").write_text(json.dumps({{"blockDim": 7, "workspace": {{"num": 1, "size": [32]}}}}))
    if config["save_temp_cce_file"]:
        (folder / f"{{kernel_name}}.cce").write_text({CCE!r})

Tik.BuildCCE = compile_it
'''


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with the toolkit, and a MindSpore that cannot be imported."""
    (tmp_path / "packages/tbe").mkdir(parents=True)
    (tmp_path / "packages/tbe/__init__.py").write_text(TOOLKIT)
    (tmp_path / "packages/mindspore.py").write_text("raise ImportError('MindSpore is not here')\n")
    return tmp_path


def start(place: Path, *options: str, only: str = ROWS, **variables: str) -> subprocess.Popen:
    """The command, in the folder."""
    packages = place / "packages", *PACKAGES, ROOT / "train"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, packages)), "PLACE": str(place), **variables}
    limit = int(variables.get("FILE_BYTES", resource.RLIM_INFINITY))
    return subprocess.Popen(
        [sys.executable, "-m", "flash_attention.cli", "selftest", "--compile", "--only", only, *options],
        cwd=place,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )


def finish(command: subprocess.Popen) -> tuple[int, str, str]:
    """Status, stdout and stderr of the command."""
    told, warned = command.communicate(timeout=120)
    return command.returncode, told, warned


def kernels(place: Path) -> dict:
    """The report's kernels."""
    return json.loads((place / "compile.json").read_text())["kernels"]


def test_every_operator_type_is_among_the_kernels():
    for cores in (30, 32):
        types = {describe.arguments(*planned(name, cores))[0].type for name in REQUESTS}
        assert types == {operator.type for operator in describe.OPERATORS}


def test_report_and_the_next_run(place: Path):
    status, told, _ = finish(start(place, "--keep", "kept"))
    assert status == 0 and told.splitlines()[-1].startswith("1 of 1 kernels compile"), told
    (one,) = kernels(place).values()
    assert {name: one[name] for name in ("operator", "cores", "blocks", "object_bytes", "workspace")} == {
        "operator": "FlashAttentionGradRows",
        "cores": 32,
        "blocks": 7,
        "object_bytes": 100,
        "workspace": {"num": 1, "size": [32]},
    }
    assert one["instructions"] == INSTRUCTIONS and one["warnings"] == ["[WARNING] a mask was set twice"]
    assert (place / "kept/Ascend910A/rows__D_128/kernel_meta/selftest_kernel.cce").read_text() == CCE

    status, told, _ = finish(start(place, only="910A: rows", TOOLKIT="fails"))
    assert status == 1 and "1 kernels are in compile.json already" in told and f"FAILED  {SINKS}" in told
    assert "1 of 2 kernels compile" in told and kernels(place)[ROWS] == one
    assert kernels(place)[SINKS]["error"][:1] == ["RuntimeError: line 0"]
    assert kernels(place)[SINKS]["error"][-1] == "line 19" and "secret" not in (place / "compile.json").read_text()


@pytest.mark.parametrize(
    "does, error",
    [("dies", ["the process ended with status -6", "a plugin was lost"]), ("hangs", ["not done within 3 s"])],
)
def test_a_process_that_ends_without_a_result(place: Path, does: str, error: list):
    status, told, _ = finish(start(place, "--limit", "3", only=SINKS, TOOLKIT=does))
    assert status == 1 and error[0] in told and kernels(place)[SINKS]["error"] == error


def test_a_full_disk_leaves_the_report(place: Path):
    assert finish(start(place))[0] == 0
    before = kernels(place)
    status, _, warned = finish(start(place, only=SINKS, FILE_BYTES="1000"))
    assert status == 2 and "--report: compile.json cannot be written: File too large" in warned
    assert kernels(place) == before and not (place / "compile.json.part").exists()


def test_ctrl_c_ends_the_processes_and_keeps_what_is_done(place: Path):
    command, until = start(place, only="910A: rows", TOOLKIT="hangs"), time.monotonic() + 60
    while not ((place / "pid").exists() and (place / "compile.json").exists() and ROWS in kernels(place)):
        assert time.monotonic() < until
        time.sleep(0.2)
    command.send_signal(signal.SIGINT)
    status, told, _ = finish(command)
    assert status == 130 and "the same command goes on" in told and set(kernels(place)) == {ROWS}
    with pytest.raises(ProcessLookupError):
        os.kill(int((place / "pid").read_text()), 0)


def test_what_is_missing_or_wrong_is_one_line(place: Path):
    (place / "compile.json").write_text('{"software": {}}')
    status, _, warned = finish(start(place))
    assert status == 2 and "is of other software, or no report" in warned
    assert "no kernel is called like 'x'" in finish(start(place, only="x"))[2]
    (place / "packages/tbe/__init__.py").unlink()
    (place / "packages/tbe").rmdir()
    status, told, warned = finish(start(place))
    assert status == 2 and told == "" and warned.count("\n") == 1
    assert "CANN's Python package tbe cannot be imported" in warned
