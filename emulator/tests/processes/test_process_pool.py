"""The processes that execute blocks: what happens when they or their caller end, and who has them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tikemu
from tikemu import TikProcessError, tik
from tikemu.processes import pool as pools

from emulator.tests.support.element_kernel import tiled

pytestmark = pytest.mark.usefixtures("one_number", "soc")
TWO = tikemu.Options(processes=2, progress=False)
ROOT = Path(__file__).parents[3]

#: This program has two blocks that take minutes. It prints the ids of the processes that execute them.
ENDLESS = """
import sys, threading, time
import numpy as np, tikemu
from tikemu import tik
from tikemu.frontend import platform_info
from tikemu.processes import pool

def tell():
    while not any(entry.pids for entry in list(pool._pools)):
        time.sleep(0.05)
    time.sleep(1.0)
    print(*next(iter(pool._pools)).pids, flush=True)

platform_info.set_current_compile_soc_info("Ascend910A")
kernel = tik.Tik()
y = kernel.Tensor("float16", (256,), tik.scope_gm, "y")
with kernel.for_range(0, 2, block_num=2) as block:
    ub = kernel.Tensor("float16", (128,), tik.scope_ubuf, "ub")
    with kernel.for_range(0, 100_000_000):
        kernel.vec_dup(128, ub, 1.0, 1, 8)
    kernel.data_move(y[block * 128], ub, 0, 1, 8, 0, 0)
kernel.BuildCCE("endless", [], [y])
threading.Thread(target=tell, daemon=True).start()
tikemu.run(kernel, {}, timing=False, options=tikemu.Options(processes=2))
"""

#: A fork of a process that has a pool runs the program in processes of its own.
FORKED = """
import os, sys
import numpy as np, tikemu
from tikemu.frontend import platform_info
from tikemu.processes import pool
from emulator.tests.processes.test_process_pool import TWO, shifting
from tikemu import tik

