"""The truth in float64, the honest low-precision baseline, and the error measure between them.

It needs NumPy only. Arrays are (batch, heads, seq, head_dim). bfloat16 values travel in float32 arrays, because NumPy
has no such type.

A kernel is right if its error against the truth is at most twice the baseline's error; `Limits` has other multiples.
The baseline is plain composed attention on the same inputs. It rounds every tensor that composed ops would store to the
dtype of the inputs; sums and softmax are in float32. The measure follows the tests of Dao-AILab/flash-attention.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple

import numpy as np

from flash_attention.call import Call, alibi_slopes
from flash_attention.call.block_mask import dense

# Distance from 1 to the next number.
EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23}
# Share of the unavoidable error below which the baseline has rounded nothing, see `Limits`.
SATURATED = 2.0**-20
# A logsumexp below this stands for minus infinity if the hardware has none (float16 saturates here).
HIDDEN_LOGSUMEXP = -65504.0


@dataclass
class Attention:
    """Hold the results of one call. Gradients are None without an output gradient; d_bias and d_sinks also without bias
    or sinks.
    """

    output: np.ndarray
    logsumexp: np.ndarray
    d_query: np.ndarray | None = None
    d_key: np.ndarray | None = None
    d_value: np.ndarray | None = None
    d_bias: np.ndarray | None = None
    d_sinks: np.ndarray | None = None
    # Only the truth has them: per result, the error that float32 sums on stored low-precision tensors cannot avoid, and
    # the share of storing the result.
    unavoidable: dict = field(default_factory=dict)
    rounding: dict = field(default_factory=dict)

    def named(self) -> dict[str, np.ndarray]:
        """Return the results that are there, by name."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("unavoidable", "rounding")}
        return {name: value for name, value in values.items() if value is not None}


class Limits(NamedTuple):
    """Hold the allowed error as multiples of the baseline's error.

    Attributes:
        max, mean: of the largest and of the mean error.
        floor: the unavoidable error is allowed too, up to this multiple. The baseline's error then counts as no less
            than half a unit in the last place: a baseline may be right by luck. If it is less than SATURATED of the
            unavoidable error, probabilities are zeros and ones, and the unavoidable error is allowed whole.
        few: `floor` of d_sinks, one number a head, where luck is frequent.
    """

    max: float = 2.0
    mean: float = 2.0
    floor: float = 16.0
    few: float = 32.0

    def floor_of(self, name: str) -> float:
        """Return the multiple for the result `name`."""
        return self.few if name == "d_sinks" else self.floor


#: The rule for any inputs.
LIMITS = Limits()


class Error(NamedTuple):
    """Error of one result beside what is allowed, see `Limits`."""

    name: str
    max: float
    mean: float
    baseline_max: float
    baseline_mean: float
    allowed_max: float
    allowed_mean: float

    @property
    def ok(self) -> bool:
        """Return True if the errors are allowed; NaN and a wrong infinity are not."""
        return self.max <= self.allowed_max and self.mean <= self.allowed_mean

    def __str__(self) -> str:
        return (
            f"{self.name}: max {self.max:.3g} (baseline {self.baseline_max:.3g}, allowed {self.allowed_max:.3g}), "
            f"mean {self.mean:.3g} (baseline {self.baseline_mean:.3g}, allowed {self.allowed_mean:.3g})"
        )


