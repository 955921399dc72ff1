"""Test the messages about missing requirements, which come before anything runs."""

import os

import pytest

from emulator.virtual_ascend.tests.card import said, start

pytestmark = pytest.mark.card
PROGRAM = """
import sys
from virtual_ascend import cli, installation, library
{}
sys.exit(cli.main(["info"]))
"""


def told(python, folder, change, **variables):
    """Return what `virtual-ascend info` says if something is different."""
    done = start(python, "-c", PROGRAM.format(change), cwd=folder, **variables)
    assert done.returncode == 2 and not done.stdout, done
    return done.stderr


def test_info(python, tmp_path):
    text = said(start(python, "-m", "virtual_ascend", "info", cwd=tmp_path))
    assert "wants 446 symbols of 24 libraries" in text and "--cards N" in text


NO_ELFTOOLS = "sys.modules['elftools.common.exceptions'] = None\n"
OTHER_PYTHON = "installation.PYTHON = (3, 8)"


@pytest.mark.parametrize(
    "change, variables, texts",
    [
        (OTHER_PYTHON, {}, ["needs Python 3.9 here"]),
        (
            "installation.metadata.version = lambda name: '2.1.0'",
            {},
            ["for MindSpore 2.0.0, 2.5 and 2.6, installed is 2.1.0", "pip install mindspore==2.0.0"],
        ),
        (
            "installation.platform.machine = lambda: 'aarch64'",
            {},
            ["Linux on x86_64, this is Linux on aarch64"],
        ),
        ("", {"CXX": "/nonexistent/g++"}, ["there is no /nonexistent/g++: install g++"]),
        # The first word of CXX is the compiler, so the error is the compiler's.
        ("", {"CXX": "false --of"}, ["false --of -std=c++17", "failed"]),
        (
            "",
            {"VIRTUAL_ASCEND_CACHE": __file__},
            [f"cannot be kept in {__file__}: File exists; VIRTUAL_ASCEND_CACHE names another folder"],
        ),
        (NO_ELFTOOLS, {}, ["pip install pyelftools"]),
        # A checkout that runs in another Python, without the packages: the error names the Python that it needs.
        (NO_ELFTOOLS + OTHER_PYTHON, {}, ["needs Python 3.9 here"]),
    ],
)
def test_what_is_missing_is_said(python, tmp_path, change, variables, texts):
    text = told(python, tmp_path, change, **{"VIRTUAL_ASCEND_CACHE": tmp_path, **variables})
    assert all(part in text for part in texts), text


def test_a_plugin_with_other_symbols(python, tmp_path):
    """The plugin does not ask for a function that the sources implement. One file stands for all sources."""
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources/runtime_api.cc").write_text(
        'extern "C" int rtMalloc() { return 0; } extern "C" int rtOther() { return 0; }'
    )
    change = "library.SOURCES = library.Path('sources')"
    text = told(python, tmp_path, change, VIRTUAL_ASCEND_CACHE=tmp_path)
    assert "does not ask for rtOther, which" in text and "unchanged" in text


def test_a_program_of_the_environment_comes_before_that_of_path(python, tmp_path):
    other = tmp_path / "pip"
    other.write_text("#!/bin/sh\necho another\n")
    other.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    text = said(start(python, "-m", "virtual_ascend", "--", "pip", "--version", cwd=tmp_path, PATH=path))
    assert "python 3.9" in text
