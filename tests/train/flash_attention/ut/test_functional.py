"""`scaled_dot_product_attention` with torch's meaning, and what `flash_attention` adds to the layer."""

import mindspore as ms
import numpy as np
import pytest
from flash_attention import (
    attention_backend,
    flash_attention,
    flash_attention_varlen,
    paged_attention,
    reference,
    scaled_dot_product_attention,
)
from flash_attention.call import AttentionRules, Call
from mindspore import Tensor, nn, ops

from tests.train.flash_attention.support.cells import Call as Network
from tests.train.flash_attention.support.cells import with_gradients
from tests.train.flash_attention.support.layer_inputs import draw, truth
from tests.train.flash_attention.support.modes import MODES_AND_BACKENDS, in_mode
from tests.train.flash_attention.support.versions import dtype_named

BACKENDS = ("math", "cpu")


def check(arguments, backend, attn_mask=None, is_causal=False, **options):
    """Compare the function on a backend with the truth. A boolean mask shows, a floating mask is added."""
    with attention_backend(backend):
        got = scaled_dot_product_attention(*arguments, attn_mask, is_causal=is_causal, **options).asnumpy()
    heads = [tensor.reshape(-1, *tensor.shape[-3:]) if tensor.ndim > 2 else tensor[None, None] for tensor in arguments]
    bias = None if attn_mask is None else np.where(attn_mask.asnumpy(), 0.0, -np.inf)
    if attn_mask is not None and attn_mask.dtype != ms.bool_:
        bias = attn_mask.asnumpy()
    right = truth(*heads, bias=bias, causal=is_causal, scale=options.get("scale")).output
    np.testing.assert_allclose(got.reshape(right.shape), right, atol=2e-5, rtol=2e-5)


def tensors_of(*lead, width=16):
    """Return query, key and value."""
    return draw(*lead, 9, 16), draw(*lead, 13, 16, seed=1), draw(*lead, 13, width, seed=2)


@pytest.mark.spread(2)
@pytest.mark.parametrize(("mode", "backend"), MODES_AND_BACKENDS, indirect=["mode"])
@pytest.mark.parametrize("lead", ((), (3,), (2, 3), (2, 2, 3)), ids=str)
@pytest.mark.parametrize("width", (16, 5))
def test_leading_dimensions_and_values_of_another_width(width, lead, backend, mode):
    tensors = tensors_of(*lead, width=width)
    check(tensors, backend)
    check(tensors, backend, is_causal=True)
    if width == 16:
        check(tensors, backend, scale=0.3)


MASKS = ((13,), (1,), (9, 13), (9, 1), (3, 9, 13), (1, 1, 13), (2, 1, 9, 13), (2, 3, 1, 13), (2, 2, 1, 9, 13))
#: Leading dimensions, and the shape of a mask or None.
SHAPES = [((), None), ((3,), None), ((2, 3), None), ((2, 2, 3), None)]
SHAPES += [((2, 2, 3) if len(mask) == 5 else (2, 3), mask) for mask in MASKS]


def float32(tensor):
    """Return the elements as float32, which holds each of them."""
    return tensor.astype(ms.float32).asnumpy()


def summed(array, shape):
    """Return the gradient of what was broadcast from a shape."""
    array = array.sum(axis=tuple(range(array.ndim - len(shape))), dtype=np.float64)
    return array.sum(axis=tuple(axis for axis, size in enumerate(shape) if size == 1), keepdims=True)


