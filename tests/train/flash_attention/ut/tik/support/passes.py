"""Forward and backward operators one after the other, on random data."""

from __future__ import annotations

import numpy as np
from flash_attention.kernels.tik import KernelProblem

from tests.train.flash_attention.ut.tik.support import stored_arrays
from tests.train.flash_attention.ut.tik.support.programs import build_backward, build_forward

_FEATURES = ("mask", "bias", "keep_bits", "sinks", "block_mask", "segment_ids", "kv_segment_ids")


def random_data(problem: KernelProblem) -> dict:
    """Return query, key, value and d_output in BNSD, and the problem's other inputs."""
    random, p = np.random.default_rng(0), problem
    of_queries, of_keys = (
        (p.call.batch, p.call.heads, p.call.seq_q, p.call.head_dim),
        (p.call.batch, p.call.kv_heads, p.call.seq_k, p.call.head_dim),
    )
    shapes = {"query": of_queries, "key": of_keys, "value": of_keys, "d_output": of_queries}
    result = {name: random.standard_normal(shape).astype(np.float16) for name, shape in shapes.items()}
    if p.call.mask_shape is not None:
        result["mask"] = random.random(p.call.mask_shape) < 0.3
    if p.call.bias_shape is not None:
        result["bias"] = random.standard_normal(p.call.bias_shape).astype(np.float16)
    if p.call.sinks:
        result["sinks"] = random.standard_normal(p.call.heads).astype(np.float32)
    if p.call.dropout_threshold:
        result["keep_bits"] = random.integers(0, 256, (*of_queries[:3], -(-p.call.seq_k // 8))).astype(np.uint8)
    return result


def both_passes(tik, execute, problem: KernelProblem, data: dict, spoil=lambda name, stored: None) -> tuple[dict, dict]:
    """Run forward and backward; return results in BNSD and results as stored. `spoil` changes stored inputs in
    place.
    """
    features = {name: data[name] for name in _FEATURES if name in data}
    given = data["query"], data["key"], data["value"]

    def spoiled(arrays: dict) -> dict:
        for name, array in arrays.items():
            spoil(name, array)
        return arrays

    kernel = build_forward(problem, tik)
    feed = kernel.feed(**spoiled(stored_arrays.forward_inputs(problem, *given, **features)))
    stored = execute(kernel.tik, feed, [tensor.name for tensor in kernel.outputs])
    output, logsumexp = stored_arrays.forward_outputs(problem, stored)
    operator = build_backward(problem, tik, bias_grad=problem.call.bias_shape is not None)
    inputs = stored_arrays.backward_inputs(problem, *given, output, logsumexp, data["d_output"], **features)
    gradients = operator.run(execute, **spoiled(inputs))
    results = {"output": output, "logsumexp": logsumexp, **stored_arrays.backward_outputs(problem, gradients)}
    return results, {**stored, **gradients}
