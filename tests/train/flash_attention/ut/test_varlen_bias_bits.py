"""Compare flash_attention_varlen with a bias per key and given keep decisions with a loop. The loop calls attention
for each sequence.
"""

import mindspore as ms
import numpy as np
import pytest
from flash_attention import flash_attention, flash_attention_varlen
from mindspore import Tensor, ops

from tests.train.flash_attention.support.arrays import ends
from tests.train.flash_attention.support.modes import in_mode

HEADS, KV_HEADS, DIM, RATE = 4, 2, 24, 0.3
LENGTHS_Q, LENGTHS_K = (5, 0, 130, 1, 40), (5, 4, 77, 19, 300)
KINDS = {
    "bias": ("bias",),
    "bias of all heads": ("shared bias",),
    "bits": ("bits",),
    "all": ("bias", "bits", "sinks"),
}
BACKENDS = ("cpu", "math")


def given(kind: str) -> tuple:
    """Return float32 tensors, the keep bits of each sequence, and the output's gradient. The tensors are query, key,
    value, bias and sinks (None where absent).
    """
    draw = np.random.default_rng(3)
    rows, keys = sum(LENGTHS_Q), sum(LENGTHS_K)
    tensors = [draw.standard_normal(shape) for shape in ((rows, HEADS, DIM), *[(keys, KV_HEADS, DIM)] * 2)]
    heads = 1 if "shared bias" in KINDS[kind] else HEADS
    bias = draw.standard_normal((heads, keys)) * 2 if {"bias", "shared bias"} & set(KINDS[kind]) else None
    if bias is not None:
        bias[:, 6] = -np.inf  # hides a key
    sinks = draw.standard_normal(HEADS) if "sinks" in KINDS[kind] else None
    bits = [draw.integers(0, 256, (1, HEADS, q, -(-k // 8))).astype(np.uint8) for q, k in zip(LENGTHS_Q, LENGTHS_K)]
    gradient = draw.standard_normal((rows, HEADS, DIM))
    arrays = [None if array is None else array.astype(np.float16).astype(np.float32) for array in (bias, sinks)]
    return [array.astype(np.float16).astype(np.float32) for array in tensors], *arrays, bits, gradient


def differentiated(function, tensors: list, gradient) -> list:
    """Return the output, and the gradients of the tensors."""
    grad = ops.GradOperation(get_all=True, sens_param=True)(function)
    return [result.astype(ms.float32).asnumpy() for result in (function(*tensors), *grad(*tensors, gradient))]


def as_taken(bias, backend: str):
    """Return a bias in the dtype that the backend takes."""
    return bias.astype(np.float16) if bias is not None and backend == "emulator" else bias


def loop(kind: str, backend: str, dtype) -> list:
    """Return a call for each sequence, not compiled; sums of what they share."""
    tensors, bias, sinks, bits, gradient = given(kind)
    results = [np.zeros(array.shape, np.float32) for array in (gradient, *tensors)]
    results += [np.zeros(array.shape, np.float32) for array in (bias, sinks) if array is not None]
    rules = {"causal": True, "causal_alignment": "bottom_right", "input_layout": "BSND", "backend": backend}
    for index, (q, k) in enumerate(zip(LENGTHS_Q, LENGTHS_K)):
        if q == 0:
            continue
        rows, keys = slice(ends(LENGTHS_Q)[index], None), slice(ends(LENGTHS_K)[index], None)
        parts = [tensors[0][rows][:q], tensors[1][keys][:k], tensors[2][keys][:k]]
        inputs = [Tensor(part[None]).astype(dtype) for part in parts]
        names = []
        if bias is not None:
            names.append("bias")
            inputs.append(Tensor(as_taken(np.ascontiguousarray(bias[None, :, None, keys][..., :k]), backend)))
        if sinks is not None:
            names.append("sinks")
            inputs.append(Tensor(sinks))
        others = {"dropout_rate": RATE, "keep_bits": Tensor(bits[index])} if "bits" in KINDS[kind] else {}

        def call(query, key, value, *more, names=names, others=others):
            return flash_attention(query, key, value, **dict(zip(names, more)), **others, **rules)

        with in_mode("pynative"):
            got = differentiated(call, inputs, Tensor(gradient[rows][:q][None]).astype(dtype))
        results[0][rows][:q] = got[0][0]
        results[1][rows][:q] = got[1][0]
        results[2][keys][:k], results[3][keys][:k] = got[2][0], got[3][0]
        if bias is not None:
            results[4][:, keys][:, :k] = got[4][0, :, 0]
        if sinks is not None:
            results[-1] += got[-1]
    return results


def packed(kind: str, backend: str, dtype, lengths: tuple) -> list:
    """Return one call."""
    tensors, bias, sinks, bits, gradient = given(kind)
    biased, sunk = bias is not None, sinks is not None
    inputs = [Tensor(array).astype(dtype) for array in tensors]
    inputs += [Tensor(array) for array in (as_taken(bias, backend), sinks) if array is not None]
    rate, keep = 0.0, None
    if "bits" in KINDS[kind]:
        rate, keep = RATE, Tensor(np.concatenate([part.ravel() for part in bits]))
    lengths_q, lengths_k = lengths

    def call(query, key, value, *more):
        return flash_attention_varlen(
            query,
            key,
            value,
            lengths_q,
            lengths_k,
            bias=more[0] if biased else None,
            sinks=more[-1] if sunk else None,
            dropout_rate=rate,
            keep_bits=keep,
            causal=True,
            causal_alignment="bottom_right",
            backend=backend,
        )

    return differentiated(call, inputs, Tensor(gradient).astype(dtype))


@pytest.mark.daily("pynative-*-cpu", "pynative-all-math", "graph-all-cpu")
@pytest.mark.asynchronous
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_as_a_call_for_each_sequence(kind, backend, mode):
    lengths = ends(LENGTHS_Q), ends(LENGTHS_K)
    if backend == "cpu":
        lengths = Tensor(lengths[0], ms.int32), Tensor(lengths[1], ms.int64)
    results, expected = packed(kind, backend, ms.float32, lengths), loop(kind, backend, ms.float32)
    assert len(results) == len(expected)
    for place, (result, right) in enumerate(zip(results, expected)):
        # A sum of sinks over sequences rounds by its order; the kernel gives the bits of the calls in all else.
        error = 1e-5 if backend == "math" or (place == len(results) - 1 and kind == "all") else 0
        np.testing.assert_allclose(result, right, atol=error, rtol=0, err_msg=f"result {place}")
    assert not results[2][6].any()  # the hidden key


def test_half_precision():
    results = packed("all", "cpu", ms.float16, (ends(LENGTHS_Q), ends(LENGTHS_K)))
    for result, right in zip(results[:4], loop("all", "cpu", ms.float16)):
        np.testing.assert_array_equal(result, right)


def test_bad_inputs_are_named():
    (query, key, value), bias, _, bits, _ = given("all")
    tensors, lengths = [Tensor(array) for array in (query, key, value)], (ends(LENGTHS_Q), ends(LENGTHS_K))
    keys = sum(LENGTHS_K)
    with pytest.raises(ValueError, match=rf"bias: got shape \(4, 3\), allowed is .*here \(4 or 1, {keys}\)"):
        flash_attention_varlen(*tensors, *lengths, bias=Tensor(bias[:, :3]))
    with pytest.raises(ValueError, match=r"bias: got shape \(1, 4, 1, 405\)"):
        flash_attention_varlen(*tensors, *lengths, bias=Tensor(bias[None, :, None]))
    with pytest.raises(TypeError, match="bias: got dtype int32"):
        flash_attention_varlen(*tensors, *lengths, bias=Tensor(bias).astype(ms.int32))
    flat = np.concatenate([part.ravel() for part in bits])
    with pytest.raises(ValueError, match=r"keep_bits: got shape \(1, 4, 5, 1\), allowed is \(bytes,\)"):
        flash_attention_varlen(*tensors, *lengths, dropout_rate=0.5, keep_bits=Tensor(bits[0]))
    for backend, error in (("cpu", RuntimeError), ("math", ValueError)):
        with pytest.raises(error, match="keep_bits"):
            flash_attention_varlen(
                *tensors, *lengths, dropout_rate=0.5, keep_bits=Tensor(flat[1:]), backend=backend
            ).asnumpy()
    half = [tensor.astype(ms.float16) for tensor in tensors]
    tensors = Tensor(lengths[0], ms.int32), lengths[1]
    with pytest.raises(RuntimeError, match="of packed sequences whose lengths are data the TIK operators take no bias"):
        flash_attention_varlen(*half, *tensors, bias=Tensor(bias).astype(ms.float16), backend="emulator")
    with pytest.raises(RuntimeError, match="whose lengths are data the TIK operators take no keep_bits"):
        flash_attention_varlen(*half, *tensors, dropout_rate=0.5, keep_bits=Tensor(flat), backend="emulator")


@pytest.mark.daily("pynative-all")
@pytest.mark.parametrize("kind", ("all", "bias of all heads"))
def test_tik_operators_run_each_sequence_alone(kind, mode):
    """Constant lengths: the same bits as a call for each."""
    results = packed(kind, "emulator", ms.float16, (ends(LENGTHS_Q), ends(LENGTHS_K)))
    for place, (result, right) in enumerate(zip(results, loop(kind, "emulator", ms.float16))):
        # The gradients of what sequences share round as float16 once more, or once less.
        np.testing.assert_allclose(result, right, atol=5e-3 if place > 3 else 0, rtol=2e-3 if place > 3 else 0)


def test_tik_operators_take_windows_in_blocks(mode):
    (query, key, value), *_ = given("bits")
    arguments = [Tensor(array).astype(ms.float16) for array in (query, key, value)] + [ends(LENGTHS_Q), ends(LENGTHS_K)]
    rules = {"prev_block_num": 0, "next_block_num": 0, "causal": True}
    ours, plain = (
        flash_attention_varlen(*arguments, **rules, backend=name).asnumpy().astype(np.float32)
        for name in ("emulator", "cpu")
    )
    np.testing.assert_allclose(ours, plain, atol=2e-3)
