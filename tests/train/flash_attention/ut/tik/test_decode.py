"""The decoding kernels against float64, in strict mode: splits, row blocks, windows, pages, hostile numbers."""

import numpy as np
import pytest
from flash_attention.kernels.tik.decode import schedule
from flash_attention.kernels.tik.decode import tiling as tiling

from tests.train.flash_attention.support.calls import changed, make_kernel_problem
from tests.train.flash_attention.ut.tik.support.decoding import CAUSAL, Paged, check, run
from tests.train.flash_attention.ut.tik.support.passes import random_arrays

CONTIGUOUS = {
    "one short tile": make_kernel_problem(1, 1, 1, 40, 16, cores=1),
    "several pairs a core": make_kernel_problem(2, 4, 1, 300, 64, kv_heads=2, cores=1),
    "several cores a pair": make_kernel_problem(1, 2, 1, 300, 64, kv_heads=1, cores=3),
    "pairs across cores": make_kernel_problem(2, 4, 1, 300, 64, kv_heads=2, cores=3),
    "more cores than tiles": make_kernel_problem(1, 3, 1, 20, 48, kv_heads=3, cores=7),
    "more cores than tiles of a pair": make_kernel_problem(1, 1, 1, 70, 32, cores=9),
    "window": make_kernel_problem(2, 8, 3, 300, 64, kv_heads=2, cores=5, window_left=50, **CAUSAL),
    "both windows": make_kernel_problem(1, 2, 2, 1100, 128, cores=2, window_left=20, window_right=10),
    "window without keys": make_kernel_problem(1, 2, 4, 16, 32, cores=2, window_left=0, **CAUSAL),
    "128 rows": make_kernel_problem(1, 16, 16, 200, 128, kv_heads=2, cores=4, **CAUSAL),
    "row blocks of two sizes": make_kernel_problem(1, 19, 16, 70, 256, kv_heads=1, cores=4, causal=True),
    "more queries than keys": make_kernel_problem(1, 3, 5, 3, 48, cores=4, **CAUSAL),
    "soft cap and sinks": make_kernel_problem(1, 8, 2, 200, 64, kv_heads=2, cores=3, softcap=3.0, sinks=True, **CAUSAL),
    "sinks without keys": make_kernel_problem(1, 4, 3, 2, 32, cores=2, sinks=True, **CAUSAL),
    "alibi": make_kernel_problem(1, 8, 3, 700, 64, kv_heads=2, cores=3, alibi=True, **CAUSAL),
    "alibi on both sides": make_kernel_problem(1, 19, 16, 70, 256, kv_heads=1, cores=4, alibi=True, sinks=False),
    "wide values": make_kernel_problem(1, 4, 1, 300, 48, kv_heads=2, cores=3, value_dim=144),
    "narrow values": make_kernel_problem(1, 4, 2, 300, 192, kv_heads=2, cores=3, value_dim=128, **CAUSAL),
    "odd segment": make_kernel_problem(1, 4, 1, 333, 192, kv_heads=2, cores=2, scale=-0.3),
}


@pytest.mark.parametrize("name", CONTIGUOUS)
def test_contiguous_cache(tik, execute, name):
    problem = CONTIGUOUS[name]
    given = random_arrays(problem)
    check(problem, *given, *run(tik, execute, problem, *given)[:2])


PAGED = {
    "blocks of 16": ((70, 3, 0, 600), 16, 4, 2, 32, 1, {"cores": 5}),
    "odd blocks": ((70, 3, 0, 600), 24, 4, 2, 32, 3, {"cores": 3}),
    "empty ones at both ends": ((0, 7, 0, 0, 130, 0), 128, 6, 3, 64, 2, {"cores": 8, "window_left": 40}),
    "nothing at all": ((0, 0, 0), 24, 4, 2, 32, 3, {"cores": 3}),
    "tables longer than what is on chip at a time": ((70, 300), 17, 2, 1, 16, 1, {"cores": 2}),
}


