"""Few queries against many keys: the pass that goes by chunks of keys."""

import numpy as np
import pytest
from flash_attention.backends.cpu import library
from flash_attention.call import AttentionRules, Call

from tests.train.flash_attention.support.arrays import random
from tests.train.flash_attention.ut.native.support.calls import stored, values

SEQ_K = 600
# Rules of keys for two queries and so many keys: fields of the call, inputs that hide keys, inputs that change nothing.
HIDDEN = np.isin(np.arange(SEQ_K), [7, *range(40, 100), 300])
MASK = {"mask_shape": (1, 1, 1, SEQ_K), "mask_dtype": "bool"}
BIAS = {"bias_shape": (1, 1, 1, SEQ_K), "bias_dtype": "float32"}
SLOPES = {"rules": AttentionRules(alibi=True), "slopes_shape": (4,)}
IDS = np.zeros((1, 2), np.int32)
KEY_RULES = {
    "mask": (MASK, {"mask": HIDDEN.reshape(1, 1, 1, -1)}, {"mask": np.zeros((1, 1, 1, SEQ_K), bool)}),
    "segments": (
        {"segments": True},
        {"segment_ids": IDS, "kv_segment_ids": HIDDEN[None].astype(np.int32)},
        {"segment_ids": IDS, "kv_segment_ids": np.zeros((1, SEQ_K), np.int32)},
    ),
    "bias": (
        BIAS,
        {"bias": np.where(HIDDEN, -np.inf, 0.0).astype(np.float32).reshape(1, 1, 1, -1)},
        {"bias": np.zeros((1, 1, 1, SEQ_K), np.float32)},
    ),
}


def decode(call, query, key, value, **inputs):
    """Return the output and logsumexp of the kernel."""
    tensors = (stored(array, call.dtype) for array in (query, key, value))
    output, logsumexp = library.forward(call, *tensors, **inputs)
    return values(output), logsumexp


def tensors_of(heads=4, kv_heads=2, seq_q=2, seq_k=SEQ_K, head_dim=40, batch=1):
    """Return random query, key and value."""
    shapes = (batch, heads, seq_q, head_dim), *((batch, kv_heads, seq_k, head_dim),) * 2
    return [random(*shape, seed=seed) for seed, shape in enumerate(shapes)]


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


@pytest.mark.parametrize("rule", KEY_RULES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_rules_of_keys_take_the_same_pass(isa, dtype, rule):
    """A mask, segments or a bias that change nothing change no bit, and no other pass adds in this order."""
    sizes = {"batch": 1, "heads": 4, "kv_heads": 2, "seq_q": 2, "seq_k": SEQ_K, "head_dim": 40, "dtype": dtype}
    fields, _, nothing = KEY_RULES[rule]
    tensors = tensors_of()
    # A bias and slopes take logarithms of base e.
    without = (SLOPES, {"bias": np.zeros(4, np.float32)}) if rule == "bias" else ({}, {})
    expected = decode(Call(**sizes, **without[0]), *tensors, **without[1])
    for result, other in zip(decode(Call(**sizes, **fields), *tensors, **nothing), expected):
        np.testing.assert_array_equal(result, other)


@pytest.mark.parametrize("seq_q", [2, 10])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_keys_hidden_by_a_mask_may_hold_anything(isa, dtype, seq_q):
    """Head 1 sees every third key, the others every second key, and nobody sees the last tiles."""
    sizes = {"batch": 1, "heads": 4, "kv_heads": 1, "seq_q": seq_q, "seq_k": SEQ_K, "head_dim": 24, "dtype": dtype}
    call = Call(**sizes, mask_shape=(1, 4, 1, SEQ_K), mask_dtype="bool")
    mask = np.stack([np.arange(SEQ_K) % (3 if head == 1 else 2) != 0 for head in range(4)]).reshape(1, 4, 1, -1)
    mask[:, :, :, 480:] = True
    tensors = tensors_of(4, 1, seq_q, head_dim=24)
    expected = decode(call, *tensors, mask=mask)
    hidden = mask.all(axis=(0, 1, 2))
    for bad in (np.nan, np.inf):
        for array in tensors[1:]:
            array[:, :, hidden] = bad
        for result, other in zip(decode(call, *tensors, mask=mask), expected):
            np.testing.assert_array_equal(result, other)
    tensors[2][:, :, 2] = np.nan  # of head 1 no row sees it
    output, _ = decode(call, *tensors, mask=mask)
    np.testing.assert_array_equal(output[:, 1], expected[0][:, 1])
    assert np.isnan(output[:, [0, 2, 3]]).all()


@pytest.mark.parametrize("rule", KEY_RULES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_rules_of_keys_leave_a_head_and_a_sequence_their_bits(isa, threads, dtype, rule):
    """Alone, in a group, in a batch, on one thread and on three."""
    fields, given, nothing = KEY_RULES[rule]
    sizes = {"seq_q": 2, "seq_k": SEQ_K, "head_dim": 40, "dtype": dtype}
    query, key, value = tensors_of(4, 1, batch=2)
    inputs = {name: np.concatenate([given[name], nothing[name]]) for name in given}
    shapes = {name: (2, *shape[1:]) for name, shape in fields.items() if name.endswith("_shape")}
    both = Call(batch=2, heads=4, kv_heads=1, **sizes, **{**fields, **shapes})
    threads(1)
    expected = decode(both, query, key, value, **inputs)
    threads(3)
    for result, other in zip(decode(both, query, key, value, **inputs), expected):
        np.testing.assert_array_equal(result, other)
    for item, own in enumerate((given, nothing)):
        for head in range(4):
            one = Call(batch=1, heads=1, kv_heads=1, **sizes, **fields)
            tensors = query[item : item + 1, head : head + 1], key[item : item + 1], value[item : item + 1]
            for result, other in zip(decode(one, *tensors, **own), expected):
                np.testing.assert_array_equal(result, other[item : item + 1, head : head + 1])