@pytest.mark.spread
@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
@pytest.mark.parametrize("added", (False, True), ids=("boolean", "added"))
@pytest.mark.parametrize(("lead", "shape"), SHAPES, ids=str)
def test_any_rank_and_mask_is_a_call_of_flash_attention(lead, shape, added, dtype, mode):
    """Outputs and gradients have the same bits. Graphs of MindSpore have no Reshape and AddN of bfloat16 on a CPU."""
    sizes = (9, 16), (13, 16), (13, 16), (9, 16)
    arrays = [draw(*lead, *size, seed=seed).astype(dtype_named(dtype)) for seed, size in enumerate(sizes)]
    flat = (int(np.prod(lead[:-1])), lead[-1] if lead else 1)
    whole = [Tensor(float32(one).reshape(*flat, *size)).astype(one.dtype) for one, size in zip(arrays, sizes)]
    mask = hidden = bias = None
    if shape is not None:
        mask = draw(*shape, seed=3).astype(dtype_named(dtype))
        full = np.ascontiguousarray(np.broadcast_to(float32(mask), (*lead, 9, 13)).reshape(-1, 3, 9, 13))
        hidden, bias = (None, Tensor(full)) if added else (Tensor(full <= -0.5), None)
        mask = mask if added else Tensor(float32(mask) > -0.5)
    with attention_backend("cpu"):
        found = with_gradients(Network(scaled_dot_product_attention), *arrays[:3], mask, arrays[3])
        with in_mode("pynative"):
            expected = with_gradients(Network(flash_attention), *whole[:3], hidden, bias, whole[3])
    found, expected = (list(map(float32, results)) for results in (found, expected))
    for one, other in zip(found[:4], expected):
        np.testing.assert_array_equal(one.reshape(other.shape), other)
    if bias is not None:  # rounded once; where gradients of a row add up to zero, the rounding of float32 remains
        d_mask = summed(expected[4].reshape(*lead, 9, 13), shape)
        np.testing.assert_allclose(found[4], d_mask, rtol=2**-8 if dtype == "bfloat16" else 1e-5, atol=1e-5)


@pytest.mark.parametrize(("mode", "backend"), MODES_AND_BACKENDS, indirect=["mode"])
def test_true_takes_part_and_a_query_that_takes_part_in_nothing_gives_zero(backend, mode):
    tensors = tensors_of(2, 3)
    mask = np.random.default_rng(0).random((9, 13)) < 0.5
    mask[4] = False
    check(tensors, backend, attn_mask=Tensor(mask))
    added = np.where(mask, 0.0, -np.inf).astype(np.float32)
    check(tensors, backend, attn_mask=Tensor(added))
    with attention_backend(backend):
        assert not scaled_dot_product_attention(*tensors, attn_mask=Tensor(added)).asnumpy()[:, :, 4].any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_grouped_queries_need_to_be_enabled(backend):
    tensors = draw(2, 6, 9, 16), draw(2, 2, 13, 16, seed=1), draw(2, 2, 13, 16, seed=2)
    check(tensors, backend, enable_gqa=True)
    with pytest.raises(ValueError, match="got shapes .*; with enable_gqa=True heads that divide the heads of"):
        scaled_dot_product_attention(*tensors)


BROADCASTS = [  # leading dimensions of query, key and value
    *(((2, 6), (6,), (6,)), ((2, 6), (1, 6), (2, 6)), ((2, 6), (1, 6), (1, 6)), ((2, 6), (2, 1), (2, 1))),
    *(((2, 6), (1,), (2, 6)), ((2, 6), (), (6,)), ((6,), (2, 6), (2, 1)), ((1, 1), (2, 6), (2, 6))),
    *(((2, 2, 3), (3,), (2, 1, 3)), ((1, 2, 3), (2, 1, 1), (3,)), ((), (3,), (3,)), ((3,), (), ())),
]
GROUPED = [((2, 6), (2, 2), (2, 3)), ((2, 6), (2, 3), (2, 6)), ((2, 6), (1, 2), (2, 1)), ((6,), (2, 2), (2, 3))]


