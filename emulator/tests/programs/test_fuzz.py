"""Random legal programs: the compiled engine against the naive interpreter."""

import sys
import warnings

import numpy as np
import pytest
import tikemu
from tikemu import TikWarning, dump

from emulator.tests.support import naive
from emulator.tests.support.fuzz import Campaign
from emulator.tests.support.random_program import Generator

#: The naive interpreter needs half a second for one; the campaign below, with -m fuzz, runs thousands.
PROGRAMS = 20
CAMPAIGN = Campaign("tikemu", "emulator.tests.programs.test_fuzz", 10_000, 200, ("emulator/tikemu", "emulator/tests"))


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_random_program(soc, seed):
    check_program(seed)


@CAMPAIGN.params()
def test_random_programs(soc, first):
    CAMPAIGN.run(first, check_program)


def check_program(seed):
    """Compare every way to run a random program with the naive interpreter."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TikWarning)
        generator = Generator(seed)
        feeds = generator.feeds()
        result = tikemu.run(generator.tik, feeds)
        alone = tikemu.run(generator.tik, feeds, numerics=False)
        plain = tikemu.run(generator.tik, feeds, timing=False)
        expected = naive.run(generator.tik._recorder.program, feeds)
        again = tikemu.run(generator.tik, feeds, timing=False)
    for name, array in result.outputs.items():
        np.testing.assert_array_equal(array.view(np.uint8), expected[name].view(np.uint8), dump(generator.tik))
        np.testing.assert_array_equal(array.view(np.uint8), plain.outputs[name].view(np.uint8))
        np.testing.assert_array_equal(array.view(np.uint8), again.outputs[name].view(np.uint8))
    assert alone.cycles == result.cycles > 0
    assert alone.instructions == result.instructions and alone.pipes == result.pipes
    assert alone.events_in_flight == result.events_in_flight


def test_random_programs_cover_the_language(soc, quiet):
    """The generator reaches every kind of statement and most instructions of the naive interpreter."""
    text = "".join(dump(Generator(seed).tik) for seed in range(2 * PROGRAMS))
    for word in (
        *("thread_num=2", "block_num=2", "else", "break", "continue", "scope", "vec_add", "vadd", "vec_conv", "vcmax"),
        *("vec_sel", "vec_trans", "data_move", " in L1", "any(", "not(", "as uint64", "scalar a"),
    ):
        assert word in text, word


if __name__ == "__main__":
    tikemu.frontend.platform_info.set_current_compile_soc_info("Ascend910A")
    check_program(int(sys.argv[2]))
