"""Results do not depend on what the process has computed before."""

import hashlib
import random
from dataclasses import replace

import numpy as np
import pytest
from flash_attention.backends.cpu import library
from flash_attention.call import Call

from tests.train.flash_attention.support.cases import Case
from tests.train.flash_attention.support.random_cases import random_case
from tests.train.flash_attention.ut.native.support.calls import instruction_set, run, run_case

pytestmark = pytest.mark.system

ISAS = library.instruction_sets()
SEEDS = range(5_000_000, 5_000_120)


def case_of(seed: int) -> Case:
    """Return a random case. Every other case has an odd number of rows, and keys to the right of all that they see."""
    case = random_case(seed, longest=200)
    if seed % 2 == 0:
        return case
    rows = 2 * (seed % 61) + 1
    odd = {"seq_q": rows, "seq_k": rows + 16 + seed % 97, "mask": "causal", "mask_dtype": "uint8"}
    return replace(case, **odd, alignment="top_left", dtype="bfloat16")


def digest(seed: int) -> str:
    """Hash all bits of a case's results, on an instruction set chosen by its seed."""
    with instruction_set(ISAS[seed // 2 % len(ISAS)]):
        results = run_case(case_of(seed))
    bits = b"".join(np.ascontiguousarray(array).tobytes() for array in results.named().values())
    return hashlib.sha256(bits).hexdigest()


def print_digests(seeds: list) -> None:
    """Print digests, in a process of its own with fresh memory."""
    for seed in seeds:
        print(seed, digest(seed))


def ugly_call() -> None:
    """Leave NaN and large numbers in the scratch of this thread, on all instruction sets."""
    for isa in ISAS:
        for dtype, left in (("bfloat16", 1e30), ("float32", np.nan)):
            call = Call(batch=1, heads=1, seq_q=256, seq_k=256, head_dim=256, dtype=dtype)
            ugly = np.full(call.shape_query(), left, np.float32)
            with instruction_set(isa):
                run(call, ugly, ugly, ugly, ugly)


@pytest.mark.parametrize("order", range(2))
def test_any_order_gives_the_bits_of_a_fresh_process(run_python, monkeypatch, order):
    """Fresh processes run some cases each. This process runs all in a random order, after calls that leave garbage."""
    monkeypatch.delenv("FLASH_ATTENTION_CPU_POISON", raising=False)
    part = list(SEEDS[order * 60 : order * 60 + 60])
    batches = [part[at : at + 20] for at in range(0, len(part), 20)]
    fresh = {}
    for batch in batches:
        printed = run_python("-c", f"from {__name__} import print_digests; print_digests({batch})")
        fresh.update((int(seed), value) for seed, value in map(str.split, printed.splitlines()))
    shuffled = random.Random(order).sample(part, len(part))
    assert sorted(fresh) == part
    for index, seed in enumerate(shuffled):
        if index % 10 == 0:
            ugly_call()
        assert digest(seed) == fresh[seed], f"seed {seed}: {case_of(seed)}"


def test_poison_changes_no_bit(monkeypatch):
    """Results are the same with garbage in all memory of the kernel before each task, and without."""
    for seed in SEEDS[::3]:
        monkeypatch.setenv("FLASH_ATTENTION_CPU_POISON", "1")
        poisoned = digest(seed)
        monkeypatch.setenv("FLASH_ATTENTION_CPU_POISON", "0")
        assert digest(seed) == poisoned, f"seed {seed}: {case_of(seed)}"
