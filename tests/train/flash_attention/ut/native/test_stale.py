"""Stale memory: results do not depend on what the kernel's scratch holds from earlier calls."""

import numpy as np
import pytest
from flash_attention.call import Call

from tests.train.flash_attention.support.arrays import random
from tests.train.flash_attention.support.problems import make_problem
from tests.train.flash_attention.ut.native.support.calls import run


def problem_of(seq_q, seq_k, **more) -> Call:
    """Return a problem of one head."""
    return make_problem(batch=1, heads=1, seq_q=seq_q, seq_k=seq_k, head_dim=32, **more)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("left_by", [np.nan, 1e30], ids=["nan", "large"])
def test_key_gradients_after_an_ugly_call(isa, dtype, left_by, monkeypatch):
    """Keys to the right of the last row's keys get zeros if the number of rows is odd, and not stale scratch."""
    monkeypatch.delenv("FLASH_ATTENTION_CPU_POISON")
    whole = problem_of(128, 128, dtype=dtype)
    ugly = np.full(whole.shape_query(), left_by if dtype != "float16" else np.nan, np.float32)
    for seq_q, more in ((33, {"causal": True}), (1, {"causal": True}), (65, {"window_right": 9})):
        run(whole, ugly, ugly, ugly, ugly)
        problem = problem_of(seq_q, 150, dtype=dtype, **more)
        query, key = problem.shape_query(), problem.shape_key()
        results = run(problem, *(random(*shape, seed=seed) for seed, shape in enumerate((query, key, key, query))))
        seen = problem.band.keys(seq_q - 1)[1]
        for name, gradient in zip(("d_key", "d_value"), results[3:]):
            assert not gradient[:, :, seen:].any(), f"{name} with {seq_q} rows"
