"""Tracebacks and warnings show the user's lines, and each of them once."""

import os
import re
import subprocess
import sys
import traceback
import warnings
from pathlib import Path

import numpy as np
import pytest
import tikemu
from tikemu import TikError, TikWarning, tik

from emulator.tests.support.strict_programs import ub

OWN = str(Path(tikemu.__file__).parent)
_FEED = {"x": np.zeros(128, np.float16)}


def _gm(kernel):
    """Return a vector in global memory."""
    return kernel.Tensor("float16", (128,), tik.scope_gm, "x")


def _misses_its_tensor(kernel):
    """Run a program with a second move that ends behind its tensor."""
    x, data = _gm(kernel), ub(kernel, "data", 128)
    with kernel.for_range(0, 3) as row:
        kernel.data_move(data, x[row * 64], 0, 1, 8, 0, 0)
    kernel.BuildCCE("misses", [x], [x])
    return tikemu.run(kernel, _FEED)


def _debugs_what_it_has_not(kernel):
    """Run a program in the debugger with an input that it lacks."""
    x = _gm(kernel)
    kernel.BuildCCE("debugs", [x], [x])
    return kernel.tikdb.start_debug({"z": 3}, False)


def _enters_else_alone(kernel):
    """Open else_scope without if_scope."""
    with kernel.else_scope():
        pass


MISTAKES = {
    "range": lambda kernel: kernel.data_move(ub(kernel, "data", 128), _gm(kernel), 0, 1, 10**7, 0, 0),
    "arguments": lambda kernel: kernel.vec_mul(3),
    "unknown": lambda kernel: kernel.vec_multiply(3),
    "unsupported": lambda kernel: kernel.vreducev2(1),
    "context": _enters_else_alone,
    "run": _misses_its_tensor,
    "feed": lambda kernel: tikemu.run(kernel, {}),
    "debug": _debugs_what_it_has_not,
}


def frames(mistake, kernel):
    """Return the traceback of a mistake, from this line on."""
    with pytest.raises(TikError) as caught:
        MISTAKES[mistake](kernel)
    return traceback.extract_tb(caught.value.__traceback__)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_traceback_has_one_frame_of_the_emulator(mistake, kernel):
    own = [frame for frame in frames(mistake, kernel) if frame.filename.startswith((OWN, "<tikemu"))]
    assert len(own) == 1 and frames(mistake, tik.Tik(disable_debug=False))[-1].filename.startswith(OWN)


def test_a_traceback_is_whole_where_somebody_asks_for_it(kernel, monkeypatch):
    monkeypatch.setenv("TIKEMU_TRACEBACK", "full")
    assert len([frame for frame in frames("run", kernel) if frame.filename.startswith(OWN)]) > 5


def test_other_errors_keep_their_traceback(kernel):
    """An error that is not about the program does not point at the user's line."""

    class Broken:
        def __index__(self):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        ub(kernel, "data", 128)[Broken()]
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "__index__"


def _questionable(kernel):
    """Record a call that the documents do not list."""
    data = ub(kernel, "data", 64, "int32")
    kernel.vec_adds(8, data, data, 1, 1, 8, 8)


@pytest.mark.parametrize("told", ("recording", "running", "shape", "chip"))
def test_a_warning_shows_its_line_once(told, kernel, monkeypatch):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if told == "recording":
            _questionable(kernel)
        elif told == "running":
            _built(kernel)
            kernel.tikdb.start_debug(_FEED, True)
        elif told == "shape":
            _built(kernel)
            tikemu.run(kernel, {"x": np.zeros((2, 64), np.float16)})
        else:
            monkeypatch.setattr("tikemu.frontend.platform_info._selection", None)
            monkeypatch.setattr("tikemu.frontend.platform_info._assumed", False)
            tik.Tik()
    (warning,) = (one for one in caught if issubclass(one.category, TikWarning))
    assert warning.filename == __file__
    printed = warnings.formatwarning(warning.message, warning.category, warning.filename, warning.lineno)
    assert printed.count(Path(__file__).name) == 1 and len(printed.splitlines()) == 2
    assert re.search(r"vec_adds\(8|start_debug|tikemu\.run\(|tik\.Tik\(\)", printed.splitlines()[1])


def _built(kernel):
    """Build a program that does nothing."""
    x = _gm(kernel)
    kernel.BuildCCE("built", [x], [x])


def test_an_uncaught_error_is_short(tmp_path):
    """The traceback has the program's lines, one line of the emulator and the message, as Python prints them."""
    program = tmp_path / "program.py"
    program.write_text(
        "import tikemu\ntikemu.install(soc='Ascend910A')\nfrom tbe import tik\nkernel = tik.Tik()\n"
        "kernel.Tensor('float61', (1,), tik.scope_gm, 'x')\n",
        encoding="utf-8",
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(OWN).parent)}
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert [line for line in done.stderr.splitlines() if line.startswith("  File ")][0].endswith("line 5, in <module>")
    assert done.stderr.count("  File ") == 2 and f"at {program}:5" in done.stderr
