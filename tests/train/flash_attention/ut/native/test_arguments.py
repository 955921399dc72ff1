"""Every argument is checked before anything is read: one return code per kind of mistake, and the process lives on."""

from types import SimpleNamespace

import numpy as np
import pytest
from flash_attention.backends.cpu import library
from flash_attention.call import Call

CALL = Call(batch=2, heads=4, kv_heads=2, seq_q=5, seq_k=6, head_dim=8, dtype="float32")
COUNT, CONFIG, DTYPE, SHAPE, POINTER, VALUE, TOO_LARGE, _, TARGET = range(1, 10)
BAD_PREFIX = 15
MASK, BIAS, KEEP_BITS, SEED, SINKS, PREFIX, SEGMENTS, KV_SEGMENTS, BLOCKS, RULES, RATES = range(3, 14)
# Fields of the rules, in the order of csrc/custom.cpp.
(VERSION, CAUSAL, FIRST_QUERY, LEFT, RIGHT, PREV, NEXT, BLOCK, DROPOUT, THRESHOLD, BATCH_OFFSET, HEAD_OFFSET,
 HAS_MASK, BIAS_KIND, LAYOUT, HEAD_DIM, VALUE_DIM, HAS_SINKS, HAS_PREFIX, HAS_SEGMENTS, TILE) = range(21)  # fmt: skip


def zeros(*shape, dtype=np.float32):
    """Return an array of zeros."""
    return np.zeros(shape, dtype)


def forward_inputs(call=CALL) -> list:
    """Return the forward function's inputs for a call, with no optional tensor."""
    shapes = call.shape_query(), call.shape_key(), call.shape_key()
    return [*(zeros(*shape) for shape in shapes), *[None] * 9, *library.configuration(call)]


def forward_outputs() -> list:
    """Return the arrays for output and logsumexp."""
    return [zeros(*CALL.shape_query()), zeros(*CALL.shape_lse())]


def status(inputs, outputs=None, function="flash_attention_forward") -> int:
    """Return the status of a call."""
    return library.load().call(function, inputs, forward_outputs() if outputs is None else outputs)


def test_good_arguments():
    assert status(forward_inputs()) == 0


def rates(*numbers) -> np.ndarray:
    """Return rates that begin with these numbers."""
    return np.array([*numbers, *[0] * (8 - len(numbers))], np.float32)


OF_ZEROS = np.zeros(2, np.int64)
# By status: the number of an input, and the input.
WRONG_INPUTS = {
    POINTER: ((0, None), (1, None), (RULES, None), (RATES, None)),
    DTYPE: (
        *((0, zeros(2, 4, 5, 8, dtype=np.float64)), (0, zeros(2, 4, 5, 8, dtype=np.float16))),
        *((1, zeros(2, 2, 6, 8, dtype=np.int32)), (RULES, zeros(21, dtype=np.int32))),
    ),
    SHAPE: (
        *((0, zeros(*shape)) for shape in ((2, 4, 40), (2, 4, 5, 8, 1), (1, 4, 5, 8), (2, 4, 5, 16), (2, 5, 5, 8))),
        *((1, zeros(2, 3, 6, 8)), (1, zeros(2, 2, 6, 9)), (2, zeros(2, 2, 7, 8)), (2, zeros(2, 2, 6))),
    ),
    0: ((0, zeros(2, 4, 0, 8)),),  # no score
    CONFIG: (
        *((RULES, zeros(20, dtype=np.int64)), (RULES, zeros(21, dtype=np.int64))),
        *((RATES, zeros(4)), (RATES, zeros(4 + 5))),
    ),
    VALUE: tuple((RATES, rates(*one)) for one in ((np.nan, 0, 1), (np.inf, 0, 1), (1, 0, 1, -1), (1, 0, 1, np.inf))),
}


@pytest.mark.parametrize(
    ("index", "tensor", "expected"), [(*row, status) for status, rows in WRONG_INPUTS.items() for row in rows]
)
def test_tensors(index, tensor, expected):
    inputs = forward_inputs()
    inputs[index] = tensor
    assert status(inputs) == expected


