"""Run a case through `flash_attention`, as users do; return results and all gradients."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from flash_attention import flash_attention, flash_attention_varlen
from flash_attention.reference import Attention
from mindspore import Tensor, nn, ops

from tests.train.flash_attention.support.arrays import ends
from tests.train.flash_attention.support.cases import SEED, Case
from tests.train.flash_attention.support.layouts import heads_first, laid_out
from tests.train.flash_attention.support.varlen import VarlenCase
from tests.train.flash_attention.support.versions import dtype_named


def tensor(array: np.ndarray | None, dtype: str | None = None) -> Tensor | None:
    """Return a Tensor of a NumPy array, cast to `dtype`; None of None."""
    if array is None:
        return None
    result = Tensor(array)
    return result if dtype is None else result.astype(dtype_named(dtype))


def array(result: Tensor | None) -> np.ndarray | None:
    """Return a Tensor as a float32 NumPy array; None if it is None."""
    return None if result is None else result.astype(ms.float32).asnumpy()


class Attention32(nn.Cell):
    """`flash_attention` of a case with its loss. The loss has the gradients d_output and d_logsumexp."""

    def __init__(self, case: Case, backend: str, layout="BNSD", seed=SEED, keep_bits=None):
        super().__init__()
        inputs = case.inputs()
        self.layout, self.head_dim = layout, case.head_dim
        self.value_head_dim = case.value_dim or None
        self.batch = case.batch if layout == "TH" else None
        self.mask = tensor(inputs.mask, None if case.mask_dtype != "bfloat16" else "bfloat16")
        self.d_output, self.d_logsumexp = tensor(laid_out(inputs.d_output, layout)), tensor(inputs.d_logsumexp)
        drawn = case.dropout > 0 and keep_bits is None
        self.seed = Tensor(np.array(seed, np.int64)) if drawn else None
        self.keep_bits = tensor(keep_bits)
        optional = inputs.optional()
        self.prefix, self.segment_ids = tensor(optional["prefix"]), tensor(optional["segment_ids"])
        self.kv_segment_ids, self.block_mask = tensor(optional["kv_segment_ids"]), tensor(optional["block_mask"])
        self.options = case.options()
        self.alibi = case.alibi != "none"
        self.backend = backend

    def construct(self, query, key, value, bias, sinks, slopes):
        output, logsumexp = flash_attention(
            query,
            key,
            value,
            self.mask,
            bias,
            seed=self.seed,
            sinks=sinks,
            prefix=self.prefix,
            segment_ids=self.segment_ids,
            kv_segment_ids=self.kv_segment_ids,
            keep_bits=self.keep_bits,
            alibi_slopes=slopes,
            block_mask=self.block_mask,
            alibi=self.alibi,
            input_layout=self.layout,
            head_dim=self.head_dim,
            value_head_dim=self.value_head_dim,
            batch=self.batch,
            return_lse=True,
            backend=self.backend,
            **self.options,
        )
        loss = (output.astype(ms.float32) * self.d_output).sum() + (logsumexp * self.d_logsumexp).sum()
        return loss, output, logsumexp


def run_case(case: Case, backend: str, layout: str = "BNSD", gradients: bool = True, **dropout) -> Attention:
    """Return the output, logsumexp and gradients of `case` on `backend`, as BNSD.

    Args:
        layout: of the tensors of the call.
        gradients: without them only the forward pass runs.
        dropout: `seed` (pair of integers) or `keep_bits` (NumPy array) instead of the shared seed.
    """
    inputs = case.inputs()
    cell = Attention32(case, backend, layout, **dropout)
    tensors = [tensor(laid_out(value, layout), case.dtype) for value in (inputs.query, inputs.key, inputs.value)]
    tensors += [tensor(inputs.bias, case.dtype), tensor(inputs.sinks), tensor(inputs.alibi_slopes)]
    if not gradients:
        _, output, logsumexp = cell(*tensors)
        return Attention(heads_first(array(output), layout, case.call.value_dim, case.batch), array(logsumexp))
    positions = tuple(index for index, one in enumerate(tensors) if one is not None)
    run = ops.value_and_grad(cell, grad_position=positions, has_aux=True)
    if ms.get_context("mode") == ms.GRAPH_MODE:
        run = ms.jit(run)
    (_, output, logsumexp), found = run(*tensors)
    found = list(found)
    widths = [array.shape[-1] for array in (inputs.d_output, inputs.query, inputs.key, inputs.value)]
    results = zip((output, *found[:3]), widths)
    output, *found[:3] = (heads_first(array(one), layout, width, case.batch) for one, width in results)
    assert inputs.alibi_slopes is None or not found.pop().asnumpy().any()  # slopes have no gradient
    d_sinks = None if inputs.sinks is None else array(found.pop())
    if inputs.bias is not None:
        found[3] = array(found[3]).reshape(case.call.bias_shape)
    return Attention(output, array(logsumexp), *found, d_sinks=d_sinks)


class VarlenAttention(nn.Cell):
    """`flash_attention_varlen` of a case with its loss, as `Attention32`. Lengths, prefixes and slopes are inputs."""

    def __init__(self, case: VarlenCase, backend: str):
        super().__init__()
        drawn = case.dropout > 0 and not case.given_bits
        self.seed = Tensor(np.array(SEED, np.int64)) if drawn else None
        bits = np.concatenate([one.reshape(-1) for one in case.keep_bits()]) if case.given_bits else None
        self.keep_bits, self.options = tensor(bits), case.options()
        self.alibi, self.backend = case.alibi == "computed", backend

    def construct(self, query, key, value, bias, sinks, ends_q, ends_k, prefix, slopes, d_output, d_logsumexp):
        output, logsumexp = flash_attention_varlen(
            query,
            key,
            value,
            ends_q,
            ends_k,
            seed=self.seed,
            keep_bits=self.keep_bits,
            bias=bias,
            sinks=sinks,
            prefix=prefix,
            alibi_slopes=slopes,
            alibi=self.alibi,
            return_lse=True,
            backend=self.backend,
            **self.options,
        )
        loss = (output.astype(ms.float32) * d_output).sum() + (logsumexp * d_logsumexp).sum()
        return loss, output, logsumexp


def packed(rows: np.ndarray, dtype: str | None = None) -> Tensor:
    """Return a Tensor (tokens, heads, width) of an array (1, heads, tokens, width)."""
    return tensor(np.ascontiguousarray(rows[0].swapaxes(0, 1)), dtype)


def bias_tensor(case: VarlenCase, bias: np.ndarray | None) -> Tensor | None:
    """Return a bias as float32, or as float16 beside float16: the TIK operators take no other bias there."""
    return tensor(bias, "float16" if case.dtype == "float16" else None)


class VarlenRun:
    """One network for cases with the same rules and numbers of tokens.

    Args:
        data: the lengths are in tensors; else they are constants.
    """

    def __init__(self, case: VarlenCase, backend: str, data: bool):
        self.data = data
        given = True, True, True, case.bias is not None, case.sinks
        self.positions = tuple(index for index, one in enumerate(given) if one)
        run = ops.value_and_grad(VarlenAttention(case, backend), grad_position=self.positions, has_aux=True)
        self.run = ms.jit(run) if ms.get_context("mode") == ms.GRAPH_MODE else run

    def __call__(self, case: VarlenCase) -> Attention:
        """Return output, logsumexp and gradients of all rows as BNSD."""
        given = case.inputs()
        tensors = [packed(array, case.dtype) for array in (given.query, given.key, given.value)]
        bias = None if case.bias is None else case.bias[0, :, 0]
        tensors += [bias_tensor(case, bias), tensor(given.sinks)]
        lengths: list = [ends(case.queries), ends(case.keys)]
        if self.data:
            lengths = [Tensor(lengths[0], ms.int32), Tensor(lengths[1], ms.int64)]
        optional = tensor(case.prefixes), tensor(case.slopes)
        upstream = packed(given.d_output), Tensor(given.d_logsumexp[0])
        (_, output, logsumexp), gradients = self.run(*tensors, *lengths, *optional, *upstream)
        found = dict(zip(self.positions, map(array, gradients)))
        rows = [one.swapaxes(0, 1)[None] for one in (array(output), *(found[index] for index in range(3)))]
        logsumexp = array(logsumexp)[None]
        return Attention(
            rows[0],
            np.where(logsumexp < -1e38, -np.inf, logsumexp),
            *rows[1:],
            d_bias=None if bias is None else found[3][None, :, None],
            d_sinks=found.get(4),
        )
