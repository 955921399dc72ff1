"""Several cards: the program runs once for each, with the variables that MindSpore reads on a server of Ascend 910."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import folders

#: A folder that keeps its files in memory.
_MEMORY = Path("/dev/shm")
_ROOM = 2**30  # bytes; containers often have little there
#: Seconds that the other programs have to end by themselves after one has failed. They learn why at their next
#: collective.
GRACE = 30.0
_STEP = 0.02
_NOTE = 80  # bytes, for how a card has ended
_PR_SET_PDEATHSIG = 1


def run(command: Sequence[str], count: int, variables: Mapping[str, str]) -> int:
    """Run the command once for each card; return the first failing status, or 0.

    Raises:
        OSError: the command cannot be started.
    """
    processes: list[subprocess.Popen[bytes]] = []
    previous = signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    folder = folders.make(exchange_place())
    try:
        table = folder / "rank_table.json"
        table.write_text(json.dumps(rank_table(count), indent=1))
        for card in range(count):
            # The note has its size now, so the card's end can be written even if the exchanged data fill the folder.
            (folder / f"unfinished-{card}").write_text(_NOTE * " ")
            own = {**variables, **_of_card(card, count, folder, table, variables)}
            processes.append(subprocess.Popen(command, env=own, preexec_fn=_end_with_parent))
        return _watch(processes, folder)
    except KeyboardInterrupt:  # the programs got it too
        return 128 + signal.SIGINT
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        folders.remove(folder)
        signal.signal(signal.SIGTERM, previous)


def exchange_place() -> Path:
    """Make the cards' common folder: in memory, if there is room."""
    fits = os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free >= _ROOM
    return _MEMORY if fits else Path(tempfile.gettempdir())


def rank_table(count: int) -> dict[str, object]:
    """Return a server with so many cards, as HCCL's configuration describes it."""
    devices = [
        {"device_id": str(card), "device_ip": f"192.168.{100 + card // 200}.{card % 200 + 1}", "rank_id": str(card)}
        for card in range(count)
    ]
    server = {"server_id": "127.0.0.1", "device": devices, "host_nic_ip": "reserve"}
    return {"version": "1.0", "server_count": "1", "server_list": [server], "status": "completed"}


def _of_card(card: int, count: int, folder: Path, table: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of one card beside the common ones."""
    own: dict[str, object] = {
        "RANK_ID": card,
        "RANK_SIZE": count,
        "DEVICE_ID": card,
        "RANK_TABLE_FILE": table,
        "VIRTUAL_ASCEND_CARD": card,
        "VIRTUAL_ASCEND_CARDS": count,
        "VIRTUAL_ASCEND_EXCHANGE": folder,
        "VIRTUAL_ASCEND_SEED": int(variables["VIRTUAL_ASCEND_SEED"]) + card,
        "MS_COMPILER_CACHE_PATH": Path(variables["MS_COMPILER_CACHE_PATH"]) / f"card{card}",
    }
    if "VIRTUAL_ASCEND_REPORT" in variables:
        own["VIRTUAL_ASCEND_REPORT"] = Path(variables["VIRTUAL_ASCEND_REPORT"]) / f"card{card}"
    return {name: str(value) for name, value in own.items()}


def _watch(processes: Sequence[subprocess.Popen[bytes]], folder: Path) -> int:
    """Wait for all processes, and tell the running ones which have ended."""
    going, failed, deadline = dict(enumerate(processes)), 0, float("inf")
    while going and time.monotonic() < deadline:
        for card, process in list(going.items()):
            status = process.poll()
            if status is None:
                continue
            del going[card]
            text = f"signal {-status}" if status < 0 else f"exit status {status}"
            unfinished = folder / f"unfinished-{card}"
            with open(unfinished, "r+") as note:
                note.write(f"{text}\n")
            unfinished.rename(folder / f"ended-{card}")  # the runtime reads it
            if status and not failed:
                failed, deadline = status, time.monotonic() + GRACE
                print(f"virtual-ascend: card {card} has ended: {text}", file=sys.stderr, flush=True)
        time.sleep(_STEP)
    for card in going:
        print(f"virtual-ascend: card {card} went on for {GRACE:.0f} seconds and was ended", file=sys.stderr, flush=True)
    return 128 - failed if failed < 0 else failed


def _end_with_parent() -> None:
    """Make a child end when virtual-ascend does, however that happens. It runs before the child's program."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
