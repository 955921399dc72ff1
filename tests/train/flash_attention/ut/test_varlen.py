"""flash_attention_varlen: every sequence as a call of its own, forward and backward."""

import functools

import mindspore as ms
import numpy as np
import pytest
from flash_attention import flash_attention, flash_attention_varlen
from mindspore import Tensor, ops

from tests.train.flash_attention.support.arrays import ends
from tests.train.flash_attention.support.cells import Call
from tests.train.flash_attention.support.modes import in_mode
from tests.train.flash_attention.support.versions import dtype_named

HEADS, KV_HEADS, DIM, VALUE_DIM = 4, 2, 24, 40
LENGTHS_Q = (5, 0, 130, 33, 1, 7, 300)
LENGTHS_K = (5, 4, 130, 40, 0, 300, 290)
SEED = Tensor([3, 5], ms.int64)
RESULTS = ("output", "logsumexp", "d_query", "d_key", "d_value")
RULES = {
    "full": {},
    "causal": {"causal": True},
    "bottom_right": {"causal": True, "causal_alignment": "bottom_right"},
    "window": {"window_size": (20, 3)},
    "blocks": {"causal": True, "prev_block_num": 1},
    "alibi": {"alibi": True, "causal": True},
    "softcap": {"softcap": 2.0, "causal": True, "alibi": True},
    "dropout": {"dropout_rate": 0.2, "seed": SEED},
}


def random_inputs(dtype=ms.float32, queries=LENGTHS_Q, keys=LENGTHS_K):
    """Return query, key, value and the gradients of output and logsumexp."""
    rng = np.random.default_rng(7)

    def draw(*shape):
        return Tensor(rng.standard_normal(shape).astype(np.float32)).astype(dtype)

    rows = sum(queries)
    tensors = draw(rows, HEADS, DIM), draw(sum(keys), KV_HEADS, DIM), draw(sum(keys), KV_HEADS, VALUE_DIM)
    return tensors, (draw(rows, HEADS, VALUE_DIM), Tensor(rng.standard_normal((HEADS, rows)).astype(np.float32)))


def bits(tensor):
    """Return the elements as float32, which holds each of them exactly."""
    return tensor.astype(ms.float32).asnumpy()


def with_gradients(function, tensors, gradients):
    """Return output, logsumexp and the three gradients."""
    results = function(*tensors)
    grad = ops.GradOperation(get_all=True, sens_param=True)(function)
    return [bits(tensor) for tensor in (*results, *grad(*tensors, gradients))]


@functools.lru_cache
def expected_of(name):
    """Return the loop's results with the rules of that name and random inputs. Both modes are compared with it."""
    return loop(RULES[name], *random_inputs())


def loop(rules, tensors, gradients):
    """Return the results of a loop over calls. Sequences without queries or keys are not called."""
    query, key, value = tensors
    d_output, d_logsumexp = gradients
    output, d_query, d_key, d_value = (np.zeros(tensor.shape, np.float32) for tensor in (d_output, query, key, value))
    logsumexp = np.full((HEADS, query.shape[0]), -np.inf, np.float32)

    def call(query, key, value):
        return flash_attention(query, key, value, input_layout="BSND", return_lse=True, backend="cpu", **rules)

    for index, sizes in enumerate(zip(ends(LENGTHS_Q), LENGTHS_Q, ends(LENGTHS_K), LENGTHS_K)):
        if 0 in (sizes[1], sizes[3]):
            continue
        rows, columns = slice(sizes[0], sizes[0] + sizes[1]), slice(sizes[2], sizes[2] + sizes[3])

        def batch_element(tensor, index=index):
            """Return the tensor as batch element `index`, because dropout goes by it."""
            return Tensor(np.stack([bits(tensor) * 0] * index + [bits(tensor)])).astype(tensor.dtype)

        parts = map(batch_element, (query[rows], key[columns], value[columns]))
        sens = batch_element(d_output[rows]), batch_element(d_logsumexp[:, rows])
        with in_mode("pynative"):  # compiles nothing
            parts = [part[-1] for part in with_gradients(call, tuple(parts), sens)]
        output[rows], logsumexp[:, rows], d_query[rows], d_key[columns], d_value[columns] = parts
    return [output, logsumexp, d_query, d_key, d_value]