@pytest.mark.parametrize(("mode", "backend"), MODES_AND_BACKENDS, indirect=["mode"])
def test_leading_dimensions_and_heads_broadcast_with_gradients(backend, mode):
    """Each input stands for its copies, and its gradient is the sum of their gradients. New sizes are cheap only on
    backend cpu without a graph.
    """
    for leads in (*BROADCASTS, *GROUPED)[:: 1 if (mode, backend) == ("pynative", "cpu") else 5]:
        grouped = leads in GROUPED
        arrays = [
            draw(*lead, *end, seed=i).asnumpy()
            for i, (lead, end) in enumerate(zip(leads, ((9, 16), (13, 16), (13, 5))))
        ]
        copies = arrays
        if grouped:
            copies = [array.repeat(leads[0][-1] // array.shape[-3], -3) for array in arrays]
        lead = np.broadcast_shapes(*(one.shape[:-2] for one in copies))
        whole = [np.ascontiguousarray(np.broadcast_to(one, (*lead, *one.shape[-2:]))) for one in copies]
        mask, d_output = draw(9, 13, seed=4), draw(*lead, 9, 5, seed=5)
        with attention_backend(backend):
            net = Network(scaled_dot_product_attention, enable_gqa=grouped)
            found = with_gradients(net, *map(Tensor, arrays), mask, d_output)
            with in_mode("pynative"):
                expected = with_gradients(Network(scaled_dot_product_attention), *map(Tensor, whole), mask, d_output)
        found, expected = (list(map(float32, results)) for results in (found, expected))
        for place, given in enumerate(arrays, 1):
            right = summed(expected[place], copies[place - 1].shape)
            if grouped:
                right = right.reshape(*given.shape[:-2], -1, *given.shape[-2:]).sum(-3)
            expected[place] = right
        for one, other in zip(found, expected):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5 * np.abs(other).max())


@pytest.mark.parametrize(("mode", "backend"), MODES_AND_BACKENDS, indirect=["mode"])
@pytest.mark.parametrize("rate", (1, 1.0))
def test_dropping_everything_gives_zeros_and_gradients_of_zeros(rate, backend, mode):
    tensors = tensors_of(2, 3)

    def loss(query, key, value):
        return scaled_dot_product_attention(query, key, value, dropout_p=rate).sum()

    with attention_backend(backend):
        output, gradients = ops.value_and_grad(loss, grad_position=(0, 1, 2))(*tensors)
    assert not output.asnumpy().any() and not any(gradient.asnumpy().any() for gradient in gradients)


@pytest.mark.parametrize(("mode", "backend"), MODES_AND_BACKENDS, indirect=["mode"])
def test_a_given_seed_decides_what_dropout_drops_in_a_graph_too(backend, mode):
    tensors = draw(3, 40, 16), draw(3, 40, 16, seed=1), draw(3, 40, 16, seed=2)

    def run(query, key, value, seed):
        return scaled_dot_product_attention(query, key, value, None, 0.5, seed=seed)

    if mode == "graph":
        run = ms.jit(run)
    with attention_backend(backend):
        one, again, other = (run(*tensors, Tensor(seed, ms.int64)).asnumpy() for seed in ([1, 2], [1, 2], [1, 3]))
    np.testing.assert_array_equal(one, again)
    assert np.abs(one - other).max() > 0.1
    batched = [tensor.reshape(1, 3, 40, 16) for tensor in tensors]
    expected = flash_attention(*batched, dropout_rate=0.5, seed=Tensor([1, 2], ms.int64), backend="math")
    np.testing.assert_allclose(one, expected.asnumpy()[0], atol=2e-5)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"is_causal": True, "attn_mask": (9, 13)}, ValueError, "attn_mask: given together with is_causal=True"),
        ({"attn_mask": (9, 12)}, ValueError, r"attn_mask: got shape \(9, 12\), allowed is any that broadcasts to"),
        (
            {"query": (3, 9, 16), "key": (3, 13, 16), "value": (3, 13, 16), "attn_mask": (2, 9, 13)},
            *(ValueError, r"attn_mask: got shape \(2, 9, 13\), allowed is any that broadcasts to \(3, 9, 13\)"),
        ),
        ({"attn_mask": (9, 13), "mask_dtype": np.int32}, TypeError, "attn_mask: got dtype int32, allowed are bool"),
        ({"query": (9,)}, ValueError, r"query: got shape \(9,\)"),
        ({"key": (4, 3, 13, 16)}, ValueError, "query, key, value: got shapes"),
        ({"key": (2, 2, 13, 16), "enable_gqa": True}, ValueError, "key: got 2 heads, which do not divide the 3 heads"),
        ({"value": (2, 6, 13, 16), "enable_gqa": True}, ValueError, "value: got 6 heads, which do not divide the 3"),
        ({"key": (2, 3, 13, 8), "value": (2, 3, 13, 8)}, ValueError, "key: got head_dim 8"),
        ({"attn_mask": (9, 13), "mask_dtype": np.int16}, TypeError, r"and float32 \(added\)$"),
    ],
)
def test_bad_arguments(change, error, message, mode):
    shapes = {"query": (2, 3, 9, 16), "key": (2, 3, 13, 16), "value": (2, 3, 13, 16)}
    change = dict(change)
    tensors = [draw(*change.pop(name, shape)) for name, shape in shapes.items()]
    mask_shape, mask_dtype = change.pop("attn_mask", None), change.pop("mask_dtype", bool)
    mask = None if mask_shape is None else Tensor(np.ones(mask_shape, mask_dtype))
    with pytest.raises(error, match=message):
        scaled_dot_product_attention(*tensors, attn_mask=mask, **change)


