"""KVCache: prefill, decoding and serving give what attention of the whole sequences gives."""

import mindspore as ms
import numpy as np
import pytest
from flash_attention import KVCache, attention_backend, rotary_embedding
from mindspore import Tensor, nn

from tests.train.flash_attention.support import serving
from tests.train.flash_attention.support.flash_attn_truth import turned
from tests.train.flash_attention.support.serving import (
    BACKENDS,
    DIM,
    HEADS,
    KV_HEADS,
    MOST,
    SEQ,
    VALUE_DIM,
    attended,
    check_two,
    draw,
    garbage,
    made,
    serve,
)
from tests.train.flash_attention.support.versions import dtype_named

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
        assert {output.dtype for output in outputs} == {dtype}
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


@pytest.mark.spread
@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize(
    ("backend", "update"),
    [(name, "native") for name in ("cpu", "math", "emulator")] + [("cpu", "composed")],
    indirect=["update"],
)
@pytest.mark.parametrize("way", ("graph", "pynative", "jit"))
def test_every_step_is_right(way, backend, update, kind):
    check_two(backend, kind, lambda cell: as_called(cell, way))


@pytest.mark.spread
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


@pytest.mark.spread
@pytest.mark.parametrize("backend", ("cpu", "math"))
@KINDS
def test_in_bfloat16(mode, backend, options):
    dtype = dtype_named("bfloat16")
    cache = garbage(KVCache(BATCH, 64, KV_HEADS, DIM, VALUE_DIM, dtype, **options))
    with attention_backend(backend):
        (output,) = decoded(cache, QUERY, KEY, VALUE, dtype=dtype)
    np.testing.assert_allclose(output, truth(KEY, VALUE), atol=0.05)


def test_blocks_are_handed_out_when_they_are_needed(update):
    cache = KVCache(BATCH, 64, KV_HEADS, DIM, VALUE_DIM, ms.float32, paged=True, block_size=16, num_blocks=6)
    decoded(cache, QUERY, KEY, VALUE)
    assert cache.block_tables.asnumpy().tolist() == [[0, 1, 4, -1], [2, 3, 5, -1]]


@pytest.mark.spread
@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize(
    ("backend", "update"),
    [("cpu", "native"), ("cpu", "composed"), ("math", "native"), ("emulator", "native")],
    indirect=["update"],
)
def test_a_graph_gives_nan_past_the_end(backend, update, kind):
    """In a step that passes max_length the rows before it are right. Later rows are NaN, in this sequence alone."""
    most, starts = 23, (0, 7)
    dtype, error = BACKENDS[backend]
    cache = garbage(KVCache(BATCH, most, KV_HEADS, DIM, VALUE_DIM, dtype, **OPTIONS[kind]), 9.0)
    expected = truth(KEY, VALUE, starts)
    steps = [(7, 14), (14, 21), (21, 28), (28, 35), (35, 36)]
    ms.set_context(mode=ms.GRAPH_MODE)
    with attention_backend(backend):
        # The second sequence begins 7 tokens later: by then the first has 7 tokens.
        decoded(cache, QUERY, KEY, VALUE, steps=[(0, 7)], dtype=dtype)
        cache.lengths.set_data(Tensor(np.array([7, 0], np.int32)))
        (output,) = decoded(cache, QUERY, KEY, VALUE, steps=steps, dtype=dtype)
    ms.set_context(mode=ms.PYNATIVE_MODE)
    assert cache.lengths.asnumpy().tolist() == [36, 29]
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


@pytest.mark.spread
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


def refused(message: str, call, *given, **options) -> None:
    """Check that a call is refused, at once or by the operator."""
    with pytest.raises((TypeError, ValueError, RuntimeError), match=message):
        call(*given, **options).asnumpy()


