"""Show faults of MindSpore releases that the package works around or refuses. No program imports the package.

A test fails if a release does not behave as this list says: then a workaround may be superfluous, or another release
needs it.
"""

import re
from pathlib import Path

import mindspore as ms
import pytest

PAGE = Path(__file__).resolve().parents[4] / "docs/mindspore_versions.md"
PROGRAMS = sorted((Path(__file__).parent / "mindspore_faults").glob("[!_]*.py"))
NEW = {  # in 2.7, and still in 2.10
    *("bprop_under_recompute", "exception_in_a_cast_cell", "jit_bprop_of_several_calls", "long_softmax_in_float16"),
    *("second_derivative_of_matmul", "softmax_of_a_hidden_row"),
}
OLD = {  # in every release
    *("bprop_of_another_custom", "nan_in_relu", "numpy_memory_read_late", "slice_assignment_to_a_parameter"),
}
WRONG = {
    "2.0": {program.stem for program in PROGRAMS} - NEW - {"index_after_exception"},
    "2.7": OLD | NEW | {"gradient_of_masked_fill", "traced_tuples"},
    "2.10": OLD | NEW | {"index_after_exception"},
}


@pytest.mark.system
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_the_faults_are_those_that_are_known(program, run_python):
    release = ms.__version__.rpartition(".")[0]
    if release not in WRONG:
        pytest.skip(f"nobody has looked at MindSpore {ms.__version__}; known are {', '.join(WRONG)}")
    verdict = run_python(str(program)).splitlines()[-1]
    assert verdict.partition(":")[0] == ("wrong" if program.stem in WRONG[release] else "right"), verdict


def test_the_page_has_a_row_for_every_program_with_the_versions_it_shows() -> None:
    rows = re.findall(r"^\| ([\d., ]+) \|.*\| `(\w+)\.py` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    on_page = {program: set(versions.split(", ")) for versions, program in rows}
    assert len(rows) == len(on_page)
    assert on_page == {one.stem: {release for release in WRONG if one.stem in WRONG[release]} for one in PROGRAMS}
