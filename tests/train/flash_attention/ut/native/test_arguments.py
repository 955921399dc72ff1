"""Every argument is checked before anything is read: one return code per kind of mistake, and the process lives on."""

from types import SimpleNamespace

import numpy as np
import pytest
from flash_attention.backends.cpu import library
from flash_attention.call import Call

PROBLEM = Call(batch=2, heads=4, kv_heads=2, seq_q=5, seq_k=6, head_dim=8, dtype="float32")
COUNT, CONFIG, DTYPE, SHAPE, POINTER, VALUE, TOO_LARGE, _, TARGET = range(1, 10)
BAD_PREFIX = 15
MASK, BIAS, KEEP_BITS, SEED, SINKS, PREFIX, SEGMENTS, KV_SEGMENTS, RULES, RATES = range(3, 13)
# Fields of the rules, in the order of csrc/custom.cpp.
(VERSION, CAUSAL, BOTTOM_RIGHT, LEFT, RIGHT, PREV, NEXT, BLOCK, DROPOUT, THRESHOLD, BATCH_OFFSET, HEAD_OFFSET,
 HAS_MASK, BIAS_KIND, LAYOUT, HEAD_DIM, VALUE_DIM, HAS_SINKS, HAS_PREFIX, HAS_SEGMENTS) = range(20)  # fmt: skip


def zeros(*shape, dtype=np.float32):
    """Return an array of zeros."""
    return np.zeros(shape, dtype)


def forward_inputs(problem=PROBLEM) -> list:
    """Return the forward function's inputs for a problem, with no optional tensor."""
    shapes = problem.shape_query(), problem.shape_key(), problem.shape_key()
    return [*(zeros(*shape) for shape in shapes), *[None] * 8, *library.configuration(problem)]


def forward_outputs() -> list:
    """Return the arrays for output and logsumexp."""
    return [zeros(*PROBLEM.shape_query()), zeros(*PROBLEM.shape_lse())]


def status(inputs, outputs=None, function="flash_attention_forward") -> int:
    """Return the status of a call."""
    return library.load().call(function, inputs, forward_outputs() if outputs is None else outputs)


def test_good_arguments():
    assert status(forward_inputs()) == 0


@pytest.mark.parametrize(
    ("index", "tensor", "expected"),
    [
        (0, None, POINTER),
        (1, None, POINTER),
        (0, zeros(2, 4, 5, 8, dtype=np.float64), DTYPE),
        (0, zeros(2, 4, 5, 8, dtype=np.float16), DTYPE),
        (1, zeros(2, 2, 6, 8, dtype=np.int32), DTYPE),
        (0, zeros(2, 4, 40), SHAPE),
        (0, zeros(2, 4, 5, 8, 1), SHAPE),
        (0, zeros(2, 4, 0, 8), 0),  # no score
        (0, zeros(1, 4, 5, 8), SHAPE),
        (0, zeros(2, 4, 5, 16), SHAPE),
        (0, zeros(2, 5, 5, 8), SHAPE),
        (1, zeros(2, 3, 6, 8), SHAPE),
        (1, zeros(2, 2, 6, 9), SHAPE),
        (2, zeros(2, 2, 7, 8), SHAPE),
        (2, zeros(2, 2, 6), SHAPE),
        (RULES, None, POINTER),
        (RATES, None, POINTER),
        (RULES, zeros(20, dtype=np.int32), DTYPE),
        (RULES, zeros(19, dtype=np.int64), CONFIG),
        (RULES, zeros(20, dtype=np.int64), CONFIG),
        (RATES, zeros(4), CONFIG),
        (RATES, zeros(4 + 5), CONFIG),
        (RATES, np.array([np.nan, 0, 1, 0, 0, 0, 0, 0], np.float32), VALUE),
        (RATES, np.array([np.inf, 0, 1, 0, 0, 0, 0, 0], np.float32), VALUE),
        (RATES, np.array([1, 0, 1, -1, 0, 0, 0, 0], np.float32), VALUE),
        (RATES, np.array([1, 0, 1, np.inf, 0, 0, 0, 0], np.float32), VALUE),
    ],
)
def test_tensors(index, tensor, expected):
    inputs = forward_inputs()
    inputs[index] = tensor
    assert status(inputs) == expected


