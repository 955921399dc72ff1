"""Arrays as the kernels store them, from BNSD arrays, and back: what MindSpore's graph does around them, in NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from flash_attention import reference
from flash_attention.call import Call
from flash_attention.kernels.tik import describe, host_integers, layout, operators
from flash_attention.kernels.tik.common import segments
from flash_attention.kernels.tik.problem import KernelProblem, padded


def explicit_mask(call: Call, mask=None, **others) -> np.ndarray | None:
    """Return the mask of a call's inputs, in which non-zero hides.

    Args:
        mask: of call.mask_shape.
        others: prefix, segment_ids, kv_segment_ids and block_mask as for `Backend.build`.
    """
    if not describe.makes_mask(call):
        return mask
    shape = describe.mask_shape(call)
    if describe.lists_tiles(call):
        for name in ("block_mask", "segment_ids", "kv_segment_ids"):
            others.pop(name, None)
        call = replace(call, block_mask_shape=None, block_mask_tile=0, segments=False)
    return np.broadcast_to(reference.hidden(call, mask, **others), shape)


def to_stored(problem: KernelProblem, name: str, array: np.ndarray) -> np.ndarray:
    """Return a BNSD array as input `name` of the kernels stores it, padded with zeros."""
    if problem.layout == "TH":
        array = np.asarray(array).transpose(0, 2, 1, 3).reshape(layout.placement(problem, name).shape)
    return layout.to_nz(array)


def from_stored(problem: KernelProblem, name: str, stored: np.ndarray) -> np.ndarray:
    """Undo `to_stored`."""
    place = layout.placement(problem, name)
    array = layout.from_nz(stored, *place.shape[-2:])
    if problem.layout == "TH":
        array = array.reshape(problem.call.batch, -1, place.heads, place.shape[1] // place.heads).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(array)


def pack_keys(array: np.ndarray) -> np.ndarray:
    """Convert values per key (..., 1, seq_k) to float16 (planes, seq_k padded to 16)."""
    array = np.asarray(array)
    flat = array.reshape(-1, array.shape[-1])
    wide = np.zeros((flat.shape[0], padded(flat.shape[1])), np.float16)
    wide[:, : flat.shape[1]] = flat
    return wide


def pack_bias(bias: np.ndarray) -> np.ndarray:
    """Pack a bias per key into float16: biases, then which keys they hide. (..., 1, seq_k) becomes (2 * planes,
    seq_k padded to 16).

    If the bias of a key is -inf, the first half holds 0 and the second half layout.HIDDEN_BY_BIAS. On a chip without
    infinities -65504 stands for -inf.
    """
    rows = pack_keys(bias)
    hidden = rows <= -65504
    return np.concatenate([np.where(hidden, np.float16(0), rows), hidden * np.float16(layout.HIDDEN_BY_BIAS)])


def pack_sinks(sinks: np.ndarray, problem: KernelProblem) -> np.ndarray:
    """Bring sinks (heads,) into float32 (batch, heads, layout.SINK_LANES): each repeated."""
    shape = problem.call.batch, problem.call.heads, layout.SINK_LANES
    return np.ascontiguousarray(np.broadcast_to(np.asarray(sinks, np.float32)[:, None], shape))


def forward_inputs(
    problem: KernelProblem,
    query,
    key,
    value,
    mask=None,
    bias=None,
    keep_bits=None,
    sinks=None,
    block_mask=None,
    segment_ids=None,
    kv_segment_ids=None,
    prefix=None,
    stage="forward",
) -> dict:
    """Return the arrays for `Kernel.feed` of the forward kernel.

    Args:
        query, key, value: (B, H, Sq, D), (B, Hkv, Sk, D), (B, Hkv, Sk, Dv), float16.
        mask: of problem.call.mask_shape, non-zero = hidden.
        bias: of problem.call.bias_shape, float16.
        keep_bits: uint8 (B, H, Sq, ceil(Sk / 8)), least significant bit first.
        sinks: (H,).
        block_mask: of problem.call.block_mask_shape, not 0 = visible.
        segment_ids, kv_segment_ids, prefix: (B, Sq), (B, Sk) and (B,), int32.
        stage: the stage whose work table lists its tiles.
    """
    call = problem.call
    arrays = {
        name: to_stored(problem, name, np.asarray(array, np.float16))
        for name, array in (("query", query), ("key", key), ("value", value))
    }
    if problem.mask != "none":
        hidden = (np.asarray(mask) != 0).astype(np.float16)
        arrays.update({"key_mask": pack_keys(hidden)} if problem.mask == "per_key" else {"mask": _planes(hidden)})
    if call.bias_shape is not None:
        bias = np.asarray(bias, np.float16)
        arrays.update({"key_bias": pack_bias(bias)} if call.bias == "per_key" else {"bias": _planes(bias)})
    if call.dropout_threshold:
        arrays["keep"] = layout.store_keep_bits(keep_bits, problem)
    if call.sinks:
        arrays["sinks"] = pack_sinks(sinks, problem)
    if problem.compares:
        tokens = (prefix,) * problem.prefixed + (segment_ids, kv_segment_ids) * call.segments
        block_mask, *numbers = segments.numbers(host_integers, problem)(*tokens, block_mask)
        for name, factors, of_side in zip(segments.shapes(problem), segments.factors(problem, stage), numbers):
            arrays[name] = of_side.astype(np.float16) * factors
    if problem.listed:
        if problem.keeps_tiles:
            arrays["work"] = operators.known_table(problem, stage, np.asarray(block_mask))
        else:
            arrays["work"] = operators.list_table(host_integers, problem, stage)(np.asarray(block_mask))
    return arrays


def forward_outputs(problem: KernelProblem, outputs: dict) -> tuple[np.ndarray, np.ndarray]:
    """Return the output (B, H, Sq, Dv) and logsumexp (B, H, Sq) from stored outputs. The output is float16, the
    logsumexp float32.
    """
    output = from_stored(problem, "output", outputs["output"])
    return output, np.ascontiguousarray(outputs["logsumexp"][..., : problem.call.seq_q])


def _planes(array: np.ndarray) -> np.ndarray:
    """Bring matrices one behind the other into FRACTAL_NZ."""
    return layout.to_nz(array.reshape(-1, *array.shape[-2:]))


def backward_inputs(
    problem: KernelProblem, query, key, value, output, logsumexp, d_output, d_logsumexp=None, **features
) -> dict[str, np.ndarray]:
    """Return the stored arrays for `operators.Backward.run`.

    Args:
        query: (B, H, Sq, D), float16; output, d_output: (B, H, Sq, Dv); key: (B, Hkv, Sk, D); value: (B, Hkv, Sk, Dv).
        logsumexp, d_logsumexp: (B, H, Sq), float32.
        features: mask, bias, keep_bits as for forward_inputs.
    """
    arrays = forward_inputs(problem, query, key, value, **features, stage="grad")
    for name, array in (("output", output), ("d_output", d_output)):
        arrays[name] = to_stored(problem, name, np.asarray(array, np.float16))
    arrays["logsumexp"] = _rows(problem, logsumexp)
    if d_logsumexp is not None:
        arrays["d_logsumexp"] = _rows(problem, d_logsumexp)
    return arrays


def backward_outputs(problem: KernelProblem, stored: dict) -> dict[str, np.ndarray]:
    """Return d_query, d_key, d_value (float16), d_bias (float32, shape of the bias) and d_sinks (float32, heads)

    from what `Backward.run` returns.
    """
    p = problem
    result = {name: from_stored(p, name, stored[name]) for name in ("d_query", "d_key", "d_value")}
    if "d_sink_rows" in stored:
        result["d_sinks"] = stored["d_sink_rows"].sum(axis=(0, 2))
    if "d_bias" in stored:
        planes = layout.from_nz(stored["d_bias"], p.call.seq_q, p.call.seq_k)
        result["d_bias"] = planes.reshape(*p.bias_planes, p.call.seq_q, p.call.seq_k)
    if "d_bias_sums" in stored:
        # (batch, key/value heads, chunks, keys, 16 query heads of the group)
        sums = stored["d_bias_sums"].reshape(p.call.batch, p.call.kv_heads, -1, padded(p.call.seq_k), 16)
        heads = np.moveaxis(sums, 4, 3).reshape(p.call.batch, p.call.kv_heads, -1, padded(p.call.seq_k))
        rows = heads[:, :, : p.call.group, : p.call.seq_k].reshape(p.call.batch, p.call.heads, 1, p.call.seq_k)
        for axis, size in enumerate(p.bias_planes):
            if size == 1:
                rows = rows.sum(axis=axis, keepdims=True)
        result["d_bias"] = np.ascontiguousarray(rows)
    return result


def _rows(problem: KernelProblem, values) -> np.ndarray:
    """Pad (B, H, Sq) to (B, H, seq_q padded) with zeros."""
    call = problem.call
    wide = np.zeros((call.batch, call.heads, padded(call.seq_q)), np.float32)
    wide[..., : call.seq_q] = values
    return wide
