"""KVCache: prefill and decoding give what attention of the whole sequences gives."""

import mindspore as ms
import numpy as np
import pytest
from flash_attention import KVCache, attention_backend
from mindspore import Tensor, nn

from tests.train.flash_attention.support.serving import (
    BACKENDS,
    DIM,
    HEADS,
    KV_HEADS,
    VALUE_DIM,
    attended,
    check_two,
    garbage,
)

pytestmark = pytest.mark.asynchronous  # the state after a step must not depend on the time at which operators run

BATCH, LENGTH = 2, 40
STEPS = ((0, 30), (30, 31), (31, 35), (35, 36), (36, 40))
OPTIONS = {"contiguous": {}, "paged": {"paged": True, "block_size": 16}}
KINDS = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


def random(heads: int, width: int, seed: int) -> np.ndarray:
    """Return normal random keys or values of every position, which float16 can hold."""
    numbers = np.random.default_rng(seed).standard_normal((BATCH, LENGTH, heads, width))
    return numbers.astype(np.float16).astype(np.float32)


QUERY, KEY, VALUE = random(HEADS, DIM, 0), random(KV_HEADS, DIM, 1), random(KV_HEADS, VALUE_DIM, 2)


def truth(key: np.ndarray, value: np.ndarray, starts=(0,) * BATCH) -> np.ndarray:
    """Compute causal attention in float64 from position starts[b] of sequence b on; NaN before."""
    output = np.full((*QUERY.shape[:3], VALUE_DIM), np.nan)
    for b, start in enumerate(starts):
        output[b, start:] = attended(*(array[b, start:] for array in (QUERY, key, value)))
    return output


def decoded(cache, *tensors: np.ndarray, steps=STEPS, dtype=ms.float32) -> list:
    """Return each output of `cache`, joined over all steps."""
    parts = []
    for start, end in steps:
        outputs = cache(*(Tensor(array[:, start:end]).astype(dtype) for array in tensors))
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        parts.append([output.astype(ms.float32).asnumpy() for output in outputs])
    return [np.concatenate(part, 1) for part in zip(*parts)]


def as_called(cell: nn.Cell, way: str):
    """Return the cell, as called in a mode of MindSpore or a jit function."""
    ms.set_context(mode=ms.GRAPH_MODE if way == "graph" else ms.PYNATIVE_MODE)
    if way != "jit":
        return cell

    def call(query, key, value, other_key, other_value):
        return cell(query, key, value, other_key, other_value)

    return ms.jit(call)


@pytest.mark.daily("*-cpu-*", "graph-*-paged", "pynative-*-paged")
@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("backend", ("cpu", "math", "emulator"))
@pytest.mark.parametrize("way", ("graph", "pynative", "jit"))
def test_every_step_is_right(way, backend, kind):
    check_two(backend, kind, lambda cell: as_called(cell, way))


@pytest.mark.daily("paged-graph", "paged-pynative")
@pytest.mark.parametrize("way", ["graph", "pynative", "jit"])
@pytest.mark.parametrize("kind", OPTIONS)
def test_updates_of_a_device_are_right(way, composed, kind):
    check_two("cpu", kind, lambda cell: as_called(cell, way))


@KINDS
def test_a_graph_for_each_number_of_tokens(mode, options):
    cache = garbage(KVCache(BATCH, 64, KV_HEADS, DIM, VALUE_DIM, ms.float32, **options))
    (first,) = decoded(cache, QUERY, KEY, VALUE)
    assert cache.lengths.asnumpy().tolist() == [LENGTH] * BATCH
    if mode == "graph":
        assert len(cache.compile_cache) == len({b - a for a, b in STEPS})
    cache.reset()
    (again,) = decoded(cache, QUERY, KEY, VALUE)
    np.testing.assert_array_equal(again, first)
    np.testing.assert_allclose(first, truth(KEY, VALUE), atol=2e-6)


def test_an_update_gives_the_lengths(mode):
    cache = KVCache(BATCH, 64, KV_HEADS, DIM, VALUE_DIM, ms.float32)
    lengths = [cache.update(Tensor(KEY[:, a:b]), Tensor(VALUE[:, a:b])).asnumpy() for a, b in STEPS]
    assert [length.tolist() for length in lengths] == [[b] * BATCH for _, b in STEPS]