@pytest.mark.parametrize(
    ("rules", "tensors", "expected"),
    [
        ({CAUSAL: 2}, {}, VALUE),
        ({BOTTOM_RIGHT: -1}, {}, VALUE),
        ({LEFT: -2}, {}, VALUE),
        ({RIGHT: 2**62}, {}, VALUE),
        ({PREV: -1}, {}, VALUE),
        ({NEXT: 2**40}, {}, VALUE),
        ({BLOCK: 0}, {}, VALUE),
        ({BLOCK: 2**40}, {}, VALUE),
        ({DROPOUT: 3}, {}, VALUE),
        ({BIAS_KIND: 4}, {}, VALUE),
        ({HAS_MASK: 2}, {}, VALUE),
        ({HAS_MASK: 1}, {}, POINTER),
        ({HAS_MASK: 1}, {MASK: zeros(2, 1, 5, 6)}, DTYPE),
        ({HAS_MASK: 1}, {MASK: zeros(2, 5, 6, dtype=np.uint8)}, SHAPE),
        ({HAS_MASK: 1}, {MASK: zeros(2, 1, 5, 1, dtype=np.uint8)}, SHAPE),
        ({HAS_MASK: 1}, {MASK: zeros(3, 1, 5, 6, dtype=np.uint8)}, SHAPE),
        ({HAS_MASK: 1}, {MASK: zeros(1, 2, 5, 6, dtype=np.uint8)}, SHAPE),
        ({BIAS_KIND: 1}, {}, POINTER),
        ({BIAS_KIND: 1}, {BIAS: zeros(1, 4, 1, 6, dtype=np.uint8)}, DTYPE),
        ({BIAS_KIND: 1}, {BIAS: zeros(1, 4, 2, 6)}, SHAPE),
        ({BIAS_KIND: 3}, {}, POINTER),
        ({BIAS_KIND: 3}, {BIAS: zeros(4, dtype=np.float16)}, DTYPE),
        ({BIAS_KIND: 3}, {BIAS: zeros(3)}, SHAPE),
        ({BIAS_KIND: 3}, {BIAS: zeros(1, 4)}, SHAPE),
        ({BIAS_KIND: 3}, {BIAS: zeros(2, 4, 1)}, SHAPE),
        ({LAYOUT: -1}, {}, VALUE),
        ({LAYOUT: 6}, {}, VALUE),
        ({LAYOUT: 2}, {}, SHAPE),
        ({LAYOUT: 1}, {}, SHAPE),
        ({HEAD_DIM: 0}, {}, VALUE),
        ({HEAD_DIM: 1025}, {}, VALUE),
        ({HEAD_DIM: 4}, {}, SHAPE),
        ({VALUE_DIM: 0}, {}, VALUE),
        ({VALUE_DIM: 1025}, {}, VALUE),
        ({VALUE_DIM: 4}, {}, SHAPE),
        ({HAS_SINKS: 2}, {}, VALUE),
        ({HAS_SINKS: 1}, {}, POINTER),
        ({HAS_SINKS: 1}, {SINKS: zeros(4, dtype=np.float16)}, DTYPE),
        ({HAS_SINKS: 1}, {SINKS: zeros(5)}, SHAPE),
        ({HAS_PREFIX: 1, CAUSAL: 1}, {}, POINTER),
        ({HAS_PREFIX: 1, CAUSAL: 1}, {PREFIX: zeros(2, dtype=np.int64)}, DTYPE),
        ({HAS_PREFIX: 1, CAUSAL: 1}, {PREFIX: zeros(3, dtype=np.int32)}, SHAPE),
        ({HAS_PREFIX: 1, CAUSAL: 1}, {PREFIX: np.int32([0, 7])}, BAD_PREFIX),
        ({HAS_PREFIX: 1, CAUSAL: 1}, {PREFIX: np.int32([-1, 0])}, BAD_PREFIX),
        ({HAS_PREFIX: 1}, {PREFIX: np.int32([0, 6])}, VALUE),
        ({HAS_PREFIX: 1, CAUSAL: 1, LEFT: 3}, {PREFIX: np.int32([0, 6])}, VALUE),
        ({HAS_PREFIX: 1, CAUSAL: 1, NEXT: 3}, {PREFIX: np.int32([0, 6])}, VALUE),
        ({HAS_SEGMENTS: 1}, {}, POINTER),
        ({HAS_SEGMENTS: 1}, {SEGMENTS: zeros(2, 5), KV_SEGMENTS: zeros(2, 6)}, DTYPE),
        ({HAS_SEGMENTS: 1}, {SEGMENTS: zeros(2, 5, dtype=np.int32)}, POINTER),
        ({HAS_SEGMENTS: 1}, {SEGMENTS: zeros(2, 6, dtype=np.int32), KV_SEGMENTS: zeros(2, 6, dtype=np.int32)}, SHAPE),
        ({DROPOUT: 1, THRESHOLD: 9}, {}, POINTER),
        ({DROPOUT: 1, THRESHOLD: 9}, {SEED: zeros(2, dtype=np.int32)}, DTYPE),
        ({DROPOUT: 1, THRESHOLD: 9}, {SEED: zeros(3, dtype=np.int64)}, SHAPE),
        ({DROPOUT: 1, THRESHOLD: 0}, {SEED: zeros(2, dtype=np.int64)}, VALUE),
        ({DROPOUT: 1, THRESHOLD: 65536}, {SEED: zeros(2, dtype=np.int64)}, VALUE),
        ({DROPOUT: 1, THRESHOLD: 9, HEAD_OFFSET: -1}, {SEED: zeros(2, dtype=np.int64)}, VALUE),
        ({DROPOUT: 1, THRESHOLD: 9, BATCH_OFFSET: 2**33}, {SEED: zeros(2, dtype=np.int64)}, VALUE),
        (
            {DROPOUT: 1, THRESHOLD: 9},
            {SEED: zeros(2, dtype=np.int64), RATES: np.float32([1, 0, 0, 0, 0, 0, 0, 0])},
            VALUE,
        ),
        ({DROPOUT: 2}, {}, POINTER),
        ({DROPOUT: 2}, {KEEP_BITS: zeros(2, 4, 5, 2, dtype=np.uint8)}, SHAPE),
        ({DROPOUT: 2}, {KEEP_BITS: zeros(2, 4, 5, 1)}, DTYPE),
    ],
)
def test_rules(rules, tensors, expected):
    inputs = forward_inputs()
    for index, value in rules.items():
        inputs[RULES][index] = value
    for index, tensor in tensors.items():
        inputs[index] = tensor
    assert status(inputs) == expected