def test_refused_tokens_are_not_stored(mode):
    cache = KVCache(BATCH, 64, KV_HEADS, DIM, VALUE_DIM)
    # In NumPy, since MindSpore 2.0 drops operations under way when a Cell raises an exception.
    query, key, value = (array[:, :3].astype(np.float16) for array in (QUERY, KEY, VALUE))
    for given, message in (
        ((query, key, value[:, :1]), r"value: got shape \(2, 1, 2, 16\), allowed is \(2, 3, 2, 16\)"),
        ((query[:1], key, value), r"query: got shape \(1, 3, 4, 32\), allowed is \(2, seq, heads, 32\)"),
        ((query, KEY[:, :3], value), "key: got dtype float32, allowed are float16, the dtype of the KVCache"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            cache(*map(Tensor, given))
        assert cache.lengths.asnumpy().tolist() == [0, 0]
    with pytest.raises(ValueError, match="num_blocks: got 6 without paged=True, allowed is None"):
        KVCache(2, 8, 2, 64, num_blocks=6)


def test_print_shows_the_sizes():
    assert KVCache(2, 64, 4, 16).extend_repr() == (
        "batch=2, max_length=64, kv_heads=4, head_dim=16, value_head_dim=16, dtype=Float16, paged=False"
    )
    paged = KVCache(2, 64, 4, 16, 8, dtype=ms.float32, paged=True).extend_repr()
    assert paged.endswith("value_head_dim=8, dtype=Float32, paged=True, block_size=16, num_blocks=8")


@pytest.mark.spread
@pytest.mark.parametrize("kind", serving.KINDS)
@pytest.mark.parametrize("side", ["right", "left"])
def test_a_server_gives_every_sequence_its_own(mode, kind, side):
    net = serve(made(kind, side), "cpu", 15)
    if mode == "graph":
        assert len(net.compile_cache) == 1


@pytest.mark.spread
@pytest.mark.parametrize("kind", serving.KINDS)
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("backend", ["cpu", "math", "emulator"])
def test_on_a_device_and_other_backends(mode, backend, side, kind, request):
    if backend == "cpu":
        request.getfixturevalue("composed")
    serve(made(kind, side, backend), backend, *((10, 1) if backend == "cpu" else (6, 2)))


def test_beams_share_full_blocks(update):
    cache = KVCache(serving.BATCH, 24, KV_HEADS, DIM, dtype=ms.float32, paged=True, block_size=4)
    tokens = Tensor(np.zeros((serving.BATCH, 10, KV_HEADS, DIM), np.float32))
    cache.update(tokens, tokens, Tensor([10, 0, 0, 3], ms.int32))
    assert cache.block_tables.asnumpy()[:, :3].tolist() == [[0, 1, 2], [-1] * 3, [-1] * 3, [3, -1, -1]]
    assert cache.reorder([0, 0, 3, 0]).asnumpy().tolist() == [10, 10, 3, 10]
    assert cache.block_tables.asnumpy()[:, :3].tolist() == [[0, 1, 2], [0, 1, 4], [3, -1, -1], [0, 1, 5]]
    assert cache.reset([0]).asnumpy().tolist() == [0, 10, 3, 10]
    cache.update(tokens[:, :1], tokens[:, :1])
    assert cache.block_tables.asnumpy()[:, :3].tolist() == [[2, -1, -1], [0, 1, 4], [3, -1, -1], [0, 1, 5]]
    assert cache.reset().asnumpy().tolist() == [0] * serving.BATCH
    assert (cache.block_tables.asnumpy() == -1).all()


@pytest.mark.spread
@pytest.mark.parametrize(
    ("order", "message"),
    [((0, 0), "indices: the sequences need 3 blocks; num_blocks is 2"), ((0, 2), "indices: got 2, allowed are 0 to 1")],
)
def test_a_sequence_that_cannot_go_on_is_refused(update, mode, order, message):
    """A graph on a device cannot refuse: there the sequence gives NaN until it is reset."""
    cache = garbage(KVCache(2, 24, KV_HEADS, DIM, dtype=ms.float32, paged=True, block_size=4, num_blocks=2))
    rows = Tensor(np.ones((2, 6, KV_HEADS, DIM), np.float32))
    cache.update(rows, rows, Tensor([6, 0], ms.int32))

    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.cache = cache

        def construct(self, order, query):
            self.cache.reorder(order)
            return self.cache.attend(query)

    given = Tensor(order, ms.int32), rows[:, :1]
    if (update, mode) == ("composed", "graph"):
        output = Net()(*given).asnumpy()
        assert (output[0] == 1).all() and np.isnan(output[1]).all()
        ms.set_context(mode=ms.PYNATIVE_MODE)
        assert cache.reset([1]).asnumpy().tolist() == [6, 0]
    else:
        with pytest.raises((ValueError, RuntimeError), match=message):
            Net()(*given).asnumpy()
        assert cache.lengths.asnumpy().tolist() == [6, 0]


def test_bad_numbers_are_refused(update):
    cache = KVCache(2, 8, KV_HEADS, DIM, dtype=ms.float32)
    rows = Tensor(np.ones((2, 3, KV_HEADS, DIM), np.float32))

    refused("tokens: got 4, allowed are 0 to 3", cache.update, rows, rows, Tensor([1, 4], ms.int32))
    refused("tokens: got -1, allowed are 0 to 3", cache.update, rows, rows, Tensor([-1, 0], ms.int32))
    refused("indices: got 2, allowed is an integer from 0 to 1", cache.reorder, [0, 2])
    refused("indices: got -1, allowed are 0 to 1", cache.reorder, Tensor([-1, 0], ms.int32))
    refused("indices: got 2, allowed are 0 to 1, and negative numbers for none", cache.reset, [2])
    cache.update(rows, rows, Tensor([3, 1], ms.int32))
    cache.update(rows, rows, Tensor([3, 1], ms.int32))
    message = "key: got 3 tokens, which make a sequence of 9; max_length is 8"
    refused(message, cache.update, rows, rows, Tensor([3, 3], ms.int32))
    assert cache.update(rows, rows, Tensor([2, 3], ms.int32)).asnumpy().tolist() == [8, 5]
    assert cache.update(rows, rows, Tensor([0, 3], ms.int32)).asnumpy().tolist() == [8, 8]


class Turning(nn.Cell):
    """Run a step of a model with rotary embeddings. The queries are turned behind the update or before it."""

    def __init__(self, cache: KVCache, late: bool):
        super().__init__()
        self.cache, self.late = cache, late
        self.cos, self.sin = map(Tensor, angles())

    def construct(self, query, key, value, tokens):
        first = self.cache.lengths + 0
        key = rotary_embedding(key, self.cos, self.sin, offsets=first)
        if not self.late:
            query = rotary_embedding(query, self.cos, self.sin, offsets=first)
        self.cache.update(key, value, tokens)
        if self.late:
            query = rotary_embedding(query, self.cos, self.sin, offsets=first)
        return self.cache.attend(query, tokens)


class TwoLayers(nn.Cell):
    """A model of two layers, one behind the other."""

    def __init__(self, first: Turning, second: Turning):
        super().__init__()
        self.first, self.second = first, second

    def construct(self, query, key, value, tokens):
        once = self.first(query, key, value, tokens)
        return self.second(query, key + value, value, tokens), once


def angles() -> tuple:
    """Return cos and sin of 64 positions, float32 (64, DIM / 2)."""
    turns = np.arange(64)[:, None] * 50.0 ** -(np.arange(0, DIM, 2) / DIM)
    return np.cos(turns).astype(np.float32), np.sin(turns).astype(np.float32)


@pytest.mark.spread
@pytest.mark.parametrize("late", (False, True), ids=("before", "behind"))
@pytest.mark.parametrize("kind", serving.KINDS)
def test_positions_of_rotary_embeddings(mode, kind, late):
    """In two layers of one shape the positions are the lengths before the update, even if they are read after it."""
    caches = [KVCache(serving.BATCH, MOST, KV_HEADS, DIM, dtype=ms.float32, **serving.KINDS[kind]) for _ in range(2)]
    net = TwoLayers(*(Turning(garbage(cache), late) for cache in caches))
    generator, kept = np.random.default_rng(3), [[[] for _ in range(serving.BATCH)] for _ in caches]
    for step in range(5):
        tokens = generator.integers(0, SEQ + 1, serving.BATCH).astype(np.int32)
        query, key, value = (draw(generator, heads, DIM, tokens, "right") for heads in (HEADS, KV_HEADS, KV_HEADS))
        second, first = (tensor.asnumpy() for tensor in net(*map(Tensor, (query, key, value, tokens))))
        for layer, output, keys in ((0, first, key), (1, second, key + value)):
            for b, count in enumerate(tokens):
                rows = kept[layer][b]
                start = len(rows)
                positions = start + np.arange(count)
                rows += zip(turned(keys[b, :count], *angles(), positions, False), value[b, :count])
                if count:
                    exact = attended(turned(query[b, :count], *angles(), positions, False), *map(np.array, zip(*rows)))
                    np.testing.assert_allclose(output[b, :count], exact, atol=4e-6, err_msg=f"step {step}")


def test_calls_from_outside_of_a_graph(mode):
    """In GRAPH mode each call is a graph of its own."""
    cache, rows = made("paged", "right"), Tensor(np.ones((serving.BATCH, SEQ, KV_HEADS, DIM), np.float32))
    tokens = Tensor([3, 0, 1, 2], ms.int32)
    cache.update(rows, rows[..., :VALUE_DIM], tokens)
    output = cache.attend(rows, tokens).asnumpy()
    assert (output[:, 0, 0, 0] == [1, 0, 1, 1]).all() and (output[:, 2, 0, 0] == [1, 0, 0, 0]).all()
    assert cache.reset([]).asnumpy().tolist() == [3, 0, 1, 2]
    assert cache.reset((0, 3)).asnumpy().tolist() == [0, 0, 1, 0]
