"""Gather keys and values of packed sequences from pages, for `flash_attn_varlen_func`."""

from __future__ import annotations

import functools

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype
from mindspore.ops import constexpr

from flash_attention.bridge.constants import numbered
from flash_attention.bridge.tensors import as_int32, tensor_spec, widened
from flash_attention.call.checks import INTEGERS, check_dtype
from flash_attention.call.layout import UNKNOWN
from flash_attention.call.varlen import check_counts, check_lengths


class _Gathered(nn.Cell):
    """Gather the keys and values of packed sequences from pages. A key that no page holds is NaN.

    PYNATIVE takes the pages in use. A compiled graph takes `most` for each sequence, of which the last mean nothing.
    """

    def __call__(self, k, v, cu_seqlens, table, most):
        table = table.asnumpy()
        ends = np.array(check_lengths("cu_seqlens_k", cu_seqlens.asnumpy().tolist(), UNKNOWN))
        check_counts(range(len(table) + 1), ends)
        blocks, size = k.shape[:2]
        owner = np.repeat(np.arange(len(table)), np.diff(ends))
        inside = np.arange(len(owner)) - ends[owner]
        block = table[owner, np.minimum(inside // size, table.shape[1] - 1)]
        known = (block >= 0) & (block < blocks) & (inside < table.shape[1] * size)
        places = np.stack((np.where(known, block, 0), inside % size), -1).astype(np.int32)
        if len(places) == 0:
            places = np.zeros((1, 2), np.int32)
        missing = None if known.all() else Tensor(~known.reshape(-1, 1, 1))
        if k.dtype not in (mstype.float32, mstype.float16):  # which `rows` casts: the pages in use alone
            used, places[:, 0] = np.unique(places[:, 0], return_inverse=True)
            k, v = (ops.concat([cache[page : page + 1] for page in used.tolist()], 0) for cache in (k, v))
        return self.rows(k, Tensor(places), missing), self.rows(v, Tensor(places), missing)

    def construct(self, k, v, cu_seqlens, table, most):
        (blocks, size), (batch, width) = k.shape[:2], table.shape
        row = ops.reshape(numbered(batch * min(most, width * size)), (-1, 1))
        ends, table = ops.cast(cu_seqlens, mstype.int32), as_int32(table)
        owner = ops.cast(row >= ops.reshape(ends[1:], (1, -1)), mstype.float32).sum(1)
        exists = owner < batch
        owner = ops.minimum(ops.cast(owner, mstype.int32), batch - 1)
        inside = ops.reshape(row, (-1,)) - ops.gather(ends, owner, 0)
        page = ops.minimum(inside // size, width - 1)
        block = ops.gather(ops.reshape(table, (-1,)), owner * width + page, 0)
        known = ops.logical_and(ops.logical_and(block >= 0, block < blocks), inside < width * size)
        missing = ops.reshape(ops.logical_and(exists, ops.logical_not(known)), (-1, 1, 1))
        places = ops.stack((ops.minimum(ops.maximum(block, 0), blocks - 1), inside % size), -1)
        return self.rows(k, places, missing), self.rows(v, places, missing)

    def rows(self, cache, places, missing):
        rows = ops.gather_nd(widened(cache), places)
        if missing is not None:
            rows = ops.masked_fill(rows, missing, float("nan"))
        return ops.cast(rows, cache.dtype)


@constexpr(reuse_result=False)
def gatherer():
    """Return the Cell that gathers."""
    return _gatherer_of_pages()


_gatherer_of_pages = functools.lru_cache(maxsize=None)(_Gathered)  # at the first call: no Cell may be made at import


@constexpr(reuse_result=False)
def check_pages(k, v, cu_seqlens_q, cu_seqlens_k, block_table):
    """Raise unless pages, lengths and table fit each other."""
    k, v, table = tensor_spec("k", k), tensor_spec("v", v), tensor_spec("block_table", block_table)
    for name, shape in (("k", k.shape), ("v", v.shape), ("block_table", table.shape)):
        if UNKNOWN in shape:
            raise ValueError(f"{name}: got shape {shape} in a graph for dynamic shapes, {UNKNOWN} is not known")
    check_dtype("block_table", table.dtype, INTEGERS)
    if len(table.shape) != 2:
        raise ValueError(f"block_table: got shape {table.shape}, allowed is (batch, pages)")
    for name, tensor in (("k", k), ("v", v)):
        if len(tensor.shape) != 4 or tensor.shape[:3] != k.shape[:3]:
            raise ValueError(
                f"{name}: got shape {tensor.shape}, allowed is (num_blocks, page_block_size, nheads_k, headdim) with a "
                "block_table, the first three the same for k and v"
            )
    for name, given in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        ends = tensor_spec(name, given)
        check_dtype(name, ends.dtype, INTEGERS)
        if ends.shape != (table.shape[0] + 1,):
            raise ValueError(f"{name}: got shape {ends.shape}, allowed is (batch + 1,) = ({table.shape[0] + 1},)")
