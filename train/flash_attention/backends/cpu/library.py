"""The compiled kernel: where it is, how a problem is told to it, and calls on NumPy arrays without MindSpore."""

from __future__ import annotations

import ctypes
import functools
import itertools
from pathlib import Path

import numpy as np

from flash_attention.backends.cpu.build import LIBRARY
from flash_attention.problem import AttentionProblem, alibi_slopes

ISA_VARIABLE = "FLASH_ATTENTION_CPU_ISA"
BUILD_COMMAND = "python -m flash_attention.backends.cpu.build"

# In the order of the enums in csrc/custom.cpp.
_VERSION = 1
_DROPOUT_NONE, _DROPOUT_PHILOX, _DROPOUT_GIVEN = range(3)
_BIAS_KINDS = {"none": 0, "given": 1, "computed": 2}
# No block window reaches further than this; it keeps products of blocks and tokens inside 64 bits.
_MOST_BLOCKS = 1 << 31
_NUMPY_DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}


class KernelError(RuntimeError):
    """The kernel refused a call; the message holds its reason."""


@functools.cache
def load(path: Path = LIBRARY) -> ctypes.CDLL:
    """The library at `path`.

    Raises:
        FileNotFoundError: it was not built; with the command that builds it.
        OSError: it does not load here.
    """
    if not path.exists():
        raise FileNotFoundError(f"the native kernel {path.name} is not built; build it with: {BUILD_COMMAND}")
    library = ctypes.CDLL(str(path))
    library.flash_attention_message.restype = ctypes.c_char_p
    library.flash_attention_isa.restype = ctypes.c_char_p
    return library


def instruction_sets(library: ctypes.CDLL | None = None) -> tuple[str, ...]:
    """Instruction sets that can run here, best first; FLASH_ATTENTION_CPU_ISA takes one of them."""
    named = map((library or load()).flash_attention_isa, itertools.count())
    return tuple(name.decode() for name in itertools.takewhile(lambda name: name is not None, named))


def configuration(problem: AttentionProblem) -> tuple[np.ndarray, np.ndarray]:
    """What the kernel has to know besides the tensors: int64 rules and float32 rates."""
    if problem.active_dropout == 0.0:
        kind = _DROPOUT_NONE
    else:
        kind = _DROPOUT_GIVEN if problem.keep_bits else _DROPOUT_PHILOX
    rules = [
        _VERSION,
        int(problem.causal),
        int(problem.causal_alignment == "bottom_right"),
        problem.window_left,
        problem.window_right,
        min(problem.prev_blocks, _MOST_BLOCKS),
        min(problem.next_blocks, _MOST_BLOCKS),
        problem.tile,
        kind,
        problem.dropout_threshold,
        problem.batch_offset,
        problem.head_offset,
        int(problem.mask_shape is not None),
        _BIAS_KINDS[problem.alibi],
    ]
    scale = np.float32(problem.scale)
    rates = [scale, np.float32(problem.scale - float(scale)), problem.dropout_scale]
    return np.array(rules, np.int64), np.array(rates, np.float32)


def slopes(problem: AttentionProblem) -> np.ndarray:
    """float32 (heads,): slopes of computed ALiBi."""
    return np.array(alibi_slopes(problem), np.float32)


def forward(
    problem: AttentionProblem,
    query,
    key,
    value,
    mask=None,
    bias=None,
    keep_bits=None,
    seed=None,
    *,
    library: ctypes.CDLL | None = None,
    out: tuple | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Runs the forward pass on contiguous NumPy arrays, with the meanings of Backend.build.

    bfloat16 tensors come and go as their bits in uint16.

    Args:
        library: the library to call. Default: the built one.
        out: arrays to write (output, logsumexp) into. Default: new ones.

    Raises:
        KernelError: the kernel refused.
    """
    rules, rates = configuration(problem)
    if out is None:
        out = (np.empty(problem.shape_query(), _NUMPY_DTYPES[problem.dtype]), np.empty(problem.shape_lse(), np.float32))
    if problem.alibi == "computed":
        bias = slopes(problem)
    tensors = [query, key, value, mask, bias, keep_bits, seed, rules, rates, *out]
    _call("flash_attention_forward", tensors, library)
    return out


def backward(
    problem: AttentionProblem,
    query,
    key,
    value,
    output,
    logsumexp,
    d_output,
    d_logsumexp=None,
    mask=None,
    bias=None,
    keep_bits=None,
    seed=None,
    *,
    library: ctypes.CDLL | None = None,
    out: tuple | None = None,
) -> tuple:
    """Runs the backward pass: (d_query, d_key, d_value), and d_bias after them when the problem has a given bias and
    wants its gradient. Otherwise like `forward`.
    """
    bias_gradient = problem.alibi == "given" and problem.bias_grad
    rules, rates = configuration(problem)
    if out is None:
        dtype = _NUMPY_DTYPES[problem.dtype]
        out = tuple(np.empty(array.shape, dtype) for array in (query, key, value))
        if bias_gradient:
            out += (np.empty(problem.bias_shape, _NUMPY_DTYPES[problem.bias_dtype]),)
    if problem.alibi == "computed":
        bias = slopes(problem)
    tensors = [query, key, value, mask, bias, keep_bits, seed, output, logsumexp, d_output, d_logsumexp]
    function = "flash_attention_backward_bias" if bias_gradient else "flash_attention_backward"
    _call(function, [*tensors, rules, rates, *out], library)
    return out


def call(function: str, tensors: list, names: list, library: ctypes.CDLL | None = None) -> int:
    """Calls an entry point with arrays (or None) and their dtype names; gives its return code."""
    for array in tensors:
        if array is not None and not array.flags.c_contiguous:
            raise ValueError(f"arrays must be contiguous, got strides {array.strides} for shape {array.shape}")
    count = len(tensors)
    present = [array if array is not None else np.empty((), np.uint8) for array in tensors]
    data = (ctypes.c_void_p * count)(*(None if array is None else array.ctypes.data for array in tensors))
    ranks = (ctypes.c_int * count)(*(array.ndim for array in present))
    shapes = [(ctypes.c_int64 * max(1, array.ndim))(*array.shape) for array in present]
    shape_pointers = (ctypes.POINTER(ctypes.c_int64) * count)(
        *(ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64)) for shape in shapes)
    )
    dtypes = (ctypes.c_char_p * count)(*(name.encode() for name in names))
    return getattr(library or load(), function)(count, data, ranks, shape_pointers, dtypes, None, None)


def _call(function: str, tensors: list, library: ctypes.CDLL | None) -> None:
    names = []
    for array in tensors:
        if array is None:
            names.append("none")
        else:
            # Only bfloat16 is without a NumPy type, and nothing else is uint16.
            names.append("bfloat16" if array.dtype == np.uint16 else array.dtype.name)
    status = call(function, tensors, names, library)
    if status:
        message = (library or load()).flash_attention_message(status).decode()
        raise KernelError(f"{function}: {message} (return code {status})")
