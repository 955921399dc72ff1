"""Several processes on this machine, started by msrun: ./test.sh -m distributed. Most of the time goes into starts."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

LIMIT = 240  # seconds for a start of msrun on a loaded machine
pytestmark = [pytest.mark.distributed, pytest.mark.timeout(LIMIT + 40)]
PROGRAMS = Path(__file__).parent / "support"
ROOT = Path(__file__).resolve().parents[4]


def free_port() -> int:
    """Return a port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def children(process: int) -> list:
    """Return the child processes of a process, found while it lives."""
    try:
        below = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return []
    return [one for child in map(int, below) for one in (child, *children(child))]


@pytest.fixture
def environment():
    """Return the environment variables with which processes find what this process finds, one thread each."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }


@pytest.fixture
def msrun(tmp_path, environment):
    """Run a program in several processes; gives what each printed.

    With `until`, the processes are ended once the first one has printed a line that begins so. Otherwise they must
    succeed by themselves. Whatever happens, none is left behind.
    """

    def run(processes: int, script: Path, *arguments: str, until: str = "") -> list:
        command = ["msrun", f"--worker_num={processes}", f"--local_worker_num={processes}", "--log_dir=logs"]
        command += [f"--master_port={free_port()}", "--join=True", str(script), *arguments]
        logs = [tmp_path / "logs" / f"worker_{rank}.log" for rank in range(processes)]
        deadline = time.monotonic() + LIMIT
        started = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
        try:
            while started.poll() is None and time.monotonic() < deadline:
                if until and logs[0].exists() and re.search(f"^{until}", logs[0].read_text(), re.MULTILINE):
                    break
                time.sleep(0.2)
            status = started.poll()
        finally:
            for process in (started.pid, *children(started.pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            started.wait()
        printed = [log.read_text() if log.exists() else "" for log in logs]
        ended = "are still running" if status is None else f"ended with {status}"
        assert until or status == 0, f"the processes {ended}\n" + "".join(text[-3000:] for text in printed)
        return printed

    return run


# What each number of processes checks; see parallel_gather.py.
CHECKS = {
    2: {
        "gather": "causal-bfloat16-mqa,everything,math,prefix-documents,tiles",
        "graph": "causal-float16-gqa,alibi,prefix-documents,tiles,tiles-data",
    },
    4: {
        "gather": "causal,everything-contiguous,alibi-window,tiles-data",
        "graph": "window-zigzag,causal-bfloat16-mqa,sinks-softcap-width",
    },
}


@pytest.mark.parametrize("processes", CHECKS)
def test_processes_together(msrun, processes):
    cases = CHECKS[processes]
    for printed in msrun(processes, PROGRAMS / "parallel_gather.py", *map(":".join, cases.items()), "twice"):
        result = json.loads(re.search(r"^RESULT (.*)$", printed, re.MULTILINE).group(1))
        # Output and gradients of a part of the sequence against the truth of the whole.
        for kind, names in cases.items():
            assert result[kind] == {name: [] for name in names.split(",")}
        # Several calls in one differentiated function.
        assert len(result["twice"]) == 4 and max(result["twice"].values()) < 1e-4, result["twice"]


@pytest.mark.parametrize("kind", ["dead", "slow"])
def test_missing_peer_is_an_error_in_time(msrun, kind):
    printed = msrun(2, PROGRAMS / "parallel_failures.py", kind, until="(ERROR|no error)")[0]
    seconds, message = re.search(r"^ERROR ([\d.]+) RuntimeError (.*)$", printed, re.MULTILINE).groups()
    assert float(seconds) < 60  # the limit is 8
    assert "AllReduce" in message


# As docs/parallel.md has it, for 8 processes.
LINE = "examples/train_parallel.py --device CPU --dp 4 --mp 2"


def test_training_over_batch_and_heads_gives_the_losses_of_one_process(msrun, environment):
    start = "msrun --worker_num=8 --local_worker_num=8 --join=True "
    assert start + LINE in (ROOT / "docs/parallel.md").read_text(encoding="utf-8")
    steps = ("--steps", "3")
    program, *arguments = LINE.replace("--dp 4", "--dp 2").split()
    program = ROOT / program
    alone = subprocess.run(
        [sys.executable, str(program), *steps], env=environment, capture_output=True, text=True, timeout=LIMIT
    )
    assert alone.returncode == 0, alone.stderr[-3000:]
    losses = [
        [float(loss) for loss in re.findall(r"^step \d+ loss (\S+)$", printed, re.MULTILINE)]
        for printed in (alone.stdout, *msrun(4, program, *arguments, *steps))
    ]
    assert len(losses[0]) == 3
    for other in losses[1:]:
        assert other == pytest.approx(losses[0], rel=2e-6)
