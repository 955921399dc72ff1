"""Several processes on this machine, started by msrun: ./test.sh --distributed."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(280)]
HERE = Path(__file__).parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def msrun(tmp_path):
    """Runs a script of this folder in several processes; gives what each printed."""

    def run(processes: int, script: str, *arguments: str, fails: bool = False) -> list:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
        }
        command = ["msrun", f"--worker_num={processes}", f"--local_worker_num={processes}"]
        command += [f"--master_port={free_port()}", "--log_dir=logs", "--join=True", str(HERE / script), *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=250, check=False
        )
        printed = [(tmp_path / "logs" / f"worker_{rank}.log").read_text() for rank in range(processes)]
        assert fails or done.returncode == 0, done.stdout[-2000:] + "".join(text[-3000:] for text in printed)
        return printed

    return run


@pytest.mark.parametrize(
    ("processes", "arguments"),
    [
        (2, ()),
        (4, ("--cases", "causal,causal-float16-gqa,everything,alibi-window,window,blocks")),
        (2, ("--layer", "gather", "--mode", "graph", "--cases", "causal-bfloat16-mqa,alibi")),
        (4, ("--layer", "gather", "--cases", "causal-float16-gqa,everything-contiguous,alibi-window,window")),
    ],
    ids=("ring-2", "ring-4", "gather-2-graph", "gather-4-pynative"),
)
def test_split_sequence_against_the_truth(msrun, processes, arguments):
    for printed in msrun(processes, "parallel_ring.py", *arguments):
        result = json.loads(re.search(r"^RESULT (.*)$", printed, re.MULTILINE).group(1))
        assert result["world"] == processes
        assert result["wrong"]
        assert not any(result["wrong"].values()), result


@pytest.mark.parametrize("kind", ["dead", "slow"])
def test_missing_peer_is_an_error_in_time(msrun, kind):
    printed = msrun(2, "parallel_failures.py", kind, fails=True)[0]
    seconds, message = re.search(r"^ERROR ([\d.]+) PeerError (.*)$", printed, re.MULTILINE).groups()
    assert float(seconds) < 20
    assert "process 0 of 2 did not get" in message
    assert "MS_CPU_COMM_OP_TIMEOUT=4" in message


@pytest.mark.parametrize("kind", ["uneven", "one-sided"])
def test_uneven_parts_are_refused_by_every_process(msrun, kind):
    for printed in msrun(2, "parallel_failures.py", kind, fails=True):
        assert re.search(r"^ERROR [\d.]+ ValueError query: every process must hold .* evenly", printed, re.MULTILINE)


def test_memory_shrinks_with_the_processes(msrun):
    grew = {}
    for processes in (2, 4):
        printed = msrun(processes, "parallel_memory.py")
        grew[processes] = max(float(re.search(r"GREW (\d+)", text).group(1)) for text in printed)
    assert grew[4] < 0.75 * grew[2], grew


def test_data_parallel_training_gives_the_losses_of_one_process(msrun):
    script = HERE.parents[3] / "examples" / "parallel_train.py"
    losses = []
    for printed in (*msrun(1, str(script), "--steps", "3"), *msrun(2, str(script), "--steps", "3")):
        losses.append([float(loss) for loss in re.findall(r"^step \d+ loss (\S+)$", printed, re.MULTILINE)])
    assert len(losses) == 3
    assert len(losses[0]) == 3
    for other in losses[1:]:
        assert other == pytest.approx(losses[0], rel=2e-6)
