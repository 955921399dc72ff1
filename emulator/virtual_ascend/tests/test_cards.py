"""`virtual-ascend --cards N`: the processes of the program, and how they end."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from virtual_ascend import cards

from emulator.virtual_ascend.tests.card import PACKAGES

VARIABLES = {**os.environ, "VIRTUAL_ASCEND_SEED": "3", "MS_COMPILER_CACHE_PATH": "cache"}


def run(folder, count, program, **variables):
    """Run `program` on so many cards and return the exit status. It is Python and finds the folder `out`."""
    text = f"import json, os, time\nfrom pathlib import Path\nout = Path({str(folder)!r})\n{program}"
    return cards.run([sys.executable, "-c", text], count, {**VARIABLES, **variables})


def test_every_card_has_its_variables(tmp_path):
    program = """
table = Path(os.environ["RANK_TABLE_FILE"]).read_text()
(out / os.environ["RANK_ID"]).write_text(json.dumps({**os.environ, "table": table}))
"""
    assert run(tmp_path, 3, program, VIRTUAL_ASCEND_REPORT="report") == 0
    for card in range(3):
        own = json.loads((tmp_path / str(card)).read_text())
        assert own["RANK_SIZE"] == "3" and own["DEVICE_ID"] == own["RANK_ID"] == str(card)
        assert own["VIRTUAL_ASCEND_SEED"] == str(3 + card) and own["VIRTUAL_ASCEND_REPORT"] == f"report/card{card}"
        (server,) = json.loads(own["table"])["server_list"]
        assert [device["rank_id"] for device in server["device"]] == ["0", "1", "2"]
        assert len({device["device_ip"] for device in server["device"]}) == 3
    assert not Path(own["VIRTUAL_ASCEND_EXCHANGE"]).exists()


def test_one_that_fails_is_said_and_the_others_may_end(tmp_path, capfd):
    program = """
exchange = Path(os.environ["VIRTUAL_ASCEND_EXCHANGE"])
if os.environ["RANK_ID"] == "1":
    (out / "room").write_text(str((exchange / "unfinished-1").stat().st_size))
    raise SystemExit(5)
ended = exchange / "ended-1"
while not ended.exists():
    time.sleep(0.01)
(out / "reason").write_text(ended.read_text().splitlines()[0])
"""
    assert run(tmp_path, 2, program) == 5
    assert int((tmp_path / "room").read_text()) > len("exit status 255\n")  # also when there is none left by then
    assert (tmp_path / "reason").read_text() == "exit status 5"
    assert capfd.readouterr().err == "virtual-ascend: card 1 has ended: exit status 5\n"


def test_one_that_is_killed_and_one_that_goes_on(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(cards, "GRACE", 0.2)
    program = f"""
if os.environ["RANK_ID"] == "0":
    os.kill(os.getpid(), {int(signal.SIGKILL)})
time.sleep(60)
"""
    start = time.monotonic()
    assert run(tmp_path, 2, program) == 128 + signal.SIGKILL
    assert time.monotonic() - start < 20
    text = capfd.readouterr().err
    assert "card 0 has ended: signal 9" in text and "card 1 went on" in text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_programs_end_with_virtual_ascend(tmp_path, number):
    own = f"import os, sys, time; open({str(tmp_path)!r} + '/' + str(os.getpid()), 'w'); time.sleep(60)"
    text = f"from virtual_ascend import cards; import os; cards.run([{sys.executable!r}, '-c', {own!r}], 2, os.environ)"
    variables = {**VARIABLES, "PYTHONPATH": os.pathsep.join(map(str, PACKAGES))}
    started = subprocess.Popen([sys.executable, "-c", text], env=variables)
    try:
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
        programs = [int(path.name) for path in tmp_path.iterdir()]
        started.send_signal(number)
        wait_until(lambda: not any(Path(f"/proc/{program}/cmdline").exists() for program in programs))
    finally:
        started.kill()
        started.wait()


def wait_until(condition):
    """Fail if the condition does not become true within half a minute."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