class Summed(nn.Cell):
    """The sum of attention, as a Cell: MindSpore 2.0 fails after an exception in a function (mindspore_faults)."""

    def construct(self, x):
        return flash_attention(x, x, x).sum()


def test_float64_has_no_gradient_either(mode):
    with pytest.raises(TypeError, match="query: got dtype float64, allowed are float16, bfloat16, float32"):
        ops.grad(Summed())(Tensor(np.ones((2, 4, 16, 8))))


@pytest.mark.parametrize("kind", ("dense", "packed", "paged"))
def test_a_window_in_a_list_may_change(kind):
    query, packed, cache, ends = draw(1, 1, 16, 16), draw(16, 1, 16), draw(1, 16, 1, 16), (0, 16)
    pages = Tensor([[0]], ms.int32), Tensor([16], ms.int32)

    def run(window):
        if kind == "dense":
            return flash_attention(query, query, query, window_size=window).asnumpy()
        if kind == "packed":
            return flash_attention_varlen(packed, packed, packed, ends, ends, window_size=window).asnumpy()
        return paged_attention(cache, cache, cache, *pages, window_size=window).asnumpy()

    window = [4, 0]
    run(window)
    window[0] = 2
    for same in (window, [2, 0]):
        np.testing.assert_array_equal(run(same), run((2, 0)))
    for wrong in ([2, False], np.array([2, 0])):
        with pytest.raises(TypeError, match="window_size: got .*, allowed is"):
            run(wrong)


def test_1_is_no_true_after_a_call_with_true_either():
    query, ends = draw(2, 3, 9, 16), (4, 9)
    packed = draw(9, 3, 16)
    flash_attention(query, query, query, bias_grad=True, window_size=(1, 1), return_lse=True)
    flash_attention_varlen(packed, packed, packed, ends, ends, bias_grad=True)
    for wrong in ({"bias_grad": 1}, {"return_lse": 1}, {"window_size": (True, True)}):
        with pytest.raises(TypeError, match=f"{next(iter(wrong))}: got .*, allowed is"):
            flash_attention(query, query, query, **{"return_lse": True, **wrong})
    with pytest.raises(TypeError, match="bias_grad: got int 1, allowed is True or False"):
        flash_attention_varlen(packed, packed, packed, ends, ends, bias_grad=1)


@pytest.mark.parametrize(("mode", "backend"), MODES_AND_BACKENDS, indirect=["mode"])
def test_gradient_through_the_logsumexp_alone(backend, mode):
    query, key, value = draw(1, 2, 30, 16), draw(1, 2, 40, 16, seed=1), draw(1, 2, 40, 16, seed=2)
    weight = draw(1, 2, 30, seed=3)

    def loss(query, key, value):
        return (flash_attention(query, key, value, causal=True, return_lse=True, backend=backend)[1] * weight).sum()

    call = Call(1, 2, 30, 40, 16, dtype="float32", rules=AttentionRules(causal=True))
    exact = reference.truth(
        call,
        *(tensor.asnumpy() for tensor in (query, key, value)),
        d_output=np.zeros(query.shape),
        d_logsumexp=weight.asnumpy(),
    )
    gradients = ops.grad(loss, grad_position=(0, 1, 2))(query, key, value)
    for gradient, expected in zip(gradients, (exact.d_query, exact.d_key, exact.d_value)):
        np.testing.assert_allclose(gradient.asnumpy(), expected, atol=1e-5, rtol=1e-5)
