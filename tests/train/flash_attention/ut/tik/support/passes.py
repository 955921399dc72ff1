"""Forward and backward operators one after the other, on BNSD arrays."""

from __future__ import annotations

import functools

import numpy as np
from flash_attention.kernels.tik import KernelProblem, instruction_forms

from tests.train.flash_attention.ut.tik.support import stored_arrays
from tests.train.flash_attention.ut.tik.support.programs import build_backward, build_forward

_FEATURES = ("mask", "bias", "keep_bits", "sinks", "block_mask", "segment_ids", "kv_segment_ids", "prefix")


def random_data(problem: KernelProblem, seed: int = 0, sigma: float = 1.0) -> dict:
    """Return query, key, value and d_output in BNSD, and the problem's other inputs. Query and key have the sigma."""
    random, call = np.random.default_rng(seed), problem.call
    shapes = {"query": call.shape_query(), "key": call.shape_key(), "value": call.shape_value()}
    result = {
        name: (random.standard_normal(shape) * (1.0 if name == "value" else sigma)).astype(np.float16)
        for name, shape in shapes.items()
    }
    result["d_output"] = random.standard_normal(call.shape_output()).astype(np.float16)
    if call.mask_shape is not None:
        result["mask"] = random.random(call.mask_shape) < 0.3
    if call.bias_shape is not None:
        result["bias"] = random.standard_normal(call.bias_shape).astype(np.float16)
    if call.sinks:
        result["sinks"] = random.standard_normal(call.heads).astype(np.float32)
    if call.dropout_threshold:
        result["keep_bits"] = random.integers(0, 256, (*call.shape_lse(), -(-call.seq_k // 8))).astype(np.uint8)
    return result


def random_arrays(problem: KernelProblem, seed: int = 0, sigma: float = 1.0) -> list:
    """Return query, key and value of `random_data`."""
    return list(random_data(problem, seed, sigma).values())[:3]


def forward(tik, execute, problem: KernelProblem, query, key, value, **features) -> tuple:
    """Return (output, logsumexp) of the forward kernel."""
    return _forward(tik, execute, problem, stored_arrays.forward_inputs(problem, query, key, value, **features))[0]


def both_passes(tik, execute, problem: KernelProblem, data: dict, spoil=lambda name, stored: None) -> tuple[dict, dict]:
    """Run forward and backward; return results in BNSD and results as stored.

    Args:
        data: as `random_data` gives it. If it has the output and logsumexp, backward runs alone; with `d_logsumexp` the
            logsumexp has a gradient.
        spoil: changes stored inputs in place.
    """
    features = {name: data[name] for name in _FEATURES if data.get(name) is not None}
    given = data["query"], data["key"], data["value"]

    def spoiled(arrays: dict) -> dict:
        for name, array in arrays.items():
            spoil(name, array)
        return arrays

    found, stored = {}, {}
    if "output" not in data:
        inputs = spoiled(stored_arrays.forward_inputs(problem, *given, **features))
        results, stored = _forward(tik, execute, problem, inputs)
        found = dict(zip(("output", "logsumexp"), results))
    asked = {"bias_grad": problem.call.bias_shape is not None, "return_lse": "d_logsumexp" in data}
    operator = _built(build_backward, problem, tik, instruction_forms.current(), **asked)
    upstream = (({**data, **found}).get(name) for name in ("output", "logsumexp", "d_output", "d_logsumexp"))
    inputs = stored_arrays.backward_inputs(problem, *given, *upstream, **features)
    gradients = operator.run(execute, **spoiled(inputs))
    return {**found, **stored_arrays.backward_outputs(problem, gradients)}, {**stored, **gradients}


def _forward(tik, execute, problem: KernelProblem, inputs: dict) -> tuple:
    """Return the results of the forward kernel in BNSD, and as stored."""
    kernel = _built(build_forward, problem, tik, instruction_forms.current())
    stored = execute(kernel.tik, kernel.feed(**inputs), [tensor.name for tensor in kernel.outputs])
    return stored_arrays.forward_outputs(problem, stored), stored


@functools.lru_cache(maxsize=4)
def _built(build, problem: KernelProblem, tik, forms, **asked):
    """Record kernels, which tests feed with other data, or twice."""
    return build(problem, tik, **asked)