INT32, INT64, UINT8 = (np.dtype(name) for name in ("int32", "int64", "uint8"))
BY_PREFIX, DRAWN = {HAS_PREFIX: 1, CAUSAL: 1}, {DROPOUT: 1, THRESHOLD: 9}
# By status: the rules, and the tensors beside them by their numbers.
WRONG_RULES = {
    VALUE: (
        *({CAUSAL: 2}, {FIRST_QUERY: -2}, {LEFT: -2}, {RIGHT: 2**62}, {PREV: -1}, {NEXT: 2**40}, {BLOCK: 0}),
        *({BLOCK: 2**40}, {DROPOUT: 3}, {BIAS_KIND: 4}, {HAS_MASK: 2}, {LAYOUT: -1}, {LAYOUT: 6}, {HEAD_DIM: 0}),
        *({HEAD_DIM: 1025}, {VALUE_DIM: 0}, {VALUE_DIM: 1025}, {HAS_SINKS: 2}, {TILE: -64}),
        ({TILE: 96}, {BLOCKS: zeros(1, 1, 1, 1, dtype=UINT8)}),
        ({HAS_PREFIX: 1}, {PREFIX: np.int32([0, 6])}),
        *(({**BY_PREFIX, field: 3}, {PREFIX: np.int32([0, 6])}) for field in (LEFT, NEXT)),
        *(({DROPOUT: 1, THRESHOLD: threshold}, {SEED: OF_ZEROS}) for threshold in (0, 65536)),
        *(({**DRAWN, HEAD_OFFSET: -1}, {SEED: OF_ZEROS}), ({**DRAWN, BATCH_OFFSET: 2**33}, {SEED: OF_ZEROS})),
        (DRAWN, {SEED: OF_ZEROS, RATES: rates(1)}),
    ),
    POINTER: (
        *({HAS_MASK: 1}, {BIAS_KIND: 1}, {BIAS_KIND: 3}, {HAS_SINKS: 1}, BY_PREFIX, {HAS_SEGMENTS: 1}, DRAWN),
        *({DROPOUT: 2}, {TILE: 64}, ({HAS_SEGMENTS: 1}, {SEGMENTS: zeros(2, 5, dtype=INT32)})),
    ),
    DTYPE: (
        *(({HAS_MASK: 1}, {MASK: zeros(2, 1, 5, 6)}), ({BIAS_KIND: 1}, {BIAS: zeros(1, 4, 1, 6, dtype=UINT8)})),
        *(({BIAS_KIND: 3}, {BIAS: zeros(4, dtype=np.float16)}), ({HAS_SINKS: 1}, {SINKS: zeros(4, dtype=np.float16)})),
        *((BY_PREFIX, {PREFIX: zeros(2, dtype=INT64)}), (DRAWN, {SEED: zeros(2, dtype=INT32)})),
        ({HAS_SEGMENTS: 1}, {SEGMENTS: zeros(2, 5), KV_SEGMENTS: zeros(2, 6)}),
        *(({DROPOUT: 2}, {KEEP_BITS: zeros(2, 4, 5, 1)}), ({TILE: 64}, {BLOCKS: zeros(1, 1, 1, 1)})),
    ),
    SHAPE: (
        *({LAYOUT: 2}, {LAYOUT: 1}, {HEAD_DIM: 4}, {VALUE_DIM: 4}),
        *(
            ({HAS_MASK: 1}, {MASK: zeros(*shape, dtype=UINT8)})
            for shape in ((2, 5, 6), (2, 1, 5, 1), (3, 1, 5, 6), (1, 2, 5, 6))
        ),
        ({BIAS_KIND: 1}, {BIAS: zeros(1, 4, 2, 6)}),
        *(({BIAS_KIND: 3}, {BIAS: zeros(*shape)}) for shape in ((3,), (1, 4), (2, 4, 1))),
        *(({HAS_SINKS: 1}, {SINKS: zeros(5)}), (BY_PREFIX, {PREFIX: zeros(3, dtype=INT32)})),
        ({HAS_SEGMENTS: 1}, {SEGMENTS: zeros(2, 6, dtype=INT32), KV_SEGMENTS: zeros(2, 6, dtype=INT32)}),
        *(
            ({TILE: 64}, {BLOCKS: zeros(*shape, dtype=UINT8)})
            for shape in ((1, 1), (1, 1, 1, 2), (1, 1, 2, 1), (3, 1, 1, 1), (1, 2, 1, 1))
        ),
        *((DRAWN, {SEED: zeros(3, dtype=INT64)}), ({DROPOUT: 2}, {KEEP_BITS: zeros(2, 4, 5, 2, dtype=UINT8)})),
    ),
    BAD_PREFIX: tuple((BY_PREFIX, {PREFIX: np.int32(ends)}) for ends in ([0, 7], [-1, 0])),
}


@pytest.mark.parametrize(
    ("rules", "tensors", "expected"),
    [(*(row if isinstance(row, tuple) else (row, {})), status) for status, rows in WRONG_RULES.items() for row in rows],
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
    inputs = [zeros(*shape) for shape in (CALL.shape_query(), CALL.shape_key(), CALL.shape_query())]
    with pytest.raises(library.KernelError, match=r"shape that does not fit.*return code 4"):
        library.forward(CALL, *inputs)
    monkeypatch.setenv(library.ISA_VARIABLE, "sse9")
    with pytest.raises(library.KernelError, match="FLASH_ATTENTION_CPU_ISA"):
        library.forward(CALL, *inputs[:2], inputs[1])
    monkeypatch.delenv(library.ISA_VARIABLE)
    library.forward(CALL, *inputs[:2], inputs[1])
    messages = {library.load().message(code) for code in range(12)}
    assert len(messages) == 12  # 0 to 10, and one for a code that does not exist
