"""Turn shapes of `scaled_dot_product_attention`, with any leading dimensions, into shapes of `flash_attention`."""

from __future__ import annotations

import math
from typing import NamedTuple

from flash_attention.call.inputs import TensorSpec, fits
from flash_attention.call.layout import UNKNOWN


class MaskSteps(NamedTuple):
    """Steps that bring an attention mask to rank 4; None = nothing to do."""

    new_axes: int  # to put in front
    broadcast: tuple | None
    reshape: tuple | None


class TensorSteps(NamedTuple):
    """Steps that bring query, key or value to rank 4; None = nothing to do."""

    apart: tuple | None  # shape with all leading dimensions, and an axis behind the heads if they are repeated
    broadcast: tuple | None
    reshape: tuple | None


def tensor_steps(query: TensorSpec, key: TensorSpec, value: TensorSpec, enable_gqa: bool) -> tuple:
    """Return the leading dimensions of the output, and steps for query, key and value.

    Leading dimensions broadcast, heads too without `enable_gqa`. With it the heads of key and of value divide the
    heads of query, and the one with fewer heads repeats each.
    """
    named = {"query": query, "key": key, "value": value}
    for name, spec in named.items():
        if len(spec.shape) < 2:
            raise ValueError(f"{name}: got shape {spec.shape}, allowed is (..., seq, head_dim)")
        if UNKNOWN in spec.shape and len(spec.shape) != 4:
            raise ValueError(f"{name}: got shape {spec.shape}, allowed are unknown sizes only in tensors of rank 4")
    rank = max(1, *(len(spec.shape) - 2 for spec in named.values()))
    leads = [(1,) * (rank + 2 - len(spec.shape)) + spec.shape[:-2] for spec in named.values()]
    of_query, of_key, of_value = (lead[-1] for lead in leads)
    heads, wanted = _heads(of_query, of_key, of_value, enable_gqa, named)
    outer = tuple(_common(sizes, named) for sizes in zip(*(lead[:-1] for lead in leads)))
    steps = []
    for spec, lead, count in zip(named.values(), leads, wanted):
        end, times = spec.shape[-2:], count // lead[-1] if lead[-1] and UNKNOWN not in (count, lead[-1]) else 1
        apart, whole = (*lead, *end), (*outer, count, *end)
        if times > 1 and lead[-1] > 1:
            apart, whole = (*lead, 1, *end), (*outer, lead[-1], times, *end)
        merged = None if rank == 2 and len(whole) == 4 else (math.prod(outer), count, *end)
        same = all(map(fits, apart, whole))
        steps.append(TensorSteps(None if apart == spec.shape else apart, None if same else whole, merged))
    inner = () if max(len(spec.shape) for spec in named.values()) == 2 else (heads,)
    return (*outer, *inner), *steps


def _heads(query: int, key: int, value: int, enable_gqa: bool, named: dict) -> tuple:
    """Return the heads of the output, and of query, key and value after the broadcast."""
    if enable_gqa:
        for name, count in (("key", key), ("value", value)):
            if UNKNOWN not in (query, count) and (query % count if count else query):
                raise ValueError(f"{name}: got {count} heads, which do not divide the {query} heads of query")
        both = key if fits(key, value) or 0 in (key, value) else math.lcm(key, value)
        return query, (query, both, both)
    heads = _common((query, key, value), named, "; with enable_gqa=True heads that divide the heads of query")
    both = key if fits(key, value) else heads
    return heads, (heads, both, both)


def _common(sizes: tuple, named: dict, otherwise: str = "") -> int:
    """Return the size to which the sizes of an axis broadcast."""
    known = [size for size in sizes if size not in (1, UNKNOWN)]
    if len(set(known)) > 1 or (UNKNOWN in sizes and 1 in sizes):
        shapes = ", ".join(f"{name} {spec.shape}" for name, spec in named.items())
        raise ValueError(
            f"query, key, value: got shapes {shapes}, allowed are leading dimensions that broadcast{otherwise}"
        )
    return known[0] if known else sizes[0]


def mask_steps(mask: TensorSpec, lead: tuple, query: TensorSpec, key: TensorSpec, is_causal: bool) -> MaskSteps:
    """Plan how a mask that broadcasts to (*lead, L, S) gets rank 4. Its last axis is full then."""
    if is_causal:
        raise ValueError("attn_mask: given together with is_causal=True; allowed is one of them")
    if mask.dtype not in ("bool", "float32", query.dtype):
        added = " or ".join(dict.fromkeys((query.dtype, "float32")))
        raise TypeError(f"attn_mask: got dtype {mask.dtype}, allowed are bool (True = takes part), and {added} (added)")
    scores = full = (*lead, query.shape[-2], key.shape[-2])
    full = (1,) * (4 - len(full)) + full
    new_axes = len(full) - len(mask.shape)
    shape = (1,) * new_axes + mask.shape
    if new_axes < 0 or not all(size == 1 or fits(size, other) for size, other in zip(shape, full)):
        raise ValueError(f"attn_mask: got shape {mask.shape}, allowed is any that broadcasts to {scores}")
    # The outer axes become one, which is the batch or 1; the last axis must be full.
    outer = shape[:-3] if len(full) == 4 or set(shape[:-3]) == {1} else full[:-3]
    wanted = (*outer, *shape[-3:-1], full[-1] if shape[-1] == 1 else shape[-1])
    broadcast = None if wanted == shape else wanted
    if broadcast is not None and UNKNOWN in broadcast:
        raise ValueError(f"attn_mask: got shape {mask.shape}, allowed is a full last axis if sizes are unknown")
    target = (math.prod(outer), *shape[-3:-1], (broadcast or shape)[-1])
    return MaskSteps(new_axes, broadcast, None if len(full) == 4 else target)
