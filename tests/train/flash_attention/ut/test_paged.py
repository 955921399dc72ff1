"""paged_attention against attention to the keys themselves, and reshape_and_cache in place."""

import mindspore as ms
import numpy as np
import pytest
from flash_attention import paged_attention, reshape_and_cache
from flash_attention.cache_update import ScatterUpdate
from flash_attention.call import TensorSpec
from mindspore import Parameter, Tensor, nn, ops

from tests.train.flash_attention.support.arrays import pages, random
from tests.train.flash_attention.support.modes import in_mode
from tests.train.flash_attention.support.paged import SINKS, expected, grow
from tests.train.flash_attention.support.versions import dtype_named

HEADS, KV_HEADS, DIM, VALUE_DIM = 4, 2, 24, 40
LENGTHS = (70, 3, 0, 600)
RULES = (
    {},
    {"window_size": (50, 0), "softcap": 3.0},
    {"alibi": True, "scale": 0.4},
    {"sinks": SINKS},
    {"causal": False},
    {"causal": False, "window_size": (20, 1), "alibi": True},
    {"alibi_slopes": np.array([0.1, -0.003, 0.6, 0.2], np.float32)},
    {"alibi_slopes": np.abs(random(len(LENGTHS), HEADS)) / 4},
)
OF_CACHE = KV_HEADS, DIM, VALUE_DIM


def numbers(*values) -> Tensor:
    """Return an int32 Tensor."""
    return Tensor(np.array(values, np.int32))


@pytest.mark.spread
@pytest.mark.parametrize("rules", RULES, ids=list(map(str, range(len(RULES)))))
@pytest.mark.parametrize("block_size", (16, 24))
@pytest.mark.parametrize("backend", ("cpu", "math", "emulator"))
def test_agrees_with_the_keys_themselves(mode, block_size, backend, rules):
    lengths, sizes, dtype, error = LENGTHS, OF_CACHE, np.float32, 3e-6
    if backend == "emulator":
        lengths, sizes, dtype, error = (41, 2, 0, 23), (KV_HEADS, 32, 48), np.float16, 2e-3
    keys, values, *caches, tables = pages(lengths, block_size, *sizes, dtype)
    given = *map(Tensor, caches), Tensor(tables), numbers(*lengths)
    tensors = {name: Tensor(rule) if isinstance(rule, np.ndarray) else rule for name, rule in rules.items()}
    for seq_q in (3,) if backend == "emulator" else (1, 3):
        query = random(len(lengths), seq_q, HEADS, sizes[1], dtype=dtype)
        result = paged_attention(Tensor(query), *given, backend=backend, **tensors).asnumpy()
        np.testing.assert_allclose(result, expected(query, keys, values, **rules), atol=error)
    if backend != "emulator":
        one = paged_attention(Tensor(query[:, -1]), *given, backend=backend, **tensors)
        np.testing.assert_allclose(one.asnumpy(), result[:, -1], atol=1e-6)


@pytest.mark.parametrize("backend", ["cpu", "math"])
def test_sinks_are_an_input_of_a_compiled_graph(backend):
    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.sinks = Parameter(Tensor(SINKS), name="sinks")

        def construct(self, query, key_cache, value_cache, tables, lengths):
            return paged_attention(query, key_cache, value_cache, tables, lengths, sinks=self.sinks, backend=backend)

    keys, values, *caches, tables = pages(LENGTHS, 16, *OF_CACHE)
    query = random(len(LENGTHS), 3, HEADS, DIM)
    net, others = Net(), (Tensor(tables), numbers(*LENGTHS))
    for sinks in (net.sinks.asnumpy().copy(), np.array([-np.inf, 0.0, 3.0, 30.0], np.float32)):
        net.sinks.set_data(Tensor(sinks))
        with in_mode("graph"):
            result = net(Tensor(query), *map(Tensor, caches), *others).asnumpy()
        np.testing.assert_allclose(result, expected(query, keys, values, sinks=sinks), atol=3e-6)
    assert len(net.compile_cache) == 1


@pytest.mark.spread
@pytest.mark.asynchronous
@pytest.mark.parametrize("name, backend", (("window_softcap", "cpu"), ("plain", "emulator")))
def test_a_cache_that_grows(name, backend, mode):
    """One graph serves all steps with one token."""
    grow(backend, name)


@pytest.mark.parametrize("backend", ("cpu", "math"))
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(dtype, backend):
    dtype = dtype_named(dtype)
    keys, values, *caches, tables = pages(LENGTHS, 16, *OF_CACHE)
    query = random(len(LENGTHS), 2, HEADS, DIM)
    tensors = (Tensor(array).astype(dtype) for array in (query, *caches))
    result = paged_attention(*tensors, Tensor(tables), numbers(*LENGTHS), backend=backend)
    assert result.dtype == dtype
    np.testing.assert_allclose(result.astype(ms.float32).asnumpy(), expected(query, keys, values), atol=0.03)


@pytest.mark.asynchronous
def test_there_is_no_gradient():
    _, _, *caches, tables = pages(LENGTHS, 16, *OF_CACHE)
    query, lengths = Tensor(random(4, 1, HEADS, DIM)), numbers(*LENGTHS)
    keys, values, tables = *map(Tensor, caches), Tensor(tables)
    with pytest.raises(NotImplementedError, match="paged_attention: it has no gradient"):
        ops.grad(lambda query: paged_attention(query, keys, values, tables, lengths))(query)


class Update(nn.Cell):
    """Write into its caches."""

    def __init__(self, blocks: int, block_size: int, native: bool):
        super().__init__()
        shape = blocks, block_size, KV_HEADS
        self.keys = Parameter(Tensor(np.zeros((*shape, DIM), np.float32)), name="keys")
        self.values = Parameter(Tensor(np.zeros((*shape, VALUE_DIM), np.float32)), name="values")
        self.plain = None
        if not native:
            specs = (TensorSpec((*shape, width), "float32") for width in (DIM, VALUE_DIM))
            self.plain = ScatterUpdate(*specs)

    def construct(self, key, value, slots):
        if self.plain is None:
            reshape_and_cache(key, value, self.keys, self.values, slots)
        else:
            self.plain(key, value, self.keys, self.values, slots)
        return slots


@pytest.mark.asynchronous
@pytest.mark.parametrize("native", [True, False], ids=["native", "scatter"])
def test_tokens_are_written_in_place(mode, native):
    net = Update(3, 4, native)
    keys, values = np.zeros((12, KV_HEADS, DIM), np.float32), np.zeros((12, KV_HEADS, VALUE_DIM), np.float32)
    for seed, slots in enumerate(([5, -1, 0, 11], [-1, 3, 5, -7], [-1, -1, -1, -1])):
        key, value = random(2, 2, KV_HEADS, DIM, seed=seed), random(2, 2, KV_HEADS, VALUE_DIM, seed=seed + 9)
        net(Tensor(key), Tensor(value), numbers(*slots))
        for token, slot in enumerate(slots):
            if slot >= 0:
                keys[slot], values[slot] = key.reshape(4, KV_HEADS, DIM)[token], value.reshape(4, KV_HEADS, -1)[token]
        np.testing.assert_array_equal(net.keys.asnumpy().reshape(keys.shape), keys)
        np.testing.assert_array_equal(net.values.asnumpy().reshape(values.shape), values)
