"""Determinism: bit-equal results from run to run, with any number of threads, and from several threads at once."""

import concurrent.futures
import os
import signal
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from flash_attention.backends.cpu import library
from flash_attention.call import Call

from tests.train.flash_attention.support.cases import Case, assert_same
from tests.train.flash_attention.ut.native.support.calls import instruction_set, run, run_case

ISAS = library.instruction_sets()
CASES = [
    Case(heads=1, kv_heads=1, seq_q=900, seq_k=900, head_dim=48, dtype="float32", mask="causal"),
    Case(heads=1, kv_heads=1, seq_q=700, seq_k=500, head_dim=64, dtype="bfloat16", mask="3d", dropout=0.1),
    Case(heads=4, kv_heads=2, seq_q=400, seq_k=600, head_dim=40, dtype="float16", alibi="given", window=(200, 100)),
    # Key tiles take turns at the query tiles that they visit.
    Case(heads=2, kv_heads=1, seq_q=900, seq_k=800, head_dim=32, dtype="float32", block_mask="heads", density=0.2),
    # One bias for all batch elements: heads take turns.
    Case(batch=2, heads=2, seq_q=300, seq_k=300, head_dim=32, dtype="float32", alibi="bias"),
]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_any_number_of_threads(case, isa, threads):
    with instruction_set(isa):
        threads(1)
        expected = run_case(case)
        for count in (2, 3, 8):
            threads(count)
            assert_same(run_case(case), expected)


@pytest.mark.parametrize("bias_shape", [(3, 1, 300, 300), (1, 3, 300, 300), (1, 1, 300, 300), (1, 1, 1, 300)], ids=str)
def test_bias_gradients_that_heads_share(bias_shape, threads):
    """Heads or batch elements that share sums add to them in one order, and leave nothing out."""
    sizes = {"batch": 3, "heads": 3, "seq_q": 300, "seq_k": 300, "head_dim": 16}
    call = Call(**sizes, dtype="float32", bias_shape=bias_shape, bias_dtype="float32")
    random = np.random.default_rng(0)
    tensors = [random.standard_normal(call.shape_query()).astype(np.float32) for _ in range(4)]
    bias = random.standard_normal(bias_shape).astype(np.float32)
    full = replace(call, bias_shape=(3, 3, 300, 300))
    threads(1)
    expected = run(call, *tensors, bias=bias)[-1]
    whole = run(full, *tensors, bias=np.ascontiguousarray(np.broadcast_to(bias, full.bias_shape)))[-1]
    axes = tuple(axis for axis in range(4) if bias_shape[axis] == 1)
    np.testing.assert_allclose(expected, whole.sum(axes, np.float64, keepdims=True), rtol=1e-4, atol=1e-5)
    threads(8)
    for _ in range(10):
        np.testing.assert_array_equal(run(call, *tensors, bias=bias)[-1], expected)


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


def interrupted_call() -> None:
    """Run in a process of its own: two calls, the first with a Ctrl-C in its middle."""
    call = Call(batch=1, heads=2, seq_q=1500, seq_k=1500, head_dim=64, dtype="float32")
    tensors = [np.random.default_rng(i).standard_normal(call.shape_query()).astype(np.float32) for i in range(3)]
    expected, _ = library.forward(call, *tensors)
    interrupted = False
    try:
        # Inside, because the thread may be faster than its start.
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        for _ in range(1000):
            output, _ = library.forward(call, *tensors)
        time.sleep(10)
    except KeyboardInterrupt:
        interrupted = True
    assert interrupted
    output, _ = library.forward(call, *tensors)
    np.testing.assert_array_equal(output, expected)
    print("usable")


def test_interrupt(run_python):
    assert "usable" in run_python("-c", f"from {__name__} import interrupted_call; interrupted_call()")


def test_heads_whose_packed_keys_take_turns_in_memory():
    """Keys under a block mask are packed for some heads at a time: 9 MB each here."""
    call = Call(1, 8, 256, 8192, 128, dtype="float32", block_mask_shape=(1, 1, 2, 64), block_mask_tile=128)
    random = np.random.default_rng(0)
    query = random.standard_normal(call.shape_query(), np.float32)
    key, value = (random.standard_normal(call.shape_key(), np.float32) for _ in range(2))
    mask = (random.random(call.block_mask_shape) < 0.5).astype(np.uint8)
    together = library.forward(call, query, key, value, block_mask=mask)
    for head in range(8):
        alone = (np.ascontiguousarray(array[:, head : head + 1]) for array in (query, key, value))
        for result, expected in zip(
            together, library.forward(replace(call, heads=1, kv_heads=1), *alone, block_mask=mask)
        ):
            np.testing.assert_array_equal(result[:, head : head + 1], expected)