def round_to(array: np.ndarray, dtype: str) -> np.ndarray:
    """Round `array` to the nearest value of `dtype` (ties to even), as float32."""
    values = np.asarray(array, dtype=np.float32)
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).astype(np.float32)
    if dtype == "bfloat16":
        bits = np.ascontiguousarray(values).view(np.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
        return np.where(np.isnan(values), values, rounded.astype(np.uint32).view(np.float32))
    return values


def hidden(call: Call, mask=None, prefix=None, segment_ids=None, kv_segment_ids=None, block_mask=None) -> np.ndarray:
    """Return a boolean array, True where position, mask, segments or tiles hide a score. It broadcasts to
    (batch, heads, seq_q, seq_k).
    """
    bands = [call.band] if prefix is None else [replace(call.band, prefix=int(keys)) for keys in prefix]
    result = np.stack([~band.dense() for band in bands])[:, None]
    if mask is not None:
        result = result | (np.asarray(mask).reshape(call.mask_shape) != 0)
    if segment_ids is not None:
        own, other = np.asarray(segment_ids)[:, None, :, None], np.asarray(kv_segment_ids)[:, None, None, :]
        result = result | (own != other) | (own < 0)
    if block_mask is not None:
        result = result | (dense(np.asarray(block_mask), call.block_mask_tile, call.seq_q, call.seq_k) == 0)
    return result


def keep_of_bits(bits: np.ndarray, seq_k: int) -> np.ndarray:
    """Return keep decisions (..., ceil(seq_k / 8)), least significant bit first, as boolean (..., seq_k)."""
    return np.unpackbits(np.asarray(bits, dtype=np.uint8), axis=-1, count=seq_k, bitorder="little").astype(bool)


def truth(call: Call, query, key, value, **inputs) -> Attention:
    """Compute attention and its gradients in float64.

    Args:
        call: what to compute; its dtype only matters for `Attention.unavoidable`.
        query, key, value: (B, H, Sq, D), (B, Hkv, Sk, D), (B, Hkv, Sk, Dv).
        mask: array of call.mask_shape, non-zero = hidden.
        bias: array of call.bias_shape.
        sinks: (H,); prefix: (B,); segment_ids: (B, Sq); kv_segment_ids: (B, Sk).
        block_mask: array of call.block_mask_shape, non-zero = visible.
        keep: bool (B, H, Sq, Sk), needed when call.dropout_threshold > 0.
        d_output: (B, H, Sq, Dv); asks for gradients.
        d_logsumexp: (B, H, Sq); zero when not given.
    """
    return _composed(call, query, key, value, compute=np.float64, store=lambda array, dtype=None: array, **inputs)


def baseline(call: Call, query, key, value, *, in_order: bool = False, **inputs) -> Attention:
    """Compute the call of `truth` by composed attention in call.dtype, with a float32 softmax.

    Args:
        in_order: matrix products add their terms one after the other, as a kernel does. NumPy's BLAS adds in blocks,
            which err less if few terms are large. Slow.
    """

    def store(array, dtype=call.dtype):
        return round_to(array, dtype)

    product = _product_in_order if in_order else np.matmul
    return _composed(call, query, key, value, compute=np.float32, store=store, product=product, **inputs)


def _product_in_order(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Compute left @ right in float32, the terms of each sum added in ascending order."""
    total = np.zeros((*left.shape[:-1], right.shape[-1]), np.float32)
    for term in range(left.shape[-1]):
        total += left[..., term, None] * right[..., term, None, :]
    return total


def _composed(
    call: Call,
    query,
    key,
    value,
    *,
    compute,
    store,
    product=np.matmul,
    mask=None,
    bias=None,
    sinks=None,
    prefix=None,
    segment_ids=None,
    kv_segment_ids=None,
    block_mask=None,
    keep=None,
    d_output=None,
    d_logsumexp=None,
) -> Attention:
    # The query heads of a group are stacked along the rows, so that every product is one matrix per key/value head.
    batch, heads, seq_q, seq_k = call.batch, call.heads, call.seq_q, call.seq_k
    grouped = batch, call.kv_heads, call.group * seq_q
    full = batch, heads, seq_q, seq_k
    query, key, value = (np.asarray(array, dtype=compute) for array in (query, key, value))
    query = query.reshape(*grouped, -1)
    scores = store(product(store(query * compute(call.scale)), _transposed(key))).reshape(full)
    squash = None
    if call.rules.softcap:
        squash = store(np.tanh(store(scores / compute(call.rules.softcap))))
        scores = store(squash * compute(call.rules.softcap))
    added = None
    if call.bias == "alibi":
        distance = np.abs(np.arange(call.seq_q)[:, None] + call.offset - np.arange(call.seq_k))
        added = (-np.asarray(alibi_slopes(call))[None, :, None, None] * distance).astype(compute)
    elif call.bias_shape is not None:
        added = np.asarray(bias, dtype=compute).reshape(call.bias_shape)
    if added is not None:
        scores = store(scores + added)
    scores = np.where(hidden(call, mask, prefix, segment_ids, kv_segment_ids, block_mask), -np.inf, scores)

    top = scores.max(axis=-1, keepdims=True)
    if sinks is not None:
        sinks = np.asarray(sinks, dtype=compute).reshape(1, -1, 1, 1)
        top = np.maximum(top, sinks)
    top = np.where(np.isneginf(top), 0, top)
    probability = np.exp(scores - top)
    total = probability.sum(axis=-1, keepdims=True)
    share = None  # the sink's share of each row
    if sinks is not None:
        share = np.exp(sinks - top)
        total = total + share
        share = (share / total)[..., 0]
    with np.errstate(divide="ignore"):
        logsumexp = (top + np.log(total))[..., 0]
    probability /= np.where(total == 0, 1, total)
    if call.dropout_threshold > 0:
        factor = np.where(keep, compute(call.dropout_scale), compute(0))
        dropped = store(store(probability) * factor).reshape(*grouped, seq_k)
    else:
        factor = None
        dropped = store(probability).reshape(*grouped, seq_k)
    output = store(product(dropped, value))
    result = Attention(output.reshape(call.shape_output()), logsumexp)
    if d_output is not None:
        d_output = np.asarray(d_output, dtype=compute).reshape(*grouped, -1)
        d_probability = store(product(d_output, _transposed(value))).reshape(full)
        if factor is not None:
            d_probability = store(d_probability * factor)
        # The part that all scores of a row have in common.
        common = -(probability * d_probability).sum(axis=-1, keepdims=True)
        if d_logsumexp is not None:
            common = common + np.asarray(d_logsumexp, dtype=compute)[..., None]
        if share is not None:
            result.d_sinks = (share * common[..., 0]).sum(axis=(0, 2))
        d_scores = d_probability + common
        d_scores = d_biased = store(probability * d_scores)
        if squash is not None:
            d_scores = store(d_scores * (1 - squash * squash))
        flat = d_scores.reshape(*grouped, seq_k)
        result.d_query = store(store(product(flat, key)) * compute(call.scale)).reshape(call.shape_query())
        result.d_key = store(product(_transposed(flat), store(query * compute(call.scale))))
        result.d_value = store(product(_transposed(dropped), d_output))
        if call.bias_shape is not None:
            result.d_bias = store(_sum_to(d_biased, call.bias_shape), call.bias_dtype)
    if compute is np.float64:
        result.unavoidable, result.rounding = _unavoidable(
            call, result, query, key, value, squash, added, share, probability, factor, d_output, d_logsumexp
        )
    return result


def _unavoidable(
    call, result, query, key, value, squash, added, share, probability, factor, d_output, d_logsumexp
) -> tuple[dict, dict]:
    """Return each result's unavoidable error, and its rounding's share, as (max, mean). A good kernel makes it even if
    the baseline is lucky.

    It has three parts. The first is half a unit in the last place of the stored result. The second is float32
    arithmetic: its relative error grows with the magnitude of the scores, because exp turns their absolute error into a
    relative error. The third, in gradients, is the rounding of the stored output. FlashAttention-2 takes
    D = rowsum(d_output * output) from it (Dao, 2023, equation 4).
    """
    unit = EPSILON["float32"]
    grouped = query.shape[:3]
    magnitude = call.scale * (np.abs(query) @ _transposed(np.abs(key))).reshape(probability.shape)
    magnitude = np.abs(magnitude)
    slope, unsure_slope = 1.0, 0.0
    if squash is not None:
        slope = 1.0 - squash * squash
        magnitude *= slope
        unsure_slope = 3.0 + 2.0 * magnitude / call.rules.softcap  # its own three operations, and what a score is off
        magnitude += 2.0 * call.rules.softcap * np.abs(squash)  # tanh: two units
    magnitude += 2.0  # exp itself and the division by the total: a unit each
    if added is not None:
        magnitude += np.where(np.isfinite(added), np.abs(added), 0.0)
    seen = probability > 0
    unsure = probability * magnitude
    kept = unsure if factor is None else unsure * factor
    errors = {"output": unit * (kept.reshape(*grouped, -1) @ np.abs(value))}
    errors["logsumexp"] = unit * np.where(seen, magnitude, 0.0 if share is None else 2.0).max(axis=-1)
    if d_output is not None:
        d_abs = (np.abs(d_output) @ _transposed(np.abs(value))).reshape(probability.shape)
        if factor is not None:
            d_abs = d_abs * factor
        d_abs = d_abs + (probability * d_abs).sum(axis=-1, keepdims=True)
        if d_logsumexp is not None:
            d_abs = d_abs + np.abs(d_logsumexp)[..., None]
        plain_noise = (unit * unsure * d_abs).reshape(*grouped, -1)
        noise = (unit * (unsure * slope + probability * unsure_slope) * d_abs).reshape(*grouped, -1)
        rounding = EPSILON[call.dtype] * np.sqrt(((d_output * result.output.reshape(d_output.shape)) ** 2).sum(-1))
        flat = (probability * slope).reshape(*grouped, -1)
        scale = abs(call.scale)
        errors["d_query"] = scale * (noise @ np.abs(key) + rounding[..., None] * np.abs(flat @ key))
        rounded = np.sqrt(_transposed(flat**2) @ (rounding[..., None] * query) ** 2)
        errors["d_key"] = scale * (_transposed(noise) @ np.abs(query) + rounded)
        errors["d_value"] = unit * _transposed(kept.reshape(*grouped, -1)) @ np.abs(d_output)
        if share is not None:
            # The sink's share has the error of the scores, and the rows' sums have the error of the other gradients.
            apart = unit * (unsure * d_abs).sum(axis=-1) + rounding.reshape(share.shape)
            apart = apart + errors["logsumexp"] * d_abs.max(axis=-1)
            errors["d_sinks"] = (share * apart).sum(axis=(0, 2))
        if call.bias_shape is not None:
            both = plain_noise + probability.reshape(*grouped, -1) * rounding[..., None]
            errors["d_bias"] = _sum_to(both.reshape(probability.shape), call.bias_shape)
    stored = {"logsumexp": "float32", "d_sinks": "float32", "d_bias": call.bias_dtype}
    unavoidable, rounding = {}, {}
    for name, error in errors.items():
        exact = getattr(result, name)
        finite = np.isfinite(exact)
        exact = np.abs(exact[finite])
        half = 0.5 * EPSILON[stored.get(name, call.dtype)] * exact
        unavoidable[name] = _largest_and_mean(error.reshape(finite.shape)[finite] + half)
        rounding[name] = _largest_and_mean(half)
    return unavoidable, rounding


def compare(actual: Attention, exact: Attention, low: Attention, limits: Limits = LIMITS) -> list[Error]:
    """Return the errors of `actual`, one per result that it has. `exact` is from `truth`, and `low` from `baseline`."""
    errors = []
    for name, value in actual.named().items():
        base = _distance(getattr(low, name), getattr(exact, name))
        floors = (
            least if own <= SATURATED * least else min(least, limits.floor_of(name) * max(own, half))
            for own, least, half in zip(base, exact.unavoidable[name], exact.rounding[name])
        )
        allowed = (max(most * own, floor) for most, own, floor in zip(limits, base, floors))
        errors.append(Error(name, *_distance(value, getattr(exact, name)), *base, *allowed))
    return errors


def _distance(value: np.ndarray, exact: np.ndarray) -> tuple[float, float]:
    value = np.asarray(value, dtype=np.float64)
    if value.shape != exact.shape:
        raise ValueError(f"value: got shape {value.shape}, allowed is {exact.shape}")
    finite = np.isfinite(exact)
    # Minus infinity must come out as minus infinity, or as the most negative number of the hardware.
    if not np.all(np.isfinite(value[finite])) or not np.all(value[~finite] <= HIDDEN_LOGSUMEXP):
        return float("inf"), float("inf")
    return _largest_and_mean(np.abs(value[finite] - exact[finite]))


def _largest_and_mean(error: np.ndarray) -> tuple[float, float]:
    return (float(error.max()), float(error.mean())) if error.size else (0.0, 0.0)


def _transposed(array: np.ndarray) -> np.ndarray:
    return np.swapaxes(array, -1, -2)


def _sum_to(array: np.ndarray, shape: tuple) -> np.ndarray:
    axes = tuple(axis for axis, size in enumerate(shape) if size == 1 and array.shape[axis] != 1)
    return array.sum(axis=axes, keepdims=True).reshape(shape)


def keep_mask(call: Call, seed) -> np.ndarray:
    """Return dropout's keep decisions for a (seed, offset) pair: bool (batch, heads, seq_q, seq_k), True = kept."""
    from flash_attention.dropout import philox

    return keep_of_bits(philox.keep_bits(call, seed), call.seq_k)
