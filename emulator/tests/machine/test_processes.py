"""Blocks in several processes: a run gives the same as in one process, to the last bit."""

import importlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import tikemu
from tikemu import TikBoundsError, TikProcessError, TikWarning, processes, tik
from tikemu.program import ir

from emulator.tests.support.fuzz import Campaign
from emulator.tests.support.kernels import tiled
from emulator.tests.support.process_runs import check_same, modes
from emulator.tests.support.programs.operators import PROGRAMS
from emulator.tests.support.random_blocks import BlockProgram
from emulator.tests.support.random_program import Generator

pytestmark = pytest.mark.usefixtures("soc")
SETTINGS = {
    "default": {},
    "strict": {"strict": True},
    "all findings": {"strict": True, "findings": "all"},
    "races left out": {"strict": True, "findings": "all", "leave_out": ("race",)},
    "results only": {"timing": False},
    "no trace": {"trace": False},
}
CAMPAIGN = Campaign(
    "processes", "emulator.tests.machine.test_processes", 1000, 50, ("emulator/tikemu", "emulator/tests")
)


@pytest.fixture(autouse=True)
def one_number(monkeypatch):
    """Let a test set the number of processes."""
    monkeypatch.delenv("TIKEMU_PROCESSES", raising=False)


def adding(kernel, count, blocks, *, clears=False, reads=False):
    """Let every block add its values to the same ``count`` elements. float32 makes the order visible."""
    x = kernel.Tensor("float32", (blocks * 64,), tik.scope_gm, "x")
    y = kernel.Tensor("float32", (count,), tik.scope_gm, "y", is_atomic_add=True)
    with kernel.for_range(0, blocks, block_num=blocks) as block:
        ub = kernel.Tensor("float32", (64,), tik.scope_ubuf, "ub")
        kernel.data_move(ub, x[block * 64], 0, 1, 8, 0, 0)
        if clears:
            kernel.data_move(y, ub, 0, 1, 8, 0, 0)
        kernel.set_atomic_add(1)
        with kernel.for_range(0, count // 64) as piece:
            kernel.data_move(y[piece * 64], ub, 0, 1, 8, 0, 0)
        kernel.set_atomic_add(0)
        if reads:
            kernel.data_move(ub, y, 0, 1, 8, 0, 0)
    kernel.BuildCCE("adding", [x], [y])
    feeds = {"x": np.random.default_rng(1).standard_normal(blocks * 64).astype(np.float32) * 10.0 ** (blocks % 7)}
    return kernel, feeds


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("build", PROGRAMS[::3], ids=lambda build: build.__name__)
def test_whole_operators(build, setting, tmp_path):
    tikemu.install(soc="Ascend910A")
    instance, feeds, _ = build()
    check_same(instance, feeds, tmp_path, **SETTINGS[setting])


@pytest.mark.parametrize("seed", range(6))
def test_random_programs(quiet, seed, tmp_path):
    generator = Generator(seed)
    check_same(generator.tik, generator.feeds(), tmp_path, most=3)


@pytest.mark.parametrize("seed", range(25))
def test_blocks_that_meet(quiet, seed, tmp_path):
    check_blocks(seed, tmp_path, list(SETTINGS)[seed % len(SETTINGS)])


@CAMPAIGN.params()
def test_blocks_that_meet_often(quiet, first, tmp_path):
    CAMPAIGN.run(first, lambda seed: [check_blocks(seed, tmp_path, setting) for setting in SETTINGS])


def check_blocks(seed, folder, setting):
    """Run one random program in one setting."""
    program = BlockProgram(seed)
    check_same(program.tik, program.feeds(), folder, **SETTINGS[setting])


def test_random_blocks_meet_in_every_way(quiet, tmp_path):
    """The generator has programs for each way to run, with errors, warnings and saturation."""
    seen = set()
    for seed in range(20):
        program = BlockProgram(seed)
        found = check_same(program.tik, program.feeds(), tmp_path, trace=False)
        seen |= modes(program.tik) or {"apart"}
        seen |= {name for name in ("error", "warnings", "overflow") if found.get(name)}
    assert seen == {"apart", "adding", "alone", "error", "warnings", "overflow"}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("blocks", [3, 32, 70])
def test_additions_come_in_the_order_of_the_blocks(kernel, blocks, setting, tmp_path):
    instance, feeds = adding(kernel, 128, blocks)
    found = check_same(instance, feeds, tmp_path, **SETTINGS[setting])
    expected = np.zeros(64, np.float32)
    for row in feeds["x"].reshape(blocks, 64):
        expected = expected + row
    assert found["outputs"]["y"][2] == np.tile(expected, 2).tobytes()
    in_order = blocks > 32 and SETTINGS[setting].get("trace", True) and SETTINGS[setting].get("timing", True)
    assert modes(instance) == (set() if in_order else {"adding"})


def test_saturated_additions_count_in_their_order(kernel, tmp_path):
    """Each addend is finite, and so is the sum of each process alone; the sum of all is not."""
    instance, feeds = adding(kernel, 64, 4)
    feeds["x"] = np.full_like(feeds["x"], 1.5e38)
    found = check_same(instance, feeds, tmp_path)
    assert found["overflow"].count == 2  # the third block, and the fourth
    assert modes(instance) == {"adding"}


@pytest.mark.parametrize("how", ["clears", "reads"])
def test_additions_that_are_more_than_additions(kernel, how, tmp_path):
    instance, feeds = adding(kernel, 64, 5, **{how: True})
    check_same(instance, feeds, tmp_path)
    assert modes(instance) == {"alone"}


@pytest.mark.spread(3)
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("declared", [True, False], ids=["declared", "not declared"])
@pytest.mark.parametrize("second", ["read", "write", "add"])
@pytest.mark.parametrize("first", ["read", "write", "add"])
def test_two_blocks_meet(kernel, first, second, declared, setting, tmp_path):
    """Block 0 does the first, block 2 the second, in the same place."""
    x = kernel.Tensor("float32", (4 * 64,), tik.scope_gm, "x")
    y, z = (kernel.Tensor("float32", (4 * 64,), tik.scope_gm, name, is_atomic_add=declared) for name in "yz")
    with kernel.for_range(0, 4, block_num=4) as block:
        ub = kernel.Tensor("float32", (64,), tik.scope_ubuf, "ub")
        kernel.data_move(ub, x[block * 64], 0, 1, 8, 0, 0)
        for number, what in ((0, first), (2, second)):
            with kernel.if_scope(block == number):
                if what == "read":
                    kernel.data_move(ub, y, 0, 1, 8, 0, 0)
                kernel.set_atomic_add(int(what == "add"))
                if what != "read":
                    kernel.data_move(y, ub, 0, 1, 8, 0, 0)
                kernel.set_atomic_add(0)
        kernel.data_move(z[block * 64], ub, 0, 1, 8, 0, 0)
    kernel.BuildCCE("meeting", [x], [y, z])
    feeds = {name: np.arange(256, dtype=np.float32) + 0.1 + index for index, name in enumerate("xyz")}
    check_same(kernel, feeds, tmp_path, **SETTINGS[setting])
    apart = {"read": set(), "add": {"adding"} if declared else {"alone"}}
    assert modes(kernel) == (apart.get(first, {"alone"}) if first == second else {"alone"})


@pytest.mark.parametrize("declared", [False, True], ids=["not declared", "declared"])
@pytest.mark.parametrize("shared", [False, True])
def test_clear_and_add_in_one_block(kernel, shared, declared, tmp_path):
    """Each block writes a place of its own before it adds there; with `shared`, all blocks also add to one place."""
    y = kernel.Tensor("float32", (256,), tik.scope_gm, "y", is_atomic_add=declared)
    z = kernel.Tensor("float32", (64,), tik.scope_gm, "z", is_atomic_add=True)
    with kernel.for_range(0, 4, block_num=4) as block:
        ub = kernel.Tensor("float32", (64,), tik.scope_ubuf, "ub")
        kernel.vec_dup(64, ub, 1.5, 1, 8)
        kernel.data_move(y[block * 64], ub, 0, 1, 8, 0, 0)
        kernel.set_atomic_add(1)
        kernel.data_move(y[block * 64], ub, 0, 1, 8, 0, 0)
        if shared:
            kernel.data_move(z, ub, 0, 1, 8, 0, 0)
        kernel.set_atomic_add(0)
    kernel.BuildCCE("own", [], [y, z])
    found = check_same(kernel, {}, tmp_path, strict=True)
    assert found["outputs"]["y"][2] == np.full(256, 3.0, np.float32).tobytes()
    assert modes(kernel) == ({"alone" if declared else "adding"} if shared else set())


def failing(kernel, blocks, count=12):
    """Block ``b`` moves from behind the end of x in iteration ``blocks[b]``; others do not."""
    x = kernel.Tensor("float16", (256,), tik.scope_gm, "x")
    y = kernel.Tensor("float16", (count * 16,), tik.scope_gm, "y")
    with kernel.for_range(0, count, name="block", block_num=count) as block:
        ub = kernel.Tensor("float16", (128,), tik.scope_ubuf, "ub")
        start = kernel.Scalar("int32", "start", init_value=0)
        with kernel.for_range(0, 3, name="row") as row:
            for number, iteration in blocks.items():
                with kernel.if_scope(tik.all(block == number, row == iteration)):
                    start.set_as(200 + number)
            kernel.data_move(ub, x[start], 0, 1, 8, 0, 0)
        kernel.data_move(y[block * 16], ub, 0, 1, 1, 0, 0)
    kernel.BuildCCE("failing", [x], [y])
    return kernel


@pytest.mark.parametrize("blocks", [{0: 0}, {7: 2, 4: 1}, {11: 0, 2: 2, 3: 0}, {11: 2}])
def test_the_error_of_the_first_block_that_fails(kernel, blocks, tmp_path):
    found = check_same(failing(kernel, blocks), {"x": np.ones(256, np.float16)}, tmp_path)
    assert found["error"][0] is TikBoundsError
    assert f"block {min(blocks)} of 12, block = {min(blocks)}, row = {blocks[min(blocks)]}" in found["error"][1]


def test_warnings_once_and_in_order(kernel, tmp_path):
    y = kernel.Tensor("float16", (3 * 64 + 8,), tik.scope_gm, "y")
    with kernel.for_range(0, 3, block_num=3) as block:
        ub = kernel.Tensor("float16", (128,), tik.scope_ubuf, "ub")
        kernel.vec_dup(128, ub, 1.0, 1, 8)
        for start in (184, 186):
            with kernel.if_scope(block == start % 3):
                kernel.data_move(y[start], ub, 0, 1, 2, 0, 0)
        kernel.data_move(y[block * 64], ub, 0, 1, 1, 0, 0)
    kernel.BuildCCE("warning", [], [y])
    found = check_same(kernel, {}, tmp_path)
    assert len([text for text, _, _ in found["warnings"] if "only the padding" in text]) == 2
    found = check_same(kernel, {}, tmp_path, strict=True, findings="all", leave_out=("race", "undefined"))
    (finding,) = found["findings"]  # they differ in numbers only
    assert (finding.kind, finding.moment.block) == ("padding", 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", TikWarning)
        with pytest.raises(TikWarning, match="only the padding"):
            tikemu.run(kernel, {}, options=tikemu.Options(processes=2))


def test_start_debug_and_what_it_writes_back(kernel):
    instance, feeds = adding(kernel, 64, 4)
    written = {}
    for count in (1, 2):
        with tikemu.use_options(tikemu.Options(processes=count)):
            fed = {"x": feeds["x"].copy(), "y": np.ones(64, np.float32)}
            outputs = instance.tikdb.start_debug(feed_dict=fed, interactive=False)
        written[count] = outputs[0].tobytes(), fed["x"].tobytes(), fed["y"].tobytes()
    assert written[1] == written[2]
    assert modes(instance) == {"adding"}


def test_what_a_program_prints_comes_in_order(capfd, kernel):
    y = kernel.Tensor("float16", (64,), tik.scope_gm, "y")
    with kernel.for_range(0, 4, name="block", block_num=4) as block:
        ub = kernel.Tensor("float16", (16,), tik.scope_ubuf, "ub")
        kernel.vec_dup(16, ub, 1.0, 1, 1)
        kernel.tikdb.debug_print("block")
        kernel.data_move(y[block * 16], ub, 0, 1, 1, 0, 0)
    kernel.BuildCCE("printing", [], [y])
    tikemu.run(kernel, {}, options=tikemu.Options(processes=2))
    assert capfd.readouterr().out.split() == [word for block in range(4) for word in ("block", "=", str(block))]


def test_number_of_processes(kernel, monkeypatch):
    used = []
    monkeypatch.setattr(processes, "_take", lambda count: used.append(count) or 1 / 0)
    instance, feeds = adding(kernel, 64, 3)
    run_with = lambda count: tikemu.run(instance, feeds, options=tikemu.Options(processes=count))  # noqa: E731
    run_with(None), run_with(1)
    assert used == []
    monkeypatch.setenv("TIKEMU_PROCESSES", "2")
    for count in (8, None):
        with pytest.raises(TikProcessError, match="ZeroDivisionError"):
            run_with(count)
    run_with(1)
    assert used == [3, 2]  # no more than blocks
    with pytest.raises(ValueError, match="processes must be at least 1"):
        tikemu.Options(processes=0)


class Count(int):
    """An argument of a class that this process cannot pickle, or that others cannot import."""

    def __new__(cls, value, how):
        number = super().__new__(cls, value)
        number.how = how
        return number

    def __reduce__(self):
        if self.how == "pickle":
            raise TypeError("this one stays here")
        return importlib.import_module, ("no_module_has_this_name",)


@pytest.mark.parametrize("how, reason", [("pickle", "TypeError: this one"), ("import", "ModuleNotFoundError: No mod")])
def test_programs_that_cannot_be_sent(kernel, how, reason):
    instance, feeds = adding(kernel, 64, 3)
    call = next(entry for entry in ir.statements(instance._recorder.program.body) if hasattr(entry, "args"))
    call.args["sid"] = Count(0, how)
    with pytest.warns(TikWarning, match=f"'adding' cannot be sent to other processes, so it runs in one: {reason}"):
        result = tikemu.run(instance, feeds, options=tikemu.Options(processes=2))
    assert result.cycles == tikemu.run(instance, feeds, options=tikemu.Options(processes=1)).cycles


# ----------------------------------------------------------------------------------------------------- the processes
TWO = tikemu.Options(processes=2, progress=False)
ROOT = Path(__file__).parents[3]

#: This script without a guard has two blocks that take minutes. It prints the ids of the processes that execute them.
ENDLESS = """
import threading, time
import tikemu
from tikemu import processes, tik
from tikemu.frontend import platform_info

def tell():
    while len(processes._processes) < 2:
        time.sleep(0.05)
    time.sleep(1.0)
    print(*(process.pid for process in processes._processes), flush=True)

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
import os
import tikemu
from tikemu import processes, tik
from tikemu.frontend import platform_info
from emulator.tests.machine.test_processes import TWO, pids, shifting

platform_info.set_current_compile_soc_info("Ascend910A")
kernel, feeds = shifting(tik.Tik())
first = tikemu.run(kernel, feeds, options=TWO).outputs["y"].tobytes()
parents = pids()
child = os.fork()
if child == 0:
    same = tikemu.run(kernel, feeds, options=TWO).outputs["y"].tobytes() == first
    apart = not set(pids()) & set(parents)
    processes.end_processes()
    os._exit(0 if same and apart else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert tikemu.run(kernel, feeds, options=TWO).outputs["y"].tobytes() == first
assert pids() == parents
"""


def shifting(kernel, blocks=6):
    """Record y = x + 1, a piece per block. Returns the kernel and its inputs."""
    tiled(kernel, 128, blocks, compute=lambda ub: kernel.vec_adds(128, ub, ub, 1.0, 1, 8, 8))
    return kernel, {"x": np.arange(blocks * 128).astype(np.float16)}


def pids():
    """Return the processes that wait for the next run."""
    return [process.pid for process in processes._processes]


def gone(numbers):
    """Return True if the processes end within 20 seconds, or are zombies then."""
    end = time.monotonic() + 20
    while any(running(number) for number in numbers) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(running(number) for number in numbers)


def running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def started(source, folder):
    """Start a script. It leads a group of processes, as in a terminal."""
    script = folder / "script.py"
    script.write_text(source)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "emulator"), str(ROOT)))}
    return subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True,
        start_new_session=True,
    )  # fmt: skip


