"""NaN, infinities and stale bits that no row sees; subnormal numbers that rows see."""

import numpy as np
import pytest
from flash_attention.call import Call

from tests.train.flash_attention.support.arrays import random
from tests.train.flash_attention.support.calls import make_call
from tests.train.flash_attention.ut.native.support.calls import run, stored, values

DTYPES = ("float32", "float16", "bfloat16")
RULES = {
    "causal": {"causal": True},
    "bottom_right": {"causal": True, "causal_alignment": "bottom_right"},
    "window": {"window_left": 20, "window_right": 5},
    "blocks": {"prev_blocks": 1, "next_blocks": 0, "tile": 64},
    "block_mask": {"block_mask_shape": (1, 1, 3, 4), "block_mask_tile": 64},
}
ONE_COLUMN = {"block_mask_shape": (1, 1, 5, 1), "block_mask_tile": 64}
TILES = np.array([[1, 0, 0, 0], [0, 1, 1, 0], [1, 1, 0, 0]], np.uint8)
NAMES = ("output", "logsumexp", "d_query", "d_key", "d_value", "d_bias")


def call_of(seq_q=150, seq_k=203, dtype="float32", **more) -> Call:
    """Return a call of two heads that share keys."""
    sizes = {"batch": 1, "heads": 2, "kv_heads": 1, "head_dim": 40}
    return make_call(seq_q=seq_q, seq_k=seq_k, dtype=dtype, **{**sizes, **more})


def tensors_of(call) -> dict:
    """Return random query, key, value and gradient of the output."""
    query, key = call.shape_query(), call.shape_key()
    shapes = {"query": query, "key": key, "value": key, "d_output": query}
    return {name: random(*shape, seed=seed) for seed, (name, shape) in enumerate(shapes.items())}


def visible(call) -> np.ndarray:
    """Return which keys each row sees."""
    if call.block_mask_shape is None:
        return call.band.dense()
    return np.kron(TILES, np.ones((64, 64), np.uint8))[: call.seq_q, : call.seq_k] != 0


def named(call, tensors, **optional) -> dict:
    """Return the results of the kernel by name."""
    if call.block_mask_shape is not None:
        optional["block_mask"] = TILES[None, None]
    results = run(call, tensors["query"], tensors["key"], tensors["value"], tensors["d_output"], **optional)
    return dict(zip(NAMES, results))


def assert_clean(actual, expected, rows, keys):
    """Check equality bit by bit in these query rows and keys."""
    for name, result in actual.items():
        axis = keys if name in ("d_key", "d_value") else rows
        if name == "d_bias":
            result, other = result[:, :, rows], expected[name][:, :, rows]
        else:
            result, other = result[:, :, axis], expected[name][:, :, axis]
        np.testing.assert_array_equal(result, other, err_msg=name)


@pytest.mark.spread(2)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_that_cannot_see_a_bad_key(isa, dtype, rules, bad):
    """Outputs and gradients stay the same bit for bit; rows that see the key are not finite."""
    call = call_of(dtype=dtype, **RULES[rules])
    tensors = tensors_of(call)
    clean = named(call, tensors)
    # No row sees key 201, in a tile of its own kind, with a window, a block mask and top_left.
    for tensor, key in (("key", 67), ("value", 67), ("value", 131), ("key", 201), ("value", 201)):
        spoiled = {**tensors, tensor: tensors[tensor].copy()}
        spoiled[tensor][:, :, key, 3] = bad
        seen = visible(call)[:, key]
        # Keys that a row sees together with the bad key get the row's gradient.
        touched = visible(call)[seen].any(axis=0)
        actual = named(call, spoiled)
        assert_clean(actual, clean, ~seen, ~touched)
        if tensor == "value" and seen.any():
            assert not np.isfinite(values(actual["output"])[:, :, seen, 3]).any()
            np.testing.assert_array_equal(np.delete(actual["output"], 3, axis=3), np.delete(clean["output"], 3, axis=3))


