"""Nothing of this package prints at import or at a first call, and MindSpore warns of no more than without it."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

PROGRAMS = Path(__file__).parent / "support"


def places(lines: list[str]) -> set[str]:
    """Where in MindSpore's sources the warnings among the lines come from."""
    found = (re.search(r"\[mindspore/\S+:\d+\]", line) for line in lines)
    return {match[0] for match in found if match}


def test_nothing_prints_at_import_or_at_a_first_call(run_python):
    control, program = (
        run_python(str(PROGRAMS / name), errors=True).splitlines() for name in ("quiet_control.py", "quiet_program.py")
    )
    assert [line for line in program if not places([line]) & places(control)] == []
