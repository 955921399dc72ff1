"""Test the shared cases on the TIK operators, forward and gradients, as users call them.

On backend emulator, strict; with --device ascend the same tests on backend tik.
"""

import mindspore as ms
import pytest
from flash_attention.backends.tik.limits import refuse_on_910
from flash_attention.dropout import philox

from tests.train.flash_attention.support import case_list, cases
from tests.train.flash_attention.support.run import run_case

# Every rule of the layer at least once, the smallest shapes of the list that have it. Values and head dimensions at the
# borders are cases of the kernels' own tests, in ut/tik.
REPRESENTATIVE = (
    "B1-H2-S8-D40-float16-compact",
    "B1-H2-Sq70-Sk83-D1-float16-compact",
    "B1-H2-Sq127-Sk129-D40-float16-2d",
    "B1-H2-Sq97-Sk113-D32-float16-compact-window20_all-bottom_right-alibi.computed",
    "B1-H4-KV1-Sq45-Sk61-D32-float16-heads-alibi.computed",
    "B3-H4-KV2-Sq45-Sk61-D32-float16-alibi.given",
    "B2-H4-Sq45-Sk61-D32-float16-compact-alibi.bias_all",
    "B2-H2-S64-D80-float16-rows-alibi.given-drop0.5",
    "B2-H2-Sq60-Sk77-D32-float16-4d.float32",
    "B2-H2-S140-D32-float16-padding-drop0.2",
    "B1-H2-Sq300-Sk100-D32-float16-blocks0_0-drop0.1",
    "B2-H2-Sq70-Sk140-D32-float16-3d-shuffled",
)
# Of those whose inputs differ.
IN_A_GRAPH = (
    "B2-H4-Sq45-Sk61-D32-float16-compact-alibi.bias_all",
    "B2-H2-S64-D80-float16-rows-alibi.given-drop0.5",
    "B2-H2-Sq3-Sk300-D32v48-float16-causal-cap3.0-sinks-prefix",
)


@pytest.fixture
def run_here(device):
    """Run a case where --device says."""
    if device == "emulator":
        pytest.importorskip("tikemu")
        return lambda case: run_case(case, "emulator")
    ms.set_context(device_target="Ascend")

    def run(case):
        # A device draws its own bits, but the truth knows only the seed's bits.
        bits = {"keep_bits": philox.keep_bits(case.problem, cases.SEED)} if case.dropout else {}
        return run_case(case, "tik", **bits)

    return run


def named(names: tuple) -> list:
    """Return the float16 cases of these names."""
    return case_list.params(lambda case: str(case) in names, dtype="float16")


@pytest.mark.parametrize("names", (REPRESENTATIVE, IN_A_GRAPH))
def test_the_names_are_in_the_list(names):
    assert len(named(names)) == len(names)


@pytest.mark.parametrize("case", named(REPRESENTATIVE))
def test_representative_cases(case, run_here):
    cases.check(case, run_here(case))


@pytest.mark.parametrize("case", named(IN_A_GRAPH))
def test_in_a_graph(case, run_here):
    ms.set_context(mode=ms.GRAPH_MODE)
    cases.check(case, run_here(case))


@pytest.mark.slow
@pytest.mark.parametrize("case", case_list.params(lambda case: refuse_on_910(case.problem) is None, dtype="float16"))
def test_all_cases(case, run_here):
    cases.check(case, run_here(case))
