"""The shared case list on every instruction set of this machine, against the float64 truth."""

from dataclasses import replace

import pytest
from flash_attention.backends.cpu import library

from tests.train.flash_attention.support import case_list, cases
from tests.train.flash_attention.support.cases import Case
from tests.train.flash_attention.ut.native.support.calls import instruction_set, run_case

ISAS = library.instruction_sets()


# Each everyday case runs on all instruction sets.
@pytest.mark.parametrize("case", case_list.params(everyday=case_list.chosen_by(case_list.pairs_of).__contains__))
def test_case(case):
    for isa in ISAS:
        with instruction_set(isa):
            try:
                cases.check(case, run_case(case))
            except AssertionError as error:
                raise AssertionError(f"on {isa}: {error}") from None


# Tiles on both sides, partly filled, under every rule for elements of the score matrix; then few queries on many keys.
END = {"alignment": "bottom_right"}
MORE = (
    Case(*(2, 4, 2, 300, 333, 72), mask="3d", window=(150, 20), alibi="bias", dropout=0.2, **END),
    # The 5 rows see keys 0 to 63, whole vectors. A tile has room for more rows; keys only for these are not loaded.
    Case(seq_q=5, seq_k=140, window=(-1, 59)),
    Case(batch=2, heads=6, kv_heads=2, seq_q=1, seq_k=1100, head_dim=40),
    Case(heads=4, kv_heads=1, seq_q=3, seq_k=700, head_dim=64, mask="causal", **END),
    Case(heads=2, kv_heads=2, seq_q=16, seq_k=1537, head_dim=7, window=(600, 5), **END),
    Case(heads=3, kv_heads=1, seq_q=5, seq_k=530, head_dim=128, mask="causal", alibi="computed", **END),
    Case(heads=2, kv_heads=2, seq_q=4, seq_k=600, head_dim=33, mask="causal"),
    # By tiles, if there are some, and the fewest queries that are.
    Case(heads=6, kv_heads=2, seq_q=11, seq_k=700, head_dim=72, mask="causal", **END),
    Case(heads=3, kv_heads=1, seq_q=9, seq_k=300, head_dim=64, softcap=5.0, sinks=True),
    # With rules for keys: of all heads, of each head, of each row.
    Case(batch=2, heads=6, kv_heads=2, seq_q=1, seq_k=700, head_dim=40, mask="padding"),
    Case(batch=2, heads=4, kv_heads=1, seq_q=3, seq_k=333, head_dim=64, mask="heads", sinks=True),
    Case(batch=2, heads=4, kv_heads=2, seq_q=16, seq_k=600, head_dim=72, mask="3d", alibi="bias_hiding"),
    Case(batch=2, heads=4, kv_heads=2, seq_q=12, seq_k=300, head_dim=40, alibi="hiding", softcap=5.0),
    Case(batch=2, heads=4, kv_heads=2, seq_q=5, seq_k=515, head_dim=33, segments="shuffled", alibi="given"),
    Case(batch=2, heads=2, kv_heads=2, seq_q=10, seq_k=520, head_dim=64, segments="documents", mask="rows", **END),
)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_more_cases(isa, dtype):
    for case in MORE:
        case = replace(case, dtype=dtype)
        cases.check(case, run_case(case))
