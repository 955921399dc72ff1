"""valgrind's memcheck: scratch that a task did not write decides nothing and reaches no result.

It knows instruction sets up to AVX2. A single case takes seconds, so the cases are small.
"""

import shutil
from pathlib import Path

import pytest

from tests.train.flash_attention.support import cases
from tests.train.flash_attention.support.cases import Case
from tests.train.flash_attention.support.random_cases import random_case
from tests.train.flash_attention.ut.native.support.calls import instruction_set, run_case
from tests.train.flash_attention.ut.native.support.remote import Remote, build_driver

VALGRIND = ["valgrind", "--quiet", "--error-exitcode=9", "--exit-on-first-error=yes"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        shutil.which("valgrind") is None or not Path("/usr/include/valgrind/memcheck.h").exists(),
        reason="needs valgrind and its headers",
    ),
]
RANDOM = 100
LARGEST = 30_000  # elements of query and key of a random case
CASES = [
    Case(batch=2, heads=2, kv_heads=1, seq_q=67, seq_k=150, head_dim=33, mask="3d", dropout=0.2, alibi="bias"),
    # These have keys that no row sees, rows that see nothing, and tiles with missing rows and columns.
    Case(heads=1, kv_heads=1, seq_q=33, seq_k=150, head_dim=17, dtype="bfloat16", mask="causal"),
    Case(heads=1, kv_heads=1, seq_q=139, seq_k=40, head_dim=16, dtype="float32", window=(10, 10), alibi="computed"),
    Case(heads=1, kv_heads=1, seq_q=131, seq_k=260, head_dim=9, dtype="float32", mask="causal", blocks=(0, 0)),
    Case(batch=2, heads=2, kv_heads=2, seq_q=1, seq_k=133, head_dim=1, dtype="float32", alibi="given", mask="padding"),
]


def small_cases() -> list:
    """Return the first random cases of little work."""
    chosen = []
    seed = 0
    while len(chosen) < RANDOM:
        case = random_case(seed, longest=200)
        seed += 1
        if case.batch * (case.heads * case.seq_q + case.kv_heads * case.seq_k) * case.head_dim <= LARGEST:
            chosen.append(case)
    return chosen


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """Return the driver, built with what valgrind wants."""
    flags = ("-O1", "-g", "-DFLASH_ATTENTION_MEMCHECK")
    return build_driver(tmp_path_factory.mktemp("memcheck"), flags=flags, isas=("avx2",))


@pytest.mark.parametrize("isa", ["avx2", "scalar"])
def test_no_undefined_memory_counts(driver, isa):
    kernel = Remote([*VALGRIND, str(driver)], OMP_NUM_THREADS="1", FLASH_ATTENTION_CPU_POISON="1")
    with instruction_set(isa):
        for case in CASES + small_cases():
            try:
                cases.check_random(case, run_case(case, kernel=kernel))
            except AssertionError as error:
                raise AssertionError(f"{case}: {error}") from None
    kernel.close()
