"""The shared case list over the backends of this machine: output, logsumexp and every gradient against the truth."""

from dataclasses import replace

import mindspore as ms
import numpy as np
import pytest
from flash_attention.dropout import philox

from tests.train.flash_attention.support import case_list, cases
from tests.train.flash_attention.support.cases import Case
from tests.train.flash_attention.support.modes import MODES_AND_BACKENDS, in_mode
from tests.train.flash_attention.support.random_cases import random_case
from tests.train.flash_attention.support.run import run_case

BACKENDS = ("math", "cpu")
# Beside these the TIK operators, which take float16 alone.
AND_EMULATOR = (
    *MODES_AND_BACKENDS,
    *(pytest.param(mode, "emulator", marks=pytest.mark.system) for mode in ("graph", "pynative")),
)
DROPOUT = Case(batch=2, heads=4, kv_heads=2, seq_q=70, seq_k=45, mask="causal", dropout=0.3, dtype="float32")


@pytest.mark.parametrize("case", case_list.params(everyday=case_list.chosen_by(case_list.rules_by_dtype).__contains__))
def test_math(case):
    cases.check(case, run_case(case, "math"))


# The kernel alone has every pair of values: native/test_cases.py.
@pytest.mark.parametrize(
    "case", case_list.params(everyday=case_list.chosen_by(case_list.values_by_dtype).__contains__, asynchronous=4)
)
def test_cpu(case):
    cases.check(case, run_case(case, "cpu"))


@pytest.mark.parametrize(("backend", "count"), (("math", 6), ("cpu", 14)))
def test_random_cases(backend, count):
    for seed in range(2_000_000, 2_000_000 + count):
        case = random_case(seed, longest=80)
        cases.check_random(case, run_case(case, backend))


def in_graphs() -> list:
    """Return backends and cases. Cases on backend math are fewer, because they compile for seconds."""
    return [
        pytest.param(backend, *case.values, id=f"{backend}-{case.id}", marks=case.marks)
        for backend, one_in in (("math", 160), ("cpu", 40))
        for case in case_list.params(everyday=lambda case, one_in=one_in: case_list.sample(case, one_in))
    ]


@pytest.mark.parametrize(("backend", "case"), in_graphs())
def test_in_a_graph(case, backend):
    ms.set_context(mode=ms.GRAPH_MODE)
    cases.check(case, run_case(case, backend))


@pytest.mark.spread
@pytest.mark.parametrize(("mode", "backend"), AND_EMULATOR, indirect=["mode"])
def test_a_seed_and_its_bits_given_are_the_same(backend, mode):
    # Of a rate that 16 bits hold: given decisions are divided by 1 - rate, drawn ones by the share that is kept.
    case = replace(DROPOUT, dropout=0.25, dtype="float16" if backend == "emulator" else DROPOUT.dtype)
    by_seed = run_case(case, backend)
    by_bits = run_case(case, backend, keep_bits=philox.keep_bits(case.call, cases.SEED))
    cases.assert_same(by_bits, by_seed)


@pytest.mark.spread
@pytest.mark.parametrize(("mode", "backend"), MODES_AND_BACKENDS, indirect=["mode"])
def test_seeds_are_taken_modulo_two_to_the_32(backend, mode):
    expected = run_case(DROPOUT, backend, seed=(5, 7)).output
    np.testing.assert_array_equal(run_case(DROPOUT, backend, seed=(5 + (9 << 32), 7 - (1 << 32))).output, expected)
    assert np.abs(run_case(DROPOUT, backend, seed=(7, 5)).output - expected).max() > 0.1


@pytest.mark.asynchronous
@pytest.mark.spread
@pytest.mark.parametrize(("mode", "backend"), AND_EMULATOR, indirect=["mode"])
def test_two_runs_are_bit_equal(backend, mode):
    """Runs of the operators and the native kernel are bit-equal in both modes."""
    case = Case(batch=2, heads=4, kv_heads=2, seq_q=300, seq_k=300, head_dim=64, mask="compact", dropout=0.1)
    case = replace(case, batch=1, seq_q=40, seq_k=45, alibi="computed") if backend == "emulator" else case
    with in_mode(mode if backend == "math" else "pynative"):
        first = run_case(case, backend)
    for _ in range(3 if backend == "cpu" else 1):
        cases.assert_same(run_case(case, backend), first)


CALLS = 2
AGAIN = case_list.params(case_list.covering(case_list.rules_of, case_list.in_float16()).__contains__, dtype="float16")


def again() -> list:
    """Return modes, backends and cases: graphs of backend cpu alone, and no case that a 910 refuses on the emulator."""
    return [
        pytest.param(mode, backend, *case.values, id=f"{mode}-{case.id}-{backend}", marks=case.marks)
        for mode, backend in (("graph", "cpu"), ("pynative", "cpu"), ("pynative", "emulator"), ("pynative", "math"))
        for case in AGAIN
        if backend != "emulator" or case_list.on_a_card(*case.values)
    ]


@pytest.mark.spread
@pytest.mark.parametrize(("mode", "backend", "case"), again(), indirect=["mode"])
def test_calls_with_other_data(mode, backend, case):
    for draw in range(CALLS):
        drawn = replace(case, draw=draw)
        cases.check(drawn, run_case(drawn, backend))
