"""Test the messages about missing requirements, which come before anything runs."""

import os

import pytest

from emulator.virtual_ascend.tests.card import on_card, said, start

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


def test_another_python(python, tmp_path):
    assert "needs Python 3.9 here" in told(python, tmp_path, "installation.PYTHON = (3, 8)")


def test_another_mindspore(python, tmp_path):
    text = told(python, tmp_path, "installation.metadata.version = lambda name: '2.1.0'")
    assert "for MindSpore 2.0.0, 2.5 and 2.6, installed is 2.1.0" in text and "pip install mindspore==2.0.0" in text


def test_another_processor(python, tmp_path):
    text = told(python, tmp_path, "installation.platform.machine = lambda: 'aarch64'")
    assert "Linux on x86_64, this is Linux on aarch64" in text


def test_no_compiler(python, tmp_path):
    text = told(python, tmp_path, "", CXX="/nonexistent/g++", VIRTUAL_ASCEND_CACHE=tmp_path)
    assert "there is no /nonexistent/g++: install g++" in text


def test_a_cache_that_cannot_be_written(python, tmp_path):
    text = told(python, tmp_path, "", VIRTUAL_ASCEND_CACHE=__file__)
    assert f"cannot be kept in {__file__}: File exists; VIRTUAL_ASCEND_CACHE names another folder" in text


def test_a_compiler_with_options(python, tmp_path):
    """The first word of CXX is the compiler, so the error is the compiler's."""
    text = told(python, tmp_path, "", CXX="false --of", VIRTUAL_ASCEND_CACHE=tmp_path)
    assert "false --of -std=c++17" in text and "failed" in text


def test_without_pyelftools_the_python_is_what_is_said(python, tmp_path):
    """The error of a checkout that runs in another Python, without the packages, names the Python that it needs."""
    change = "sys.modules['elftools.common.exceptions'] = None\ninstallation.PYTHON = (3, 8)"
    assert "needs Python 3.9 here" in told(python, tmp_path, change)
    text = told(python, tmp_path, change.splitlines()[0], VIRTUAL_ASCEND_CACHE=tmp_path)
    assert "pip install pyelftools" in text


def test_a_plugin_with_other_symbols(python, tmp_path):
    """The plugin does not ask for a function that the sources implement. One file stands for all sources."""
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources/runtime_api.cc").write_text(
        'extern "C" int rtMalloc() { return 0; } extern "C" int rtOther() { return 0; }'
    )
    change = "library.SOURCES = library.Path('sources')"
    text = told(python, tmp_path, change, VIRTUAL_ASCEND_CACHE=tmp_path)
    assert "does not ask for rtOther, which" in text and "unchanged" in text


def test_no_program(python, tmp_path):
    done = start(python, "-m", "virtual_ascend", "--seed", "3", cwd=tmp_path)
    assert done.returncode == 2 and "no program" in done.stderr
    done = on_card(python, cwd=tmp_path, options=("--cores", "31"))
    assert done.returncode == 2 and "choose from 32, 30" in done.stderr


def test_a_program_of_the_environment_comes_before_that_of_path(python, tmp_path):
    other = tmp_path / "pip"
    other.write_text("#!/bin/sh\necho another\n")
    other.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    text = said(start(python, "-m", "virtual_ascend", "--", "pip", "--version", cwd=tmp_path, PATH=path))
    assert "python 3.9" in text


def test_a_program_that_does_not_exist(python, tmp_path):
    done = start(python, "-m", "virtual_ascend", "--", "nonexistent-program", cwd=tmp_path)
    assert done.returncode == 2 and "nonexistent-program" in done.stderr
