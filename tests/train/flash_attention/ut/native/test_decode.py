"""Few queries against many keys: the pass that goes by chunks of keys."""

import numpy as np
import pytest
from flash_attention.backends.cpu import library
from flash_attention.call import AttentionRules, Call

from tests.train.flash_attention.support.arrays import random
from tests.train.flash_attention.ut.native.support.calls import stored, values


def decode(call, query, key, value):
    """Return the output and logsumexp of the kernel."""
    output, logsumexp = library.forward(call, *(stored(array, call.dtype) for array in (query, key, value)))
    return values(output), logsumexp


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_hidden_keys_may_hold_anything(isa, dtype):
    """Row i sees keys 590 + i - 200 .. 590 + i."""
    sizes = {"batch": 1, "heads": 2, "kv_heads": 1, "seq_q": 4, "seq_k": 600, "head_dim": 24}
    rules = AttentionRules(causal=True, causal_alignment="bottom_right", window_left=200)
    call = Call(**sizes, dtype=dtype, rules=rules)
    query, key, value = random(1, 2, 4, 24), random(1, 1, 600, 24, seed=1), random(1, 1, 600, 24, seed=2)
    expected = decode(call, query, key, value)
    for array in (key, value):
        array[:, :, :396] = np.nan
        array[:, :, 599] = np.inf  # the last row alone sees it
    output, logsumexp = decode(call, query, key, value)
    np.testing.assert_array_equal(output[:, :, :3], expected[0][:, :, :3])
    np.testing.assert_array_equal(logsumexp[:, :, :3], expected[1][:, :, :3])
    assert not np.isfinite(output[:, :, 3]).any()


def test_threads_do_not_change_bits(run_python):
    program = (
        "import numpy as np; from tests.train.flash_attention.ut.native.test_decode import *;"
        "p = Call(batch=2, heads=4, kv_heads=2, seq_q=2, seq_k=9000, head_dim=64, dtype='float32');"
        "r = decode(p, random(2, 4, 2, 64), random(2, 2, 9000, 64, seed=1), random(2, 2, 9000, 64, seed=2));"
        "print(r[0].tobytes().hex(), r[1].tobytes().hex())"
    )
    results = {run_python("-c", program, OMP_NUM_THREADS=str(threads)) for threads in (1, 2, 3)}
    assert len(results) == 1


def test_one_sequence_of_a_batch_has_the_bits_it_has_alone():
    many, one = (Call(batch=batch, heads=2, seq_q=1, seq_k=3000, head_dim=32, dtype="float32") for batch in (3, 1))
    tensors = random(3, 2, 1, 32), random(3, 2, 3000, 32, seed=1), random(3, 2, 3000, 32, seed=2)
    output, logsumexp = decode(many, *tensors)
    alone = decode(one, *(tensor[1:2] for tensor in tensors))
    np.testing.assert_array_equal(output[1:2], alone[0])
    np.testing.assert_array_equal(logsumexp[1:2], alone[1])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("head_dim", [64, 24])
def test_a_query_head_has_the_bits_of_a_group_of_its_own(isa, dtype, head_dim):
    """Small groups convert keys and values while they compute, large groups beforehand."""
    sizes = {"batch": 1, "kv_heads": 1, "seq_q": 1, "seq_k": 555, "head_dim": head_dim, "dtype": dtype}
    query, key, value = random(1, 11, 1, head_dim), *(random(1, 1, 555, head_dim, seed=seed) for seed in (1, 2))
    output, logsumexp = (
        np.concatenate(results, axis=1)
        for results in zip(*(decode(Call(heads=1, **sizes), query[:, h : h + 1], key, value) for h in range(11)))
    )
    for heads in (2, 3, 4, 5, 8, 9, 11):
        group = decode(Call(heads=heads, **sizes), query[:, :heads], key, value)
        np.testing.assert_array_equal(group[0], output[:, :heads])
        np.testing.assert_array_equal(group[1], logsumexp[:, :heads])
