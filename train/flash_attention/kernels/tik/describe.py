"""Describe a call as the problem of the kernels."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from flash_attention.call import Call, alibi_slopes
from flash_attention.call.block_mask import known
from flash_attention.call.rules import PLAIN_RULES
from flash_attention.call.storage import Paged, Varlen
from flash_attention.call.tiling import tiles_of
from flash_attention.kernels.tik import varlen
from flash_attention.kernels.tik.backward import schedule as backward
from flash_attention.kernels.tik.common import segments, tile_lists
from flash_attention.kernels.tik.forward import schedule as forward
from flash_attention.kernels.tik.problem import KernelProblem, padded


def kernel_problem(call: Call, layout: str = "BNSD", **chosen: Any) -> KernelProblem:
    """Return the kernel problem of a call.

    A field that makes no difference to a kernel has its default.

    The head size of packed sequences is padded to 16, so that every head has columns of its own.

    Args:
        layout: of a dense call's tensors, as the kernels get them.
        **chosen: cores, memories and tiling.

    Raises:
        TypeError: a dtype that this chip cannot multiply, or a float32 bias.
    """
    packed, rules = call.kind == "varlen", call.rules
    storage: Varlen | Paged | None = None
    if packed:
        layout, storage = "BSH", Varlen(count=call.varlen.count)
        chosen["keep_blocks"] = _keep_blocks(call)
    elif call.kind == "paged":
        layout, storage = "BSND", Paged(call.paged.block_size, call.paged.blocks)
    shape, dropped, listed = mask_shape(call), call.dropped_share, lists_tiles(call)
    same = "batch heads kv_heads seq_q seq_k dtype sinks bias_shape bias_dtype return_lse"
    described = Call(
        **{name: getattr(call, name) for name in same.split()},
        head_dim=padded(call.head_dim) if packed else call.head_dim,
        value_dim=padded(call.value_dim) if packed else call.value_dim,
        layout=layout,
        rules=replace(
            rules,
            # Which keys behind a query a prefix shows is data, so the mask or the lists hide the other keys.
            causal=rules.causal and (packed or not call.prefix),
            alibi=call.bias == "alibi",
            dropout_rate=dropped,
            scale=call.scale,
            tile=rules.tile if rules.in_blocks else PLAIN_RULES.tile,
        ),
        mask_shape=shape,
        mask_dtype="float16" if shape else None,
        bias_grad=call.bias_grad or call.bias_shape is None,
        keep_bits=dropped > 0,
        training=dropped > 0,
        prefix=packed and call.prefix,
        storage=storage,
        **(_tiles(call) if listed else {}),
    )
    prefixed = listed and _lists_prefix(call)
    keeps_tiles = described.block_mask_shape is not None and call.block_mask_key != ""
    keeps_tiles = keeps_tiles and not described.segments and not prefixed
    if keeps_tiles:
        chosen["scattered"] = tile_lists.scattered(known(call.block_mask_key).tiles, call.block_mask_tile)
    return KernelProblem(described, _slopes(call), keeps_tiles=keeps_tiles, prefixed=prefixed, **chosen)


def _keep_blocks(call: Call) -> int:
    """Return the room for the keep decisions of packed sequences, see varlen.keep_blocks."""
    if not call.dropout_threshold:
        return 0
    lengths = None
    if call.varlen.constant:
        lengths = [(end - first, end_k - first_k) for first, end, first_k, end_k in call.varlen.bounds()]
    return varlen.keep_blocks(call.seq_q, call.seq_k, call.varlen.count, lengths)


def _slopes(call: Call) -> tuple[float, ...]:
    """Return the slopes of the heads, once per item that has its own. If slopes are data, the kernels read them."""
    if call.bias != "alibi":
        return ()
    items = 1
    if call.slopes_shape is not None and len(call.slopes_shape) == 2:
        items = call.varlen.count if call.kind == "varlen" else call.slopes_shape[0]
    return tuple(alibi_slopes(call)) * items


def mask_shape(call: Call) -> tuple | None:
    """Return the shape of the kernels' explicit mask. Prefix and segments become part of it, see `makes_mask`."""
    if not makes_mask(call):
        return call.mask_shape
    tiles = None if lists_tiles(call) else call.block_mask_shape
    given = [shape for shape in (call.mask_shape, tiles) if shape is not None]
    batch = call.batch if masks_prefix(call) or call.segments else max(shape[0] for shape in given)
    return batch, max((1, *(shape[1] for shape in given))), call.seq_q, call.seq_k


def makes_mask(call: Call) -> bool:
    """Return True if inputs other than a mask become the kernels' explicit mask. Segments and a block mask do unless
    `lists_tiles`. Kernels of packed sequences take prefixes.
    """
    listed = lists_tiles(call)
    return masks_prefix(call) or (call.segments and not listed) or (call.block_mask_shape is not None and not listed)


def masks_prefix(call: Call) -> bool:
    """Return True if prefixes become part of the kernels' explicit mask."""
    return call.prefix and call.kind != "varlen" and not (_lists_prefix(call) and lists_tiles(call))


@functools.lru_cache(maxsize=64)
def lists_tiles(call: Call) -> bool:
    """Return True if the kernels visit only tiles that block mask and segment ids show.

    Lists need room in the Unified Buffer, and tiles that whole tiles of the block mask hold. Kernels that have neither
    compute the same from an explicit mask.
    """
    listed = _tiles(call)
    if not listed:
        return False
    try:
        plain = replace(call, block_mask_shape=None, block_mask_tile=0, segments=False)
        prefixed = _lists_prefix(call)
        if prefixed:
            plain = replace(plain, prefix=False, rules=replace(call.rules, causal=False))
        problem = kernel_problem(plain)
        problem = replace(problem, call=replace(problem.call, **listed), prefixed=prefixed)
        if problem.compares and not segments.addressable(problem):
            return False
        forward.choose(problem)
        backward.choose(problem)
    except (TypeError, ValueError):
        return False
    return True


def _tiles(call: Call) -> dict:
    """Return fields of the kernels' call for lists of tiles, or none."""
    shape, tile = call.block_mask_shape, call.block_mask_tile
    if call.segments or _lists_prefix(call):
        tile = tile or segments.TILE
        shape = call.batch, (shape or (1, 1))[1], tiles_of(call.seq_q, tile), tiles_of(call.seq_k, tile)
    return {} if shape is None else {"block_mask_shape": shape, "block_mask_tile": tile, "segments": call.segments}


def _lists_prefix(call: Call) -> bool:
    """Return True if prefixes become lists of tiles, if there is room."""
    return call.prefix and call.kind == "dense"