def test_processes_are_kept(kernel):
    instance, feeds = shifting(kernel)
    tikemu.run(instance, feeds, options=TWO)
    first = pids()
    result = tikemu.run(instance, {"x": feeds["x"] + 1}, options=TWO)
    assert pids() == first and len(first) == 2
    np.testing.assert_array_equal(result.outputs["y"], feeds["x"] + 2)
    tikemu.run(instance, feeds, options=tikemu.Options(processes=3))
    assert len(pids()) == 3 and gone(first)


def test_more_programs_than_a_process_keeps_in_two_threads():
    programs = [shifting(tik.Tik(), blocks) for blocks in range(2, 14)]
    wrong = []

    def work(number):
        for instance, feeds in 2 * programs[number::2]:
            wrong.extend(np.flatnonzero(tikemu.run(instance, feeds, options=TWO).outputs["y"] != feeds["x"] + 1))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("moment", ["before", "meanwhile"])
def test_a_process_that_is_killed(kernel, moment, monkeypatch):
    instance, feeds = shifting(kernel)
    tikemu.run(instance, feeds, options=TWO)
    first = pids()
    if moment == "before":
        os.kill(first[0], signal.SIGKILL)
        processes.wait_for_end([processes._processes[0].sentinel])
    else:
        submit = processes.ProcessPoolExecutor.submit

        def kill_first(pool, *job):
            monkeypatch.undo()  # once: the pool waits for the process meanwhile, and its number is then no one's
            os.kill(first[1], signal.SIGKILL)
            return submit(pool, *job)

        monkeypatch.setattr(processes.ProcessPoolExecutor, "submit", kill_first)
        with pytest.raises(TikProcessError, match=rf"pid {first[1]}\) was ended by signal 9; the system may have run"):
            tikemu.run(instance, feeds, options=TWO)
    assert moment == "before" or gone(first)
    np.testing.assert_array_equal(tikemu.run(instance, feeds, options=TWO).outputs["y"], feeds["x"] + 1)
    assert not set(pids()) & set(first) and gone(first)