@pytest.mark.parametrize("name", PAGED)
def test_paged_cache(tik, execute, name, monkeypatch):
    if "tables" in name:
        monkeypatch.setattr("flash_attention.kernels.tik.decode.tiling.WINDOW", 24)
        monkeypatch.setattr("flash_attention.kernels.tik.decode.load.WINDOW", 24)
        schedule.choose.cache_clear()
    lengths, block_size, heads, kv_heads, dim, seq_q, rules = PAGED[name]
    paged = Paged(lengths, block_size, heads, kv_heads, dim, seq_q, **rules)
    output, logsumexp, _ = run(tik, execute, paged.problem, paged.query, *paged.caches, pages=paged.pages)
    schedule.choose.cache_clear()
    for index, (key, value) in enumerate(zip(paged.keys, paged.values)):
        own = slice(index, index + 1)
        if not key.shape[1]:
            assert not output[own].any() and np.all(logsumexp[own] <= -3.4e38)
            continue
        problem = changed(paged.problem, batch=1, seq_k=key.shape[1])
        check(problem, paged.query[own], key[None], value[None], output[own], logsumexp[own])


def test_lengths_and_tables_are_data(tik, execute):
    """One kernel serves all steps: the second step has other lengths, and blocks in another order."""
    first = Paged((70, 40), 16, 4, 2, 32, cores=3)
    second = Paged((33, 64), 16, 4, 2, 32, cores=3)
    tables, caches = np.full_like(first.pages[0], 1 << 30), [np.full_like(cache, np.nan) for cache in first.caches]
    tables[:, : second.pages[0].shape[1]] = second.pages[0]
    for target, source in zip(caches, second.caches):
        target[: len(source)] = source
    output, _, _ = run(tik, execute, first.problem, first.query, *caches, pages=(tables, second.pages[1]))
    problem = changed(first.problem, batch=1, seq_k=33)
    key, value = second.keys[0][None], second.values[0][None]
    alone, _, _ = run(tik, execute, problem, first.query[:1], key, value)
    assert np.abs(output[:1] - alone).max() < 2e-3


@pytest.mark.parametrize("size", (8.0, 60.0, 700.0))
def test_large_logits_neither_saturate_nor_spoil(tik, execute, size):
    """Scores reach 60000 and more, and are not rounded."""
    problem = make_kernel_problem(1, 4, 2, 300, 64, kv_heads=2, cores=3, **CAUSAL)
    query, key, value = random_arrays(problem)
    query, key = (query * np.float16(size)).astype(np.float16), (key * np.float16(min(size, 60))).astype(np.float16)
    check(problem, query, key, value, *run(tik, execute, problem, query, key, value)[:2], factor=3.0)


def test_another_sequence_of_nan_spoils_none(tik, execute):
    paged = Paged((40, 30), 16, 2, 1, 32, cores=1)
    clean, _, _ = run(tik, execute, paged.problem, paged.query, *paged.caches, pages=paged.pages)
    for cache in paged.caches:
        cache[paged.pages[0][0, :3]] = np.inf
    spoilt, _, _ = run(tik, execute, paged.problem, paged.query, *paged.caches, pages=paged.pages, saturates=None)
    assert np.array_equal(clean[1], spoilt[1])


def test_two_runs_are_bit_equal(tik, execute):
    problem = CONTIGUOUS["pairs across cores"]
    given = random_arrays(problem)
    first, again = (run(tik, execute, problem, *given) for _ in range(2))
    assert np.array_equal(first[0], again[0]) and np.array_equal(first[1], again[1])


@pytest.mark.parametrize("rows", (1, 4, 8, 16, 64))
@pytest.mark.parametrize("dim", (16, 80, 128, 256))
def test_plans_fit_the_core(rows, dim):
    for seq_q in (1, 16):
        problem = make_kernel_problem(2, rows, seq_q, 5000, dim, kv_heads=1, pages=(80, 128), **CAUSAL)
        plan = schedule.choose(problem).plan
        assert plan.group_heads * seq_q <= plan.rows <= 128
        assert plan.segment * dim <= tiling.OPERAND and plan.rows * dim <= tiling.OPERAND


def test_what_the_kernels_lack_is_named():
    assert schedule.refuse(make_kernel_problem(1, 1, 17, 40, 16)) == "got 17 queries, allowed are 16"
    with pytest.raises(ValueError, match="got 129 queries, allowed are 128"):
        schedule.choose(make_kernel_problem(1, 1, 129, 140, 16))
    with pytest.raises(ValueError, match="got head_dim 24, allowed are multiples of 16"):
        schedule.choose(make_kernel_problem(1, 1, 1, 40, 16, value_dim=24))
    with pytest.raises(ValueError, match="got head_dim 40, allowed are multiples of 16"):
        schedule.choose(make_kernel_problem(1, 1, 1, 40, 40))
