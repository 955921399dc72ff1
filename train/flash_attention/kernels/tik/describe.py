"""Describe a call as the problem of the kernels."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from flash_attention.call import Call, alibi_slopes
from flash_attention.call.rules import PLAIN_RULES
from flash_attention.kernels.tik import varlen
from flash_attention.kernels.tik.backward import schedule as backward
from flash_attention.kernels.tik.forward import schedule as forward
from flash_attention.kernels.tik.problem import KernelProblem, padded


def kernel_problem(call: Call, **chosen: Any) -> KernelProblem:
    """Return the kernel problem of a call; `chosen` are cores, memories, tiling and layout.

    Raises:
        TypeError: a dtype that this chip cannot multiply, or a float32 bias.
    """
    if call.bias_dtype not in (None, "float16"):
        raise TypeError(f"bias: got dtype {call.bias_dtype}, allowed is float16 on Ascend 910")
    rules = call.rules
    slopes: tuple[float, ...] = ()
    if call.bias == "alibi":
        # The slopes of the heads, once per item that has its own. If slopes are data, the kernels read them instead.
        shape = call.slopes_shape
        slopes = tuple(alibi_slopes(call)) * (shape[0] if shape is not None and len(shape) == 2 else 1)
    same = "batch heads kv_heads seq_q seq_k head_dim value_dim dtype sinks bias_shape return_lse"
    return KernelProblem(
        **{name: getattr(call, name) for name in same.split()},
        rules=replace(
            rules,
            # Which keys behind a query a prefix shows is data, so the mask hides the other keys.
            causal=rules.causal and not call.prefix,
            alibi=call.bias == "alibi",
            dropout_rate=call.dropped_share,
            scale=call.scale,
            tile=rules.tile if rules.in_blocks else PLAIN_RULES.tile,
        ),
        bias_grad=call.bias_grad and call.bias_shape is not None,
        mask_shape=mask_shape(call),
        slopes=slopes,
        **_block_mask(call),
        **{"layout": "BNSD", **chosen},
    )


def varlen_problem(call: Call, **chosen: Any) -> KernelProblem:
    """Return the kernel problem of packed sequences; `chosen` are cores, memories and tiling.

    The head size is padded to 16, so that every head has columns of its own.

    Raises:
        TypeError: a dtype that this chip cannot multiply.
    """
    slopes = call.slopes_shape
    rows = replace(call, storage=None, prefix=False, slopes_shape=slopes and slopes[-1:])
    rules = replace(rows.rules, scale=rows.scale)
    scaled = replace(rows, head_dim=padded(rows.head_dim), value_dim=padded(rows.value_dim), rules=rules)
    described = kernel_problem(scaled, **chosen, layout="TH")
    blocks = 0
    if rows.dropout_threshold:
        lengths = None
        if call.varlen.constant:
            lengths = [(end - first, end_k - first_k) for first, end, first_k, end_k in call.varlen.bounds()]
        blocks = varlen.keep_blocks(rows.seq_q, rows.seq_k, call.varlen.count, lengths)
    items = call.varlen.count if slopes is not None and len(slopes) == 2 else 1
    return replace(
        described,
        sequences=call.varlen.count,
        prefix=call.prefix,
        keep_blocks=blocks,
        slopes=described.slopes * items,
    )


def mask_shape(call: Call) -> tuple | None:
    """Return the shape of the kernels' explicit mask. Prefix and segments become part of it, see `makes_mask`."""
    if not makes_mask(call):
        return call.mask_shape
    tiles = None if lists_tiles(call) else call.block_mask_shape
    given = [shape for shape in (call.mask_shape, tiles) if shape is not None]
    batch = call.batch if call.prefix or call.segments else max(shape[0] for shape in given)
    return batch, max((1, *(shape[1] for shape in given))), call.seq_q, call.seq_k


def makes_mask(call: Call) -> bool:
    """Return True if inputs other than a mask become the kernels' explicit mask. A block mask does unless
    `lists_tiles`.
    """
    return call.prefix or call.segments or (call.block_mask_shape is not None and not lists_tiles(call))


@functools.lru_cache(maxsize=64)
def lists_tiles(call: Call) -> bool:
    """Return True if the kernels visit only the tiles that a call's block mask shows.

    Lists need room in the Unified Buffer, and tiles that whole tiles of the block mask hold. Kernels that have neither
    compute the same from an explicit mask.
    """
    if call.block_mask_shape is None:
        return False
    try:
        problem = kernel_problem(replace(call, block_mask_shape=None, block_mask_tile=0))
        problem = replace(problem, **_tiles(call))
        forward.choose(problem)
        backward.choose(problem)
    except (TypeError, ValueError):
        return False
    return True


def _block_mask(call: Call) -> dict:
    return _tiles(call) if lists_tiles(call) else {}


def _tiles(call: Call) -> dict:
    return {"block_mask_shape": call.block_mask_shape, "block_mask_tile": call.block_mask_tile}
