"""Shared cases called again and again with other data, in PYNATIVE and in graphs.

MindSpore keeps what it made for a first call, and so do backends.
"""

from dataclasses import replace

import pytest
from flash_attention.backends.tik.limits import refuse_on_910

from tests.train.flash_attention.support import case_list, cases
from tests.train.flash_attention.support.run import run_case

# Every kind of optional input, a call that decodes, and heads that share keys.
NAMES = (
    "B1-H4-KV1-Sq45-Sk61-D32-float16-heads-alibi.computed",
    "B3-H4-KV2-Sq45-Sk61-D32-float16-alibi.given",
    "B2-H4-Sq45-Sk61-D32-float16-compact-alibi.bias_all",
    "B2-H2-S64-D80-float16-rows-alibi.given-drop0.5",
    "B2-H2-Sq60-Sk77-D32-float16-4d.float32",
    "B2-H2-Sq3-Sk300-D32v48-float16-causal-cap3.0-sinks-prefix",
)
CALLS = 3


CASES = case_list.params(lambda case: str(case) in NAMES, dtype="float16")


def test_the_names_are_in_the_list():
    assert len(CASES) == len(NAMES)


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
