"""The smoke test of `smoke.py` under the installed MindSpore."""

from pathlib import Path

import pytest

SMOKE = Path(__file__).parent / "support" / "smoke.py"


# Slow, because under this MindSpore each of its parts repeats another test. It is for other releases of MindSpore, and
# for environments without pytest.
@pytest.mark.slow
@pytest.mark.parametrize("backend", ("cpu", "math"))
def test_smoke(backend, run_python):
    printed = run_python(str(SMOKE), backend, OMP_NUM_THREADS="1")
    assert printed.splitlines()[-1].startswith("ok: the same losses everywhere")
    for mode in ("graph", "pynative"):
        assert printed.count(f" {backend} {mode} ") >= 6
