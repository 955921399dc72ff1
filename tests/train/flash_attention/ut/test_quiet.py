"""Test that the package prints nothing and MindSpore warns no more than without it. Import and a first call are
tested.
"""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

PROGRAMS = Path(__file__).parent / "support"


def places(lines: list[str]) -> set[str]:
    """Return the places in MindSpore's sources that warnings among the lines come from."""
    found = (re.search(r"\[mindspore/\S+:\d+\]", line) for line in lines)
    return {match[0] for match in found if match}


def test_nothing_prints_at_import_or_at_a_first_call(run_python):
    control, program = (
        run_python(str(PROGRAMS / name), errors=True).splitlines() for name in ("quiet_control.py", "quiet_program.py")
    )
    assert [line for line in program if not places([line]) & places(control)] == []