@pytest.mark.parametrize("shape", [(2**20, 2**20, 2**20, 8), (1, 2**41, 1, 8), (2**40, 2**7, 1, 8), (2**62, 4, 5, 8)])
def test_sizes_that_overflow(shape):
    """Only the numbers can be refused, because no array of this size exists."""
    small = zeros(1)
    flags, address = SimpleNamespace(c_contiguous=True), SimpleNamespace(data=small.ctypes.data)
    giant = SimpleNamespace(shape=shape, ndim=4, dtype=small.dtype, flags=flags, ctypes=address)
    assert status([giant, *forward_inputs()[1:]]) == TOO_LARGE


def test_unaligned_data():
    memory = zeros(2 * 4 * 5 * 8 * 4 + 1, dtype=np.uint8)
    inputs = forward_inputs()
    inputs[0] = np.frombuffer(memory[1:], np.float32).reshape(2, 4, 5, 8)
    assert status(inputs) == POINTER


def test_counts_and_outputs():
    assert status(forward_inputs()[1:]) == COUNT
    assert status(forward_inputs(), [*forward_outputs(), zeros(1)]) == COUNT
    assert status(forward_inputs(), [zeros(2, 4, 5, 9), zeros(2, 4, 5)]) == SHAPE
    assert status(forward_inputs(), [zeros(2, 4, 5, 8), zeros(2, 4, 6)]) == SHAPE
    assert status(forward_inputs(), [zeros(2, 4, 5, 8), zeros(2, 4, 5, dtype=np.float16)]) == DTYPE