def packed(lengths_q, lengths_k, **rules):
    """Return the call as a function of query, key and value."""

    def call(query, key, value):
        return flash_attention_varlen(query, key, value, lengths_q, lengths_k, return_lse=True, **rules)

    return call


@pytest.mark.daily("pynative-*", "graph-softcap", "graph-dropout", since=(2, 8))
@pytest.mark.asynchronous
@pytest.mark.parametrize("name", RULES)
def test_has_the_bits_of_the_loop_over_calls(name, mode):
    tensors, gradients = random_inputs()
    lengths = Tensor(ends(LENGTHS_Q), ms.int32), Tensor(ends(LENGTHS_K), ms.int64)
    results = with_gradients(packed(*lengths, **RULES[name]), tensors, gradients)
    for what, result, expected in zip(RESULTS, results, expected_of(name)):
        np.testing.assert_array_equal(result, expected, err_msg=what)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_has_the_bits_of_the_loop(dtype):
    tensors, gradients = random_inputs(dtype_named(dtype))
    rules = {"causal": True}
    results = with_gradients(packed(ends(LENGTHS_Q), ends(LENGTHS_K), **rules), tensors, gradients)
    for name, result, expected in zip(RESULTS, results, loop(rules, tensors, gradients)):
        np.testing.assert_array_equal(result, expected, err_msg=name)


@pytest.mark.daily("rules1", since=(2, 8))
@pytest.mark.parametrize("rules", [RULES["bottom_right"], RULES["dropout"], RULES["softcap"]])
def test_math_agrees_with_cpu(rules):
    tensors, gradients = random_inputs()
    lengths = Tensor(ends(LENGTHS_Q), ms.int32), list(ends(LENGTHS_K, False))
    cpu, math = (
        with_gradients(packed(*lengths, backend=name, **rules), tensors, gradients) for name in ("cpu", "math")
    )
    for name, one, other in zip(RESULTS, cpu, math):
        np.testing.assert_allclose(one, other, atol=2e-5, rtol=1e-4, err_msg=name)


def test_math_takes_constant_lengths_in_a_graph():
    @ms.jit
    def constant(query, key, value):
        return flash_attention_varlen(query, key, value, (3, 8), (0, 4, 6), backend="math")

    tensors, _ = random_inputs(queries=(3, 5), keys=(4, 2))
    expected = flash_attention_varlen(*tensors, (3, 8), (0, 4, 6), backend="math")
    np.testing.assert_array_equal(bits(constant(*tensors)), bits(expected))


# Of sequences, heads and keys: what has a number for each of them.
SLOPES = Tensor(np.linspace(0.1, 0.9, len(LENGTHS_Q) * HEADS).reshape(-1, HEADS), ms.float32)
PREFIX = Tensor([0, 1, 2, 40, 0, 1, 2], ms.int32)
IN_A_GRAPH = {
    **{name: rules for name, rules in RULES.items() if name != "dropout"},
    "slopes": {"alibi_slopes": SLOPES, "causal": True, "causal_alignment": "bottom_right"},
    "prefix": {"prefix": PREFIX, "causal": True, "sinks": Tensor(np.ones(HEADS), ms.float32)},
    "bias": {"bias": Tensor(np.arange(sum(LENGTHS_K))[None] % 5, ms.float32), "window_size": (4, 4)},
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in ("full", "causal", "window", "alibi", "softcap") else [])
        for name in IN_A_GRAPH
    ],
)
def test_math_takes_lengths_in_a_tensor_in_a_graph(name):
    rules = IN_A_GRAPH[name]
    tensors, gradients = random_inputs()
    lengths = Tensor(ends(LENGTHS_Q), ms.int32), Tensor(ends(LENGTHS_K, False), ms.int64)
    with in_mode("graph"):
        found = with_gradients(packed(*lengths, backend="math", **rules), tensors, gradients)
    expected = with_gradients(packed(*lengths, backend="cpu", **rules), tensors, gradients)
    for name, one, other in zip(RESULTS, found, expected):
        np.testing.assert_allclose(one, other, atol=2e-5, rtol=1e-4, err_msg=name)


