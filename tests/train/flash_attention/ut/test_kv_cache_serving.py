"""KVCache for serving: ragged prompts, sequences that end and begin, beams, against a list for each sequence."""

import mindspore as ms
import numpy as np
import pytest
from flash_attention import KVCache, rotary_embedding
from mindspore import Tensor, nn

from tests.train.flash_attention.support.serving import (
    BATCH,
    DIM,
    HEADS,
    KINDS,
    KV_HEADS,
    MOST,
    SEQ,
    VALUE_DIM,
    attended,
    draw,
    garbage,
    made,
    serve,
)

pytestmark = pytest.mark.asynchronous  # the state after a step must not depend on the time at which operators run


@pytest.mark.daily("graph-*", "pynative-left-*")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", ["right", "left"])
def test_a_server_gives_every_sequence_its_own(mode, kind, side):
    net = serve(made(kind, side), "cpu", 25)
    if mode == "graph":
        assert len(net.compile_cache) == 1


@pytest.mark.daily("graph-left-paged")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", ["right", "left"])
def test_the_same_as_on_a_device(mode, kind, side, composed):
    serve(made(kind, side), "cpu", 25, seed=1)


@pytest.mark.daily("*-right-paged")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("backend", ["math", "emulator"])
def test_other_backends(mode, kind, side, backend):
    serve(made(kind, side, backend), backend, 6, seed=2)


def test_beams_share_full_blocks(update):
    cache = KVCache(BATCH, 24, KV_HEADS, DIM, dtype=ms.float32, paged=True, block_size=4)
    tokens = Tensor(np.zeros((BATCH, 10, KV_HEADS, DIM), np.float32))
    cache.update(tokens, tokens, Tensor([10, 0, 0, 3], ms.int32))
    assert cache.block_tables.asnumpy()[:, :3].tolist() == [[0, 1, 2], [-1] * 3, [-1] * 3, [3, -1, -1]]
    assert cache.reorder([0, 0, 3, 0]).asnumpy().tolist() == [10, 10, 3, 10]
    assert cache.block_tables.asnumpy()[:, :3].tolist() == [[0, 1, 2], [0, 1, 4], [3, -1, -1], [0, 1, 5]]
    assert cache.reset([0]).asnumpy().tolist() == [0, 10, 3, 10]
    cache.update(tokens[:, :1], tokens[:, :1])
    assert cache.block_tables.asnumpy()[:, :3].tolist() == [[2, -1, -1], [0, 1, 4], [3, -1, -1], [0, 1, 5]]
    assert cache.reset().asnumpy().tolist() == [0] * BATCH
    assert (cache.block_tables.asnumpy() == -1).all()


@pytest.mark.daily("*-pynative-*", "*-graph-order0-*")
@pytest.mark.parametrize(
    ("order", "message"),
    [
        ((0, 0), "indices: the sequences need 3 blocks; num_blocks is 2"),
        ((0, 2), "indices: got 2, allowed are 0 to 1"),
    ],
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

    def refused(message: str, call, *given) -> None:
        with pytest.raises((ValueError, RuntimeError), match=message):
            call(*given).asnumpy()

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


def turned(rows: np.ndarray, first: int) -> np.ndarray:
    """Turn rows (seq, heads, DIM) by their positions, from `first` on."""
    cos, sin = (table[first : first + len(rows), None] for table in angles())
    a, b = rows[..., : DIM // 2], rows[..., DIM // 2 :]
    return np.concatenate((a * cos - b * sin, a * sin + b * cos), -1)


@pytest.mark.parametrize("late", (False, True), ids=("before", "behind"))
@pytest.mark.parametrize("kind", KINDS)
def test_positions_of_rotary_embeddings(mode, kind, late):
    """In two layers of one shape the positions are the lengths before the update, even if they are read after it."""
    caches = [KVCache(BATCH, MOST, KV_HEADS, DIM, dtype=ms.float32, **KINDS[kind]) for _ in range(2)]
    net = TwoLayers(*(Turning(garbage(cache), late) for cache in caches))
    generator, kept = np.random.default_rng(3), [[[] for _ in range(BATCH)] for _ in caches]
    for step in range(5):
        tokens = generator.integers(0, SEQ + 1, BATCH).astype(np.int32)
        query, key, value = (draw(generator, heads, DIM, tokens, "right") for heads in (HEADS, KV_HEADS, KV_HEADS))
        second, first = (tensor.asnumpy() for tensor in net(*map(Tensor, (query, key, value, tokens))))
        for layer, output, keys in ((0, first, key), (1, second, key + value)):
            for b, count in enumerate(tokens):
                rows = kept[layer][b]
                start = len(rows)
                rows += zip(turned(keys[b, :count], start), value[b, :count])
                if count:
                    exact = attended(turned(query[b, :count], start), *map(np.array, zip(*rows)))
                    np.testing.assert_allclose(output[b, :count], exact, atol=4e-6, err_msg=f"step {step}")


def test_calls_from_outside_of_a_graph(mode):
    """In GRAPH mode each call is a graph of its own."""
    cache, rows = made("paged", "right"), Tensor(np.ones((BATCH, SEQ, KV_HEADS, DIM), np.float32))
    tokens = Tensor([3, 0, 1, 2], ms.int32)
    cache.update(rows, rows[..., :VALUE_DIM], tokens)
    output = cache.attend(rows, tokens).asnumpy()
    assert (output[:, 0, 0, 0] == [1, 0, 1, 1]).all() and (output[:, 2, 0, 0] == [1, 0, 0, 0]).all()
    assert cache.reset([]).asnumpy().tolist() == [3, 0, 1, 2]
    assert cache.reset((0, 3)).asnumpy().tolist() == [0, 0, 1, 0]


def test_bad_inputs_are_named(mode):
    cache = KVCache(2, 8, KV_HEADS, DIM, dtype=ms.float32)
    rows = Tensor(np.ones((2, 3, KV_HEADS, DIM), np.float32))
    with pytest.raises(ValueError, match=r"tokens: got shape \(3,\), allowed is \(batch,\) = \(2,\)"):
        cache.update(rows, rows, Tensor([1, 2, 3], ms.int32))
    with pytest.raises(TypeError, match="tokens: got dtype float32, allowed are int32"):
        cache.attend(rows, Tensor([1, 2], ms.float32))
    with pytest.raises(TypeError, match="tokens: got int, allowed is a Tensor"):
        cache.update(rows, rows, 3)
    with pytest.raises(ValueError, match=r"indices: got shape \(1,\), allowed is \(batch,\) = \(2,\)"):
        cache.reorder([0])
    with pytest.raises(TypeError, match="indices: got dtype uint8, allowed are int32, int64"):
        cache.reorder(Tensor([0, 1], ms.uint8))
    with pytest.raises(TypeError, match="indices: got float 0.5, allowed is an integer"):
        cache.reset([0.5])
    with pytest.raises(ValueError, match=r"indices: got shape \(1, 1\), allowed is \(any,\)"):
        cache.reset(Tensor([[0]], ms.int32))
    with pytest.raises(ValueError, match="padding_side: got 'both', allowed are left, right"):
        KVCache(2, 8, KV_HEADS, DIM, padding_side="both")
