"""Test forward passes in several threads that meet new shapes together. A fresh process has seen no shape."""

from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "support/thread_calls.py"


@pytest.mark.system
@pytest.mark.spread
@pytest.mark.parametrize(("threads", "calls"), [(4, 60), (2, 500), (3, 350), (8, 130)])
def test_threads_that_meet_new_shapes_get_their_own_results(run_python, threads, calls):
    printed = run_python(str(PROGRAM), str(threads), str(calls)).splitlines()[-1]
    assert printed == f"{threads * calls} calls in {threads} threads, 0 wrong []"