@pytest.mark.parametrize("infinite", ["query", "key"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_infinity_meets_whole_numbers(isa, dtype, infinite):
    """An infinite key that every query makes a score of -inf is a hidden key, whatever the bits of the queries. A row
    with an infinite query hides every key likewise, and changes no other row.
    """
    call = call_of(dtype=dtype, mask_shape=(1, 1, 150, 203), mask_dtype="bool")
    tensors = tensors_of(call)
    hidden = np.zeros((1, 1, 150, 203), bool)
    ordinary, row = ("key", 61) if infinite == "query" else ("query", 67)
    tensors[ordinary][..., 3] = -np.linspace(1, 2, tensors[ordinary].shape[2], dtype=np.float32)
    masked = {**tensors, infinite: tensors[infinite].copy()}
    tensors[infinite][:, :, row, 3] = np.inf
    shown = named(call, tensors, mask=hidden)
    (hidden[0, 0] if infinite == "query" else hidden[0, 0].T)[row] = True
    expected = named(call, masked, mask=hidden)
    for name in ("output", "logsumexp"):
        np.testing.assert_array_equal(shown[name], expected[name], err_msg=name)


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_keys_that_a_bad_row_cannot_see(isa, dtype, rules):
    """A NaN in a row of query or d_output stays out of other rows, and of the gradients of keys out of its sight."""
    call = call_of(dtype=dtype, **RULES[rules])
    tensors = tensors_of(call)
    clean = named(call, tensors)
    for tensor, row in (("query", 61), ("d_output", 61), ("d_output", 149)):
        spoiled = {**tensors, tensor: tensors[tensor].copy()}
        spoiled[tensor][:, :, row, 7] = np.nan
        actual = named(call, spoiled)
        assert_clean(actual, clean, np.arange(call.seq_q) != row, ~visible(call)[row])
        if tensor == "query":
            assert (
                np.isnan(values(actual["output"])[:, :, row]).all() and np.isnan(actual["logsumexp"][:, :, row]).all()
            )


@pytest.mark.spread(2)
@pytest.mark.parametrize("seq_q", [150, 21])
@pytest.mark.parametrize("more", [{}, {"alibi": True}, {"bias_grad": True}])
@pytest.mark.parametrize("dtype", DTYPES)
def test_padding_may_hold_anything(isa, dtype, more, seq_q):
    """Keys that a padding mask hides from all rows matter nowhere, whatever bits they hold."""
    if "bias_grad" in more:
        more = {**more, "bias_shape": (1, 2, seq_q, 203), "bias_dtype": dtype}
    call = call_of(seq_q, dtype=dtype, mask_shape=(1, 1, 1, 203), mask_dtype="bool", **more)
    optional = {"mask": np.arange(203).reshape(1, 1, 1, 203) >= 77}
    if "bias_shape" in more:
        bias = random(1, 2, seq_q, 203, seed=9).astype({"float16": np.float16}.get(dtype, np.float32))
        optional["bias"] = stored(bias, dtype)
    tensors = tensors_of(call)
    clean = named(call, tensors, **optional)
    bits = np.random.default_rng(5).integers(0, 1 << 32, tensors["key"].shape, np.uint32).view(np.float32)
    for hidden in (np.full_like(tensors["key"], np.nan), np.full_like(tensors["key"], np.inf), bits):
        spoiled = dict(tensors)
        for name in ("key", "value"):
            spoiled[name] = tensors[name].copy()
            with np.errstate(all="ignore"):
                spoiled[name][:, :, 77:] = hidden[:, :, 77:]
                actual = named(call, spoiled, **optional)
            for result in NAMES[: len(actual)]:
                np.testing.assert_array_equal(actual[result], clean[result], err_msg=result)


def test_a_nan_does_not_hide_a_rise_of_another_row(isa):
    """Rows of a strip share the test for a raised maximum."""
    call = call_of(dtype="float32", heads=1, scale=1.0)
    tensors = tensors_of(call)
    tensors["key"] *= np.linspace(1, 30, 203, dtype=np.float32)[:, None]
    clean = named(call, tensors)
    tensors["query"][:, :, 9] = np.nan  # not the first row of a strip: NaN there would leave the strip's maximum unset
    rows = np.arange(150) != 9
    actual = named(call, tensors)
    for name in ("output", "logsumexp", "d_query"):
        np.testing.assert_array_equal(actual[name][:, :, rows], clean[name][:, :, rows])


def bfloat16_of(bits) -> np.ndarray:
    """Return the float32 numbers of bfloat16 bits."""
    return (np.asarray(bits, np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("seq_q, head_dim, more", ((1, 128, {}), (40, 32, {}), (40, 20, {}), (300, 32, ONE_COLUMN)))
def test_subnormal_values_and_gradients_survive(isa, seq_q, head_dim, more):
    """With one key the output is the value and d_value the only gradient of the output, however small in bfloat16.

    A head_dim of 20 has numbers behind the last whole vector. Tasks with a block mask share the key.
    """
    call = call_of(seq_q, 1, "bfloat16", heads=1, head_dim=head_dim, **more)
    optional = {"block_mask": np.ones(call.block_mask_shape, np.uint8)} if more else {}
    small = bfloat16_of(np.arange(1, head_dim + 1)).reshape(1, 1, 1, head_dim)
    ones, d_output = np.ones((1, 1, seq_q, head_dim), np.float32), np.zeros((1, 1, seq_q, head_dim), np.float32)
    d_output[:, :, seq_q // 10] = -small[0]
    output, _, _, _, d_value = run(call, ones, ones[:, :, :1], small, d_output, **optional)
    np.testing.assert_array_equal(values(output), ones * small)
    np.testing.assert_array_equal(values(d_value), -small)


def test_subnormal_outputs_of_normal_values(isa):
    """Half of the smallest normal number is subnormal."""
    call = call_of(1, 2, "bfloat16", heads=1, head_dim=64)
    value = np.zeros((1, 1, 2, 64), np.float32)
    value[0, 0, 0] = 2.0**-126
    zeros = np.zeros_like(value)
    output = run(call, zeros[:, :, :1], zeros, value, zeros[:, :, :1])[0]
    assert np.all(values(output) == 2.0**-127)


def test_subnormal_outputs_of_small_probabilities(isa):
    """A small normal value times a small probability is subnormal, though neither factor is."""
    call = call_of(1, 2, "bfloat16", heads=1, head_dim=16, scale=float(np.log(2.0)))
    key, value = np.zeros((2, 1, 1, 2, 16), np.float32)
    key[0, 0, 1, 0] = -29.0
    value[0, 0, 1] = 2.0**-100
    query = np.ones_like(value[:, :, :1])
    output = run(call, query, key, value, query)[0]
    np.testing.assert_array_equal(values(output), np.full_like(query, 2.0**-129))


def test_subnormal_values_count_in_the_gradient_of_scores(isa):
    """Scores are zero, so probabilities are 1/2. A large output gradient makes the subnormal value visible."""
    call = call_of(1, 2, "bfloat16", heads=1, head_dim=16, scale=1.0)
    key = np.ones((1, 1, 2, 16), np.float32) * [[[[1], [-1]]]]
    value = np.full_like(key, 2.0**-130) * [[[[1], [0]]]]
    query = np.zeros((1, 1, 1, 16), np.float32)
    d_query = run(call, query, key.astype(np.float32), value.astype(np.float32), query + 2.0**126)[2]
    np.testing.assert_array_equal(values(d_query), np.full_like(query, 0.5))


def test_subnormal_queries_and_keys_count(isa):
    """A subnormal query times a very large key is an ordinary score."""
    call = call_of(3, 2, "bfloat16", heads=1, head_dim=16, scale=1.0)
    query = np.full((1, 1, 3, 16), 2.0**-130, np.float32)
    key = np.zeros((1, 1, 2, 16), np.float32)
    key[0, 0, 0] = 2.0**126
    for first, second in ((query, key), (key[:, :, :1].repeat(3, 2), query[:, :, :2] * [[[[1], [0]]]])):
        logsumexp = run(call, first, second.astype(np.float32), key, query)[1]
        np.testing.assert_allclose(logsumexp, np.log1p(np.exp(-1.0)) + 1, rtol=1e-6)


def test_care_changes_no_bit(isa):
    """One tiny number makes the whole pass careful with subnormals. The other heads keep their bits."""
    call = call_of(dtype="bfloat16", heads=2, kv_heads=2, causal=True)
    tensors = tensors_of(call)
    clean = named(call, tensors)
    for name in tensors:
        changed = {**tensors, name: tensors[name].copy()}
        changed[name][:, 1, 5, 2] = 2.0**-130
        actual = named(call, changed)
        for result in actual:
            np.testing.assert_array_equal(actual[result][:, 0], clean[result][:, 0], err_msg=f"{name} {result}")
