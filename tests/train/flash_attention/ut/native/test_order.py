"""Determinism: bit-equal results from run to run, with any number of threads, and from several threads at once."""

import concurrent.futures
import ctypes

import numpy as np
import pytest
from flash_attention.backends.cpu import library

from tests.train.flash_attention.cases import Case
from tests.train.flash_attention.ut.native.calls import instruction_set, run_case

ISAS = library.instruction_sets()
CASES = [
    Case(heads=1, kv_heads=1, seq_q=900, seq_k=900, head_dim=48, dtype="float32", mask="causal"),
    Case(heads=1, kv_heads=1, seq_q=700, seq_k=500, head_dim=64, dtype="bfloat16", mask="3d", dropout=0.1),
    Case(heads=4, kv_heads=2, seq_q=400, seq_k=600, head_dim=40, dtype="float16", alibi="given", window=(200, 100)),
    # One bias for all batch elements: heads take turns.
    Case(batch=2, heads=2, seq_q=300, seq_k=300, head_dim=32, dtype="float32", alibi="bias"),
]


@pytest.fixture
def threads():
    """Sets the number of OpenMP threads of this thread."""
    openmp = ctypes.CDLL("libgomp.so.1")
    before = openmp.omp_get_max_threads()
    yield openmp.omp_set_num_threads
    openmp.omp_set_num_threads(before)


def assert_same(actual, expected):
    for name, value in expected.named().items():
        np.testing.assert_array_equal(getattr(actual, name), value, err_msg=name)


@pytest.mark.parametrize("isa", dict.fromkeys((ISAS[0], ISAS[-1])))
@pytest.mark.parametrize("case", CASES, ids=str)
def test_any_number_of_threads(case, isa, threads):
    with instruction_set(isa):
        threads(1)
        expected = run_case(case)
        for count in (2, 3, 8):
            threads(count)
            assert_same(run_case(case), expected)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_many_runs(case, threads):
    threads(4)
    expected = run_case(case)
    for _ in range(20):
        assert_same(run_case(case), expected)


def test_calls_from_several_threads():
    expected = [run_case(case) for case in CASES]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            for actual, right in zip(pool.map(run_case, CASES), expected):
                assert_same(actual, right)
