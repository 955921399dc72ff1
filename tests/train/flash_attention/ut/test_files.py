"""Files of commands: whole or as they were, in places that were tried before, and without names of people."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from flash_attention import cli, files
from flash_attention.backends.cpu.build import LIBRARY
from flash_attention.backends.cpu.relocate import relocate
from flash_attention.backends.tik import entries, opp_package
from flash_attention.commands.selftest import report

FUNCTION = "def foo():\n    return 1\n"


@contextlib.contextmanager
def full_disk(size: int = 64) -> Iterator[None]:
    """Let no file grow beyond some bytes."""
    before, sys.dont_write_bytecode = resource.getrlimit(resource.RLIMIT_FSIZE), True  # a short .pyc would stay
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        sys.dont_write_bytecode = False


def model() -> bytes:
    """Return a model with one operation of a native kernel that lies elsewhere."""
    from mindspore.train.mind_ir_pb2 import ModelProto

    made = ModelProto()
    attribute = made.graph.node.add().attribute.add()
    attribute.name, attribute.s = "func_name", f"/elsewhere/{LIBRARY.name}:flash_attention_forward".encode()
    return made.SerializeToString()


# By name: what writes into a folder, and the file that it replaces with its old contents.
WRITERS = {
    "report": (lambda folder: report.write(folder / "a", {"numbers": list(range(99))}), b"{}"),
    "model": (lambda folder: relocate(folder / "a", Path(__file__).resolve()), model()),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_leaves_the_old_file_and_no_other(name: str, tmp_path: Path) -> None:
    write, old = WRITERS[name]
    (tmp_path / "a").write_bytes(old)
    (tmp_path / "a").chmod(0o640)
    with full_disk(), pytest.raises(OSError, match=f"{tmp_path}/a cannot be written: File too large"):
        write(tmp_path)
    assert (tmp_path / "a").read_bytes() == old and os.listdir(tmp_path) == ["a"]
    write(tmp_path)
    assert (tmp_path / "a").read_bytes() != old and (tmp_path / "a").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("existed", (False, True))
def test_a_full_disk_leaves_no_part_of_the_operator_package(existed: bool, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    if existed:
        out.mkdir()
    with full_disk(20_000):
        assert cli.main(["opp", "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"flash-attention opp: out: {out} cannot be written: ") and "too large" in said
    assert said.count("\n") == 1
    assert not out.exists() or not os.listdir(out)
    assert opp_package.write("ascend910", out).exists()


def test_a_damaged_model_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(model()[:-9] + b"\xff" * 40)
    with pytest.raises(ValueError, match=f"{tmp_path}/a: got no whole MindIR file"):
        relocate(tmp_path / "a")


@pytest.mark.parametrize("damaged", (b"def foo(): ret", b"\xff\xfe\x00", b""))
def test_a_damaged_entry_is_written_anew(damaged: bytes, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("FLASH_ATTENTION_ENTRIES", str(tmp_path))
    entries.load("foo", FUNCTION)
    (path,) = tmp_path.rglob("foo.py")
    path.write_bytes(damaged)
    assert entries.load("foo", FUNCTION)() == 1 and path.read_text() == FUNCTION


def test_a_link_stays_and_a_device_is_written_to(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    (tmp_path / "b").symlink_to("a")
    files.write_whole(tmp_path / "b", b"new")
    assert (tmp_path / "b").is_symlink() and (tmp_path / "a").read_bytes() == b"new"
    files.write_whole(Path("/dev/null"), "something")
    assert Path("/dev/null").is_char_device()


def test_two_processes_may_write_one_file(tmp_path: Path) -> None:
    program = f"""
import json, sys
from pathlib import Path
from flash_attention.commands.selftest.report import write
path = Path({str(tmp_path / "a")!r})
for n in range(400):
    write(path, {{"numbers": list(range(n))}})
    json.loads(path.read_text())
"""
    both = [subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True) for _ in range(2)]
    assert [(process.communicate()[1], process.returncode) for process in both] == [("", 0)] * 2
    assert os.listdir(tmp_path) == ["a"]


# Options that name a place for results: the words before, and whether the place is a folder.
PLACES = {
    "opp --out": (["opp", "--out"], True),
    "bench --out": (["bench", "--out"], True),
    "profile --out": (["profile", "--backend", "emulator", "--out"], True),
    "selftest --report": (["selftest", "--report"], False),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_place_that_cannot_be_written_is_one_line_before_the_work(name: str, tmp_path: Path, capsys) -> None:
    words, folder = PLACES[name]
    (tmp_path / "file").touch()
    places = [tmp_path / "file/below", Path("/proc/here")]
    places += [tmp_path / "file"] if folder else [tmp_path, tmp_path / "nowhere/file"]
    for place in places:
        assert cli.main([*words, str(place)]) == 2
        printed = capsys.readouterr()
        assert printed.out == "" and printed.err.count("\n") == 1
        assert f"{words[-1].lstrip('-')}: {place} cannot be written: " in printed.err
    assert sorted(os.listdir(tmp_path)) == ["file"]


def test_reports_hold_no_names_of_people(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", "/data/people/ada")
    monkeypatch.setattr(getpass, "getuser", lambda: "ada")
    monkeypatch.setattr(platform, "node", lambda: "tower7")
    said = {
        "device": "ada",
        "error": ["/data/people/ada/x.py:3 in /home/bob/y", "cannot reach tower7.example", 'in "/scratch/ada/z"'],
        "times": (1.5, {"adam": "/scratch/adam, /home"}),
    }
    report.write(tmp_path / "a", said)
    assert json.loads((tmp_path / "a").read_text()) == {
        "device": "ada",
        "error": ["~/x.py:3 in ~/y", "cannot reach HOST.example", 'in "/scratch/USER/z"'],
        "times": [1.5, {"adam": "/scratch/adam, /home"}],
    }
    monkeypatch.setattr(platform, "node", lambda: "so")
    assert files.anonymous("it is so") == "it is so"  # a host of two letters may be a word