def backward_inputs() -> list:
    """Return the backward function's inputs."""
    inputs = forward_inputs()
    return [*inputs[:RULES], zeros(2, 4, 5, 8), zeros(2, 4, 5), zeros(2, 4, 5, 8), zeros(2, 4, 5), *inputs[RULES:]]


def backward_outputs() -> list:
    """Return the arrays for the gradients of query, key and value."""
    return [zeros(2, 4, 5, 8), zeros(2, 2, 6, 8), zeros(2, 2, 6, 8)]


def test_backward_arguments():
    def backward_status(inputs, outputs, function="flash_attention_backward"):
        return status(inputs, outputs, function)

    assert backward_status(backward_inputs(), backward_outputs()) == 0
    assert backward_status(backward_inputs(), backward_outputs()[:2]) == COUNT
    assert backward_status(backward_inputs(), [*backward_outputs(), zeros(1, 4, 1, 6)]) == COUNT
    for index, tensor, expected in (
        (RULES, None, POINTER),
        (RULES, zeros(2, 4, 5, 9), SHAPE),
        (RULES + 1, zeros(2, 4, 5, dtype=np.float16), DTYPE),
        (RULES + 2, zeros(2, 4, 6, 8), SHAPE),
        (RULES + 3, zeros(2, 4), SHAPE),
    ):
        inputs = backward_inputs()
        inputs[index] = tensor
        assert backward_status(inputs, backward_outputs()) == expected
    without_d_logsumexp = backward_inputs()
    without_d_logsumexp[RULES + 3] = None
    assert backward_status(without_d_logsumexp, backward_outputs()) == 0

    bias = "flash_attention_backward_bias"
    with_bias = backward_inputs()
    assert backward_status(with_bias, [*backward_outputs(), zeros(1, 4, 1, 6)], bias) == POINTER
    with_bias[BIAS] = zeros(1, 4, 1, 6)
    with_bias[RULES + 4][BIAS_KIND] = 1
    assert backward_status(with_bias, [*backward_outputs(), zeros(1, 4, 1, 6)], bias) == 0
    assert backward_status(with_bias, [*backward_outputs(), zeros(1, 4, 6, 1)], bias) == SHAPE


def test_messages(monkeypatch):
    inputs = [zeros(*shape) for shape in (PROBLEM.shape_query(), PROBLEM.shape_key(), PROBLEM.shape_query())]
    with pytest.raises(library.KernelError, match=r"shape that does not fit.*return code 4"):
        library.forward(PROBLEM, *inputs)
    monkeypatch.setenv(library.ISA_VARIABLE, "sse9")
    with pytest.raises(library.KernelError, match="FLASH_ATTENTION_CPU_ISA"):
        library.forward(PROBLEM, *inputs[:2], inputs[1])
    monkeypatch.delenv(library.ISA_VARIABLE)
    library.forward(PROBLEM, *inputs[:2], inputs[1])
    messages = {library.load().message(code) for code in range(12)}
    assert len(messages) == 12  # 0 to 10, and one for a code that does not exist
