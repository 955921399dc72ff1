"""Test the shared cases on the TIK operators, forward and gradients, as users call them.

On backend emulator, strict; with --device ascend the same tests on backend tik.
"""

import mindspore as ms
import pytest
from flash_attention.dropout import philox

from tests.train.flash_attention.support import case_list, cases
from tests.train.flash_attention.support.run import run_case


@pytest.fixture
def run_here(device):
    """Run a case on the device that --device names."""
    if device == "emulator":
        pytest.importorskip("tikemu")
        return lambda case: run_case(case, "emulator")
    ms.set_context(device_target="Ascend")

    def run(case):
        # A device draws its own bits, but the truth knows only the seed's bits.
        bits = {"keep_bits": philox.keep_bits(case.call, cases.SEED)} if case.dropout else {}
        return run_case(case, "tik", **bits)

    return run


OF_EVERY_DAY = case_list.params(
    case_list.covering(case_list.rules_of, case_list.in_float16(case_list.on_a_card)).__contains__, dtype="float16"
)


@pytest.mark.spread
@pytest.mark.parametrize("case", OF_EVERY_DAY)
def test_representative_cases(case, mode, run_here):
    cases.check(case, run_here(case))


@pytest.mark.slow
@pytest.mark.parametrize("case", case_list.params(case_list.on_a_card, dtype="float16"))
def test_all_cases(case, run_here):
    cases.check(case, run_here(case))
