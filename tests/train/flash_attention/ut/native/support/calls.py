"""Shared cases through the native kernel, without MindSpore."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace

import numpy as np
from flash_attention import reference
from flash_attention.backends.cpu import library
from flash_attention.call import Call

from tests.train.flash_attention.support.cases import SEED, Case
from tests.train.flash_attention.support.layouts import heads_first, laid_out


def stored(array: np.ndarray | None, dtype: str) -> np.ndarray | None:
    """Store float32 values as the kernel takes them: contiguous, in `dtype`, bfloat16 as bits."""
    if array is None:
        return None
    values = np.ascontiguousarray(reference.round_to(array, dtype))
    return (values.view(np.uint32) >> 16).astype(np.uint16) if dtype == "bfloat16" else values.astype(dtype)


def values(array: np.ndarray) -> np.ndarray:
    """Return the kernel's stored values as float32."""
    return (array.astype(np.uint32) << 16).view(np.float32) if array.dtype == np.uint16 else array.astype(np.float32)


@contextlib.contextmanager
def instruction_set(name: str):
    """Force an instruction set."""
    before = os.environ.get(library.ISA_VARIABLE)
    os.environ[library.ISA_VARIABLE] = name
    try:
        yield
    finally:
        if before is None:
            del os.environ[library.ISA_VARIABLE]
        else:
            os.environ[library.ISA_VARIABLE] = before


def run(call: Call, query, key, value, d_output, d_logsumexp=None, *, place=None, kernel=None, **optional):
    """Return the output, logsumexp and gradients of float32 arrays, raw as the kernel wrote them.

    Args:
        optional: mask, bias, keep_bits, seed, sinks, prefix, segment_ids and kv_segment_ids.
        place: puts every array somewhere else, given the array and whether the kernel may write it.
        kernel: the library to call.
    """
    place = place or (lambda array, writable=False: array)

    def put(array, dtype=call.dtype):
        return None if array is None else place(stored(array, dtype))

    def room(shape, dtype):
        return place(stored(np.full(shape, np.nan, np.float32), dtype), True)

    optional = {name: None if array is None else place(np.ascontiguousarray(array)) for name, array in optional.items()}
    query, key, value = put(query), put(key), put(value)
    results = room(np.shape(d_output), call.dtype), room(call.shape_lse(), "float32")
    library.forward(call, query, key, value, **optional, library=kernel, out=results)
    shapes = [(array.shape, call.dtype) for array in (query, key, value)]
    if "bias" in library.gradients(call):
        shapes.append((call.bias_shape, call.bias_dtype))
    if call.sinks:
        shapes.append(((call.heads,), "float32"))
    gradients = tuple(room(*shape) for shape in shapes)
    inputs = query, key, value, *results, put(d_output), put(d_logsumexp, "float32")
    library.backward(call, *inputs, **optional, library=kernel, out=gradients)
    return (*results, *gradients)


def run_case(case: Case, layout: str = "BNSD", **options) -> reference.Attention:
    """Run a shared case in a layout. Results are BNSD, and `run` explains the options."""
    call, inputs = replace(case.call, layout=layout), case.inputs()
    # The caller's slopes come in the place of the bias.
    bias = inputs.alibi_slopes if inputs.bias is None else stored(inputs.bias, case.dtype)
    optional = {"mask": case.backend_mask(), "bias": bias, **inputs.optional()}
    if case.dropout:
        optional["seed"] = np.array(SEED, np.int64)
    tensors = [laid_out(array, layout) for array in (inputs.query, inputs.key, inputs.value, inputs.d_output)]
    results = list(map(values, run(call, *tensors, inputs.d_logsumexp, **optional, **options)))
    widths = {0: call.value_dim, 2: call.head_dim, 3: call.head_dim, 4: call.value_dim}
    for index, width in widths.items():
        results[index] = heads_first(results[index], layout, width)
    d_sinks = results.pop() if call.sinks else None
    return reference.Attention(*results, d_sinks=d_sinks)
