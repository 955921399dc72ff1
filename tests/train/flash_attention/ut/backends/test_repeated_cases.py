"""Shared cases called again and again with other data, in PYNATIVE and in graphs.

MindSpore and the backends keep what they made for a first call.
"""

from dataclasses import replace

import pytest
from flash_attention.backends.tik.limits import refuse_on_910

from tests.train.flash_attention.support import case_list, cases
from tests.train.flash_attention.support.run import run_case

CALLS = 3
# Every kind of optional input, a call that decodes, and heads that share keys.
CASES = case_list.params(lambda case: case_list.daily(case, "again"), dtype="float16")


@pytest.mark.daily(
    "pynative-*-cpu", "pynative-*-emulator", "graph-*-heads-*-cpu", "graph-*-drop0.5-cpu", "graph-*-prefix-cpu"
)
@pytest.mark.parametrize("backend", ("cpu", "emulator", "math"))
@pytest.mark.parametrize("case", CASES)
def test_calls_with_other_data(case, backend, mode):
    if backend == "emulator" and refuse_on_910(case.problem) is not None:
        pytest.skip("not on a 910")
    if mode == "graph" and backend != "cpu":
        pytest.skip("what its graphs compute is tested by fewer cases")
    for draw in range(CALLS):
        drawn = replace(case, draw=draw)
        cases.check(drawn, run_case(drawn, backend))