platform_info.set_current_compile_soc_info("Ascend910A")
kernel, feeds = shifting(tik.Tik())
first = tikemu.run(kernel, feeds, options=TWO).outputs["y"].tobytes()
parents = pool._idle[0].pids
child = os.fork()
if child == 0:
    same = tikemu.run(kernel, feeds, options=TWO).outputs["y"].tobytes() == first
    apart = not set(pool._idle[0].pids) & set(parents)
    pool._close_all()
    os._exit(0 if same and apart else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert tikemu.run(kernel, feeds, options=TWO).outputs["y"].tobytes() == first
assert pool._idle[0].pids == parents
"""


def shifting(kernel: Any, blocks: int = 6) -> tuple[Any, dict[str, np.ndarray]]:
    """Record y = x + 1, a piece per block. Returns the kernel and its inputs."""
    tiled(kernel, 128, blocks, compute=lambda ub: kernel.vec_adds(128, ub, ub, 1.0, 1, 8, 8))
    return kernel, {"x": np.arange(blocks * 128).astype(np.float16)}


def idle_pids() -> list[int]:
    """Return the processes that wait for the next run."""
    return [pid for pool in pools._idle for pid in pool.pids]


def gone(pids: list[int]) -> bool:
    """Return True if the processes end within 20 seconds. A process that its parent has not waited for has ended
    too.
    """
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if not any(running(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def running(pid: int) -> bool:
    """Return True if a process is there and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def run_python(source: str) -> subprocess.Popen:
    """Start a new interpreter. It leads a group of processes, as in a terminal."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "emulator"), str(ROOT)))}
    return subprocess.Popen(
        [sys.executable, "-c", source], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True,
        start_new_session=True,
    )  # fmt: skip


def test_processes_are_kept(kernel: Any) -> None:
    instance, feeds = shifting(kernel)
    tikemu.run(instance, feeds, options=TWO)
    first = idle_pids()
    result = tikemu.run(instance, {"x": feeds["x"] + 1}, options=TWO)
    assert idle_pids() == first and len(first) == 2
    np.testing.assert_array_equal(result.outputs["y"], feeds["x"] + 2)
    tikemu.run(instance, feeds, options=tikemu.Options(processes=3))
    assert len(idle_pids()) == 3 and gone(first)


def test_more_programs_than_a_process_keeps() -> None:
    programs = [shifting(tik.Tik(), blocks) for blocks in range(2, 14)]
    for _ in range(2):
        for instance, feeds in programs:
            outputs = tikemu.run(instance, feeds, options=TWO).outputs
            np.testing.assert_array_equal(outputs["y"], feeds["x"] + 1)


@pytest.mark.parametrize("moment", ["before", "meanwhile"])
def test_a_process_that_is_killed(kernel: Any, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    instance, feeds = shifting(kernel)
    tikemu.run(instance, feeds, options=TWO)
    pids = idle_pids()
    if moment == "before":
        os.kill(pids[0], signal.SIGKILL)
        os.waitid(os.P_PID, pids[0], os.WEXITED | os.WNOWAIT)
    else:
        send = pools.Pool.send

        def kill_first(pool: Any, number: int, request: bytes) -> None:
            send(pool, number, request)
            if running(pids[1]):
                os.kill(pids[1], signal.SIGKILL)

        monkeypatch.setattr(pools.Pool, "send", kill_first)
        with pytest.raises(TikProcessError, match=rf"pid {pids[1]}\) was ended by signal 9; the system may have run"):
            tikemu.run(instance, feeds, options=TWO)
        monkeypatch.undo()
    assert moment == "before" or gone(pids)
    np.testing.assert_array_equal(tikemu.run(instance, feeds, options=TWO).outputs["y"], feeds["x"] + 1)
    assert not set(idle_pids()) & set(pids) and gone(pids)


def test_a_process_without_memory(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    limited = (
        "; import resource; pages = int(open('/proc/self/statm').read().split()[0]); "
        "resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + (48 << 20),) * 2); main()"
    )
    monkeypatch.setattr(pools, "_BOOT", pools._BOOT.replace("; main()", limited))
    pools._close_all()
    y = kernel.Tensor("float16", (64 << 20,), tik.scope_gm, "y")
    with kernel.for_range(0, 2, block_num=2) as block:
        ub = kernel.Tensor("float16", (128,), tik.scope_ubuf, "ub")
        kernel.vec_dup(128, ub, 1.0, 1, 8)
        kernel.data_move(y[block * 128], ub, 0, 1, 8, 0, 0)
    kernel.BuildCCE("large", [], [y])
    with pytest.raises(TikProcessError, match=r"has failed:\nTraceback(.|\n)*MemoryError"):
        tikemu.run(kernel, {}, options=TWO)
    assert idle_pids() == []


def test_a_process_that_ends_where_nobody_learns_how(kernel: Any) -> None:
    """With SIGCHLD ignored the system forgets the exit code, and subprocess says 0."""
    instance, feeds = shifting(kernel)
    tikemu.run(instance, feeds, options=TWO)
    (pool,) = pools._idle
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        os.kill(pool.pids[0], signal.SIGKILL)
        with pytest.raises(TikProcessError, match=rf"pid {pool.pids[0]}\) has ended; SIGCHLD is ignored"):
            while True:
                pool.send(0, b"")
    finally:
        signal.signal(signal.SIGCHLD, before)
        pools._close_all()


def test_no_interpreter(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    instance, feeds = shifting(kernel)
    pools._close_all()
    monkeypatch.setattr(sys, "executable", "/no/python")
    with pytest.raises(TikProcessError, match="cannot be started: .*/no/python"):
        tikemu.run(instance, feeds, options=TWO)
    monkeypatch.setattr(sys, "executable", None)
    with pytest.raises(TikProcessError, match="need sys.executable"):
        tikemu.run(instance, feeds, options=TWO)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill"])
def test_nothing_outlives_the_caller(how: int) -> None:
    caller = run_python(ENDLESS)
    pids = [int(text) for text in caller.stdout.readline().split()]
    assert len(pids) == 2 and all(running(pid) for pid in pids)
    os.killpg(caller.pid, how)
    _, errors = caller.communicate(timeout=30)
    assert caller.returncode == -how
    assert errors.rstrip().endswith("KeyboardInterrupt") if how == signal.SIGINT else errors == ""
    assert gone(pids)


def test_fork() -> None:
    forking = run_python(FORKED)
    _, errors = forking.communicate(timeout=60)
    assert forking.returncode == 0, errors


def test_runs_in_two_threads() -> None:
    programs = [shifting(tik.Tik(), blocks) for blocks in (5, 9)]
    found: dict[int, Any] = {}

    def work(number: int) -> None:
        instance, feeds = programs[number]
        found[number] = [tikemu.run(instance, feeds, options=TWO).outputs["y"] - feeds["x"] for _ in range(5)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((difference == 1).all() for number in range(2) for difference in found[number])