def test_blocks_are_handed_out_when_they_are_needed(update):
    cache = KVCache(BATCH, 64, KV_HEADS, DIM, VALUE_DIM, ms.float32, paged=True, block_size=16, num_blocks=6)
    decoded(cache, QUERY, KEY, VALUE)
    assert cache.block_tables.asnumpy().tolist() == [[0, 1, 4, -1], [2, 3, 5, -1]]


@pytest.mark.daily("cpu-native-*", "cpu-composed-paged", "math-native-paged")
@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize(
    ("backend", "update"),
    [("cpu", "native"), ("cpu", "composed"), ("math", "native"), ("emulator", "native")],
    indirect=["update"],
)
def test_a_graph_gives_nan_past_the_end(backend, update, kind):
    """In a step that passes max_length the rows before it are right. Later rows are NaN, in this sequence alone."""
    most, starts = 21, (0, 7)
    dtype, error = BACKENDS[backend]
    cache = garbage(KVCache(BATCH, most, KV_HEADS, DIM, VALUE_DIM, dtype, **OPTIONS[kind]), 9.0)
    expected = truth(KEY, VALUE, starts)
    steps = [(7, 14), (14, 17), (17, 20), (20, 23), (23, 24), (24, 27), (27, 28), (28, 31)]
    ms.set_context(mode=ms.GRAPH_MODE)
    with attention_backend(backend):
        # The second sequence begins 7 tokens later: by then the first has 7 tokens.
        decoded(cache, QUERY, KEY, VALUE, steps=[(0, 7)], dtype=dtype)
        cache.lengths.set_data(Tensor(np.array([7, 0], np.int32)))
        (output,) = decoded(cache, QUERY, KEY, VALUE, steps=steps, dtype=dtype)
    ms.set_context(mode=ms.PYNATIVE_MODE)
    assert cache.lengths.asnumpy().tolist() == [31, 24]
    for sequence, start in enumerate(starts):
        end = start + most - 7
        np.testing.assert_allclose(output[sequence, :end], expected[sequence, 7 : 7 + end], atol=error)
        assert output[sequence, end:].size and np.isnan(output[sequence, end:]).all()


@KINDS
def test_pynative_refuses_tokens_past_the_end(options):
    cache = garbage(KVCache(BATCH, 34, KV_HEADS, DIM, VALUE_DIM, ms.float32, **options))
    for _ in range(2):
        cache.reset()
        decoded(cache, QUERY, KEY, VALUE, steps=STEPS[:2])
        with pytest.raises(ValueError, match="key: got 4 tokens, which make a sequence of 35; max_length is 34"):
            decoded(cache, QUERY, KEY, VALUE, steps=STEPS[2:3])
        # The cache has not changed, and tokens that still fit are right.
        (output,) = decoded(cache, QUERY, KEY, VALUE, steps=[(31, 34)])
        np.testing.assert_allclose(output, truth(KEY, VALUE)[:, 31:34], atol=2e-6)
    cache.lengths.set_data(Tensor(np.array([3, 30], np.int32)))
    decoded(cache, QUERY, KEY, VALUE, steps=[(30, 34)])
    assert cache.lengths.asnumpy().tolist() == [7, 34]


def test_pynative_refuses_what_a_graph_has_filled(update):
    cache = KVCache(BATCH, 34, KV_HEADS, DIM, VALUE_DIM, ms.float32)
    ms.set_context(mode=ms.GRAPH_MODE)
    decoded(cache, QUERY, KEY, VALUE, steps=STEPS[:2])
    ms.set_context(mode=ms.PYNATIVE_MODE)
    message = "key: got 4 tokens, which make a sequence of 35; max_length is 34"
    with pytest.raises((ValueError, RuntimeError), match=message):
        decoded(cache, QUERY, KEY, VALUE, steps=STEPS[2:3])
    assert cache.lengths.asnumpy().tolist() == [31, 31]
    (output,) = decoded(cache, QUERY, KEY, VALUE, steps=[(31, 34)])
    np.testing.assert_allclose(output, truth(KEY, VALUE)[:, 31:34], atol=2e-6)