def test_math_gives_nan_for_wrong_lengths_in_a_graph():
    tensors, _ = random_inputs(queries=(8,), keys=(6,))
    net = Call(flash_attention_varlen, backend="math")
    dropping = Call(flash_attention_varlen, backend="math", dropout_rate=0.2, seed=SEED)
    with in_mode("graph"):
        for lengths in (((3, 8), (4, 7)), ((3, 5), (4, 6)), ((8, 3), (4, 6)), ((0, 8), (4, 6))):
            assert np.isnan(net(*tensors, *(Tensor(one, ms.int32) for one in lengths)).asnumpy()).all()
        with pytest.raises(ValueError, match="dropout_rate: got dropout beside cu_seqlens_q"):
            dropping(*tensors, Tensor([3, 8]), Tensor([4, 6]))


def test_merged_heads_give_the_same():
    (query, key, value), _ = random_inputs()
    lengths = ends(LENGTHS_Q), ends(LENGTHS_K)
    expected = bits(flash_attention_varlen(query, key, value, *lengths, causal=True))
    merged = [tensor.reshape(tensor.shape[0], -1) for tensor in (query, key, value)]
    output = flash_attention_varlen(*merged, *lengths, causal=True, head_dim=DIM, value_head_dim=VALUE_DIM)
    assert output.shape == (expected.shape[0], HEADS * VALUE_DIM)
    np.testing.assert_array_equal(bits(output).reshape(expected.shape), expected)


@pytest.mark.parametrize("backend", ("cpu", pytest.param("emulator", marks=pytest.mark.slow)))
def test_lengths_are_data_to_a_compiled_graph(backend):
    dtype, error = (ms.float32, 0) if backend == "cpu" else (ms.float16, 4e-3)
    tensors, _ = random_inputs(dtype, queries=(40,), keys=(40,))
    cases = [Tensor(ends(lengths), ms.int32) for lengths in ((10, 10, 20), (1, 38, 1), (0, 40, 0))]
    expected = [flash_attention_varlen(*tensors, lengths, lengths, causal=True, backend="cpu") for lengths in cases]
    net = Call(flash_attention_varlen, causal=True, backend=backend)
    with in_mode("graph"):
        outputs = [net(*tensors, lengths, lengths) for lengths in cases]
    assert len(net.compile_cache) == 1
    for output, other in zip(outputs, expected):
        np.testing.assert_allclose(bits(output), bits(other), atol=error, rtol=error)


def test_lengths_are_checked():
    (query, key, value), _ = random_inputs(queries=(8,), keys=(8,))

    def call(lengths_q, lengths_k=(8,), **options):
        return flash_attention_varlen(query, key, value, lengths_q, lengths_k, **options).asnumpy()

    for lengths in ((5,), (0, 9), (5, 3, 8), ()):
        with pytest.raises(ValueError, match=r"cu_seqlens_q: got .* ascend from 0 to the number of rows, here 8"):
            call(lengths)
        if lengths:
            with pytest.raises(ValueError, match=r"cu_seqlens_q: got .* ascend from 0 to the number of rows, here 8"):
                call(Tensor(lengths, ms.int32))
    with pytest.raises(ValueError, match="cu_seqlens_k: got the lengths of 1 sequences, but cu_seqlens_q has 2"):
        call((4, 8))
    with pytest.raises(TypeError, match=r"cu_seqlens_q: got \(4.0, 8\), allowed is a tuple or list of integers"):
        call((4.0, 8))
    with pytest.raises(TypeError, match="cu_seqlens_q: got dtype float32, allowed are int32, int64"):
        call(Tensor([8.0]))
    call((8,))  # the process is fine
