"""Turn shapes of `scaled_dot_product_attention`, with any leading dimensions, into shapes of `flash_attention`."""

from __future__ import annotations

import math
from typing import NamedTuple

from flash_attention.call.inputs import TensorSpec, fits
from flash_attention.call.layout import UNKNOWN


class MaskPlan(NamedTuple):
    """Steps that bring an attention mask to rank 4; None = nothing to do."""

    new_axes: int  # to put in front
    broadcast: tuple | None
    reshape: tuple | None


def tensor_shapes(query: TensorSpec, key: TensorSpec, value: TensorSpec, enable_gqa: bool) -> tuple | None:
    """Return rank-4 shapes of query, key and value; None if they have rank 4 already."""
    named = {"query": query, "key": key, "value": value}
    for name, spec in named.items():
        if len(spec.shape) < 2:
            raise ValueError(f"{name}: got shape {spec.shape}, allowed is (..., seq, head_dim)")
        if UNKNOWN in spec.shape and len(spec.shape) != 4:
            raise ValueError(f"{name}: got shape {spec.shape}, allowed are unknown sizes only in tensors of rank 4")
    lead, kv_lead = query.shape[:-2], key.shape[:-2]
    same = len(kv_lead) == len(lead) == len(value.shape) - 2 and all(map(fits, kv_lead[:-1], lead[:-1]))
    if not same or not all(map(fits, value.shape[:-2], kv_lead)):
        raise ValueError(
            f"key, value: got shapes {key.shape} and {value.shape}, but query has shape {query.shape}; "
            "allowed are the same leading dimensions"
        )
    if lead and kv_lead[-1] != lead[-1] and enable_gqa is not True:
        raise ValueError(f"key: got {kv_lead[-1]} heads for {lead[-1]} of query, allowed only with enable_gqa=True")
    if len(lead) == 2:
        return None
    heads = {name: spec.shape[-3] if lead else 1 for name, spec in named.items()}
    return tuple((math.prod(lead[:-1]), heads[name], *spec.shape[-2:]) for name, spec in named.items())


def mask_plan(mask: TensorSpec, query: TensorSpec, key: TensorSpec, is_causal: bool) -> MaskPlan:
    """Plan how a mask that broadcasts to (..., L, S) gets rank 4. Its last axis is full then."""
    if is_causal:
        raise ValueError("attn_mask: given together with is_causal=True; allowed is one of them")
    if mask.dtype not in ("bool", "float32", query.dtype):
        added = " or ".join(dict.fromkeys((query.dtype, "float32")))
        raise TypeError(f"attn_mask: got dtype {mask.dtype}, allowed are bool (True = takes part), and {added} (added)")
    full = (*query.shape[:-2], query.shape[-2], key.shape[-2])
    full = (1,) * (4 - len(full)) + full
    new_axes = len(full) - len(mask.shape)
    shape = (1,) * new_axes + mask.shape
    if new_axes < 0 or not all(size == 1 or fits(size, other) for size, other in zip(shape, full)):
        scores = (*query.shape[:-1], key.shape[-2])
        raise ValueError(f"attn_mask: got shape {mask.shape}, allowed is any that broadcasts to {scores}")
    # The outer axes become one, which is the batch or 1; the last axis must be full.
    outer = shape[:-3] if len(full) == 4 or set(shape[:-3]) == {1} else full[:-3]
    wanted = (*outer, *shape[-3:-1], full[-1] if shape[-1] == 1 else shape[-1])
    broadcast = None if wanted == shape else wanted
    if broadcast is not None and UNKNOWN in broadcast:
        raise ValueError(f"attn_mask: got shape {mask.shape}, allowed is a full last axis if sizes are unknown")
    target = (math.prod(outer), *shape[-3:-1], (broadcast or shape)[-1])
    return MaskPlan(new_axes, broadcast, None if len(full) == 4 else target)