@pytest.mark.daily("*-pynative", "native-graph")
def test_a_sequence_without_a_block_is_refused(update, mode):
    """A graph on a device cannot refuse: there the sequence counts as too long."""
    options = {"paged": True, "block_size": 16, "num_blocks": 5}
    cache = garbage(KVCache(BATCH, 64, KV_HEADS, DIM, VALUE_DIM, ms.float32, **options))
    decoded(cache, QUERY, KEY, VALUE, steps=STEPS[:2])
    if (update, mode) == ("composed", "graph"):
        output, again = (decoded(cache, QUERY, KEY, VALUE, steps=[step])[0] for step in STEPS[2:4])
        np.testing.assert_allclose(output[0], truth(KEY, VALUE)[0, 31:35], atol=2e-6)
        np.testing.assert_allclose(again[0], truth(KEY, VALUE)[0, 35:36], atol=2e-6)
        assert np.isnan(output[1]).all() and np.isnan(again[1]).all()
    else:
        with pytest.raises((ValueError, RuntimeError), match="key: the tokens need 6 blocks; num_blocks is 5"):
            decoded(cache, QUERY, KEY, VALUE, steps=STEPS[2:3])


def test_bad_inputs_are_named(mode):
    cache = KVCache(BATCH, 64, KV_HEADS, DIM, VALUE_DIM)
    # In NumPy, since MindSpore 2.0 drops operations under way when a Cell raises an exception.
    query, key, value = (array[:, :3].astype(np.float16) for array in (QUERY, KEY, VALUE))
    whose = "allowed are float16, the dtype of the KVCache"
    sizes = r"allowed is \(2, seq, 2, 32\)"
    for given, error, message in (
        ((query, key.astype(np.float32), value), TypeError, f"key: got dtype float32, {whose}"),
        ((query, key, value.astype(np.float32)), TypeError, f"value: got dtype float32, {whose}"),
        ((query.astype(np.float32), key, value), TypeError, f"query: got dtype float32, {whose}"),
        ((query, value, value), ValueError, rf"key: got shape \(2, 3, 2, 16\), {sizes}"),
        ((query, key[:, 0], value), ValueError, rf"key: got shape \(2, 2, 32\), {sizes}"),
        ((query, key, value[:, :1]), ValueError, r"value: got shape \(2, 1, 2, 16\), allowed is \(2, 3, 2, 16\)"),
        ((query[:1], key, value), ValueError, r"query: got shape \(1, 3, 4, 32\), allowed is \(2, seq, heads, 32\)"),
        ((query, 3, value), TypeError, "key: got int, allowed is a Tensor"),
        ((3, key, value), TypeError, "query: got int, allowed is a Tensor"),
    ):
        with pytest.raises(error, match=message):
            cache(*(Tensor(one) if isinstance(one, np.ndarray) else one for one in given))
        assert cache.lengths.asnumpy().tolist() == [0, 0]  # refused tokens are not stored either
    with pytest.raises(ValueError, match="indices: got 2, allowed is an integer from 0 to 1"):
        cache.reorder([0, 2])
    with pytest.raises(ValueError, match="head_dim: got 700, allowed is an integer from 1 to 576"):
        KVCache(2, 8, 2, 700)
    with pytest.raises(ValueError, match="value_head_dim: got 513, allowed is an integer from 1 to 512"):
        KVCache(2, 8, 2, 64, 513)
    with pytest.raises(TypeError, match="paged: got int 1, allowed is True or False"):
        KVCache(BATCH, 64, KV_HEADS, DIM, paged=1)


def test_print_shows_the_sizes():
    assert KVCache(2, 64, 4, 16).extend_repr() == (
        "batch=2, max_length=64, kv_heads=4, head_dim=16, value_head_dim=16, dtype=Float16, paged=False"
    )
    paged = KVCache(2, 64, 4, 16, 8, dtype=ms.float32, paged=True).extend_repr()
    assert paged.endswith("value_head_dim=8, dtype=Float32, paged=True, block_size=16, num_blocks=8")
