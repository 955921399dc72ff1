"""The shared case list on every instruction set of this machine, against the float64 truth."""

import pytest
from flash_attention.backends.cpu import library
from flash_attention.call import LAYOUTS

from tests.train.flash_attention.support import case_list, cases
from tests.train.flash_attention.ut.native.support.calls import instruction_set, run_case

ISAS = library.instruction_sets()


# Each everyday case runs on all instruction sets; most of the list runs through MindSpore on the best one.
@pytest.mark.parametrize("case", case_list.params(everyday=lambda case: case_list.sample(case, 4)))
def test_case(case):
    for isa in ISAS:
        with instruction_set(isa):
            try:
                cases.check(case, run_case(case))
            except AssertionError as error:
                raise AssertionError(f"on {isa}: {error}") from None


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("head_dim", [7, 48])
def test_every_layout_gives_the_same_bits(isa, dtype, head_dim):
    case = cases.Case(
        batch=2, heads=4, kv_heads=2, seq_q=150, seq_k=201, head_dim=head_dim, dtype=dtype, mask="causal",
    )  # fmt: skip
    expected = run_case(case)
    for layout in LAYOUTS:
        cases.assert_same(run_case(case, layout), expected, f"of {layout}")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_everything_at_once(isa, dtype):
    """The case has several, partly filled tiles on both sides, and every rule for elements of the score matrix."""
    case = cases.Case(
        batch=2, heads=4, kv_heads=2, seq_q=300, seq_k=333, head_dim=72, dtype=dtype, mask="3d", window=(150, 20),
        alignment="bottom_right", alibi="bias", dropout=0.2,
    )  # fmt: skip
    cases.check(case, run_case(case))


def test_keys_that_only_rows_behind_the_last_would_see(isa):
    """The 5 rows see keys 0 to 63, whole vectors. A tile has room for more rows; keys only for these are not loaded."""
    case = cases.Case(seq_q=5, seq_k=140, window=(-1, 59), dtype="float32")
    cases.check(case, run_case(case))