def prepare_with_little_memory(barrier):
    """Leave 48 MB to a process."""
    processes._prepare(barrier)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + (48 << 20),) * 2)


def test_a_process_without_memory(kernel, monkeypatch):
    """A block that lacks memory ends the run, with the traceback of its process."""
    processes.end_processes()
    monkeypatch.setattr(processes, "_prepare", prepare_with_little_memory)
    y = kernel.Tensor("float16", (64 << 20,), tik.scope_gm, "y")
    with kernel.for_range(0, 2, block_num=2) as block:
        ub = kernel.Tensor("float16", (128,), tik.scope_ubuf, "ub")
        kernel.vec_dup(128, ub, 1.0, 1, 8)
        kernel.data_move(y[block * 128], ub, 0, 1, 8, 0, 0)
    kernel.BuildCCE("large", [], [y])
    with pytest.raises(TikProcessError, match=r"has failed:\n(.|\n)*MemoryError"):
        tikemu.run(kernel, {}, options=TWO)
    assert pids() == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill"])
def test_nothing_outlives_the_caller(how, tmp_path):
    caller = started(ENDLESS, tmp_path)
    numbers = [int(text) for text in caller.stdout.readline().split()]
    assert len(numbers) == 2 and all(running(number) for number in numbers)
    os.killpg(caller.pid, how) if how == signal.SIGINT else os.kill(caller.pid, how)
    _, errors = caller.communicate(timeout=30)
    assert caller.returncode == -how
    assert errors.rstrip().endswith("KeyboardInterrupt") or how == signal.SIGKILL
    assert errors.count("Traceback") == (how == signal.SIGINT)
    assert gone(numbers)


def test_fork(tmp_path):
    forking = started(FORKED, tmp_path)
    _, errors = forking.communicate(timeout=60)
    assert forking.returncode == 0 and errors == ""


if __name__ == "__main__":
    tikemu.frontend.platform_info.set_current_compile_soc_info("Ascend910A")
    for name in SETTINGS:
        with tempfile.TemporaryDirectory() as folder:
            check_blocks(int(sys.argv[2]), Path(folder), name)
