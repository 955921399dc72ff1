"""flash_attn.bert_padding: between padded batches and packed rows."""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, ops
from mindspore import dtype as mstype
from mindspore.ops import constexpr

from flash_attention.bridge.constants import filled, tensor_of
from flash_attention.bridge.tensors import spec, tensor_spec
from flash_attention.call.checks import INTEGERS, check_dtype, check_int
from flash_attention.call.inputs import fits

__all__ = [
    "index_first_axis",
    "index_put_first_axis",
    "pad_input",
    "unpad_input",
    "unpad_input_for_concatenated_sequences",
]


def index_first_axis(input: Tensor, indices: Tensor) -> Tensor:
    """Return rows of a tensor by their indices.

    Args:
        input (Tensor): (rows, ...), floating or int32, int64.
        indices (Tensor): int32 or int64 (count,).

    Returns:
        Tensor (count, ...), differentiable in input.
    """
    _check_rows("input", spec(input), spec(indices), None)
    if indices.shape[0] == 0:
        return ops.cast(filled((0,) + input.shape[1:], 0), input.dtype)
    return ops.cast(ops.gather(_gathered(input), indices, 0), input.dtype)


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """Return a tensor of zeros with these rows in it.

    Args:
        values (Tensor): (count, ...), floating or int32, int64.
        indices (Tensor): int32 or int64 (count,), the row of the result for each; none twice.
        first_axis_dim (int): rows of the result.

    Returns:
        Tensor (first_axis_dim, ...), differentiable in values.
    """
    return _put("values", values, indices, first_axis_dim)


def _put(name, values, indices, first_axis_dim):
    """Compute `index_put_first_axis`, naming the values as the caller does."""
    _check_rows(name, spec(values), spec(indices), first_axis_dim)
    shape = (first_axis_dim,) + values.shape[1:]
    if 0 in shape or values.shape[0] == 0:
        return ops.cast(filled(shape, 0), values.dtype)
    rows = ops.scatter_nd(ops.expand_dims(indices, 1), _gathered(values), shape)
    return ops.cast(rows, values.dtype)


def _gathered(tensor):
    """Return a tensor in a dtype that a CPU gathers and reshapes: integers as they are."""
    if tensor.dtype == mstype.int32 or tensor.dtype == mstype.int64:
        return tensor
    return ops.cast(tensor, mstype.float32)


@constexpr(reuse_result=False)
def _check_rows(name, tensor, indices, first_axis_dim):
    tensor, indices = tensor_spec(name, tensor), tensor_spec("indices", indices)
    check_dtype("indices", indices.dtype, INTEGERS)
    rows = indices.shape[:1] if first_axis_dim is None else tensor.shape[:1]
    if not tensor.shape or len(indices.shape) != 1 or not all(map(fits, indices.shape, rows)):
        count = "rows" if first_axis_dim is None else "count"
        raise ValueError(
            f"{name}, indices: got shapes {tensor.shape} and {indices.shape}, allowed are ({count}, ...) and (count,)"
        )
    if first_axis_dim is not None:
        check_int("first_axis_dim", first_axis_dim, 0)


def unpad_input(hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None) -> tuple:
    """Return the tokens of a padded batch one after another. It runs in PYNATIVE only, because it reads the mask.

    Args:
        hidden_states (Tensor): (batch, seqlen, ...), floating or int32, int64.
        attention_mask (Tensor): (batch, seqlen), bool or integer: 1 = a token, 0 = padding.
        unused_mask (Tensor): likewise; 1 = a place that is kept, but does not count for the length of a sequence.

    Returns:
        (tokens, ...) rows, differentiable in hidden_states; int64 (tokens,) indices of them in batch * seqlen; int32
        (batch + 1,) cumulative lengths; the largest length, an int; int32 (batch,) lengths by attention_mask alone.

    Raises:
        TypeError, ValueError: the mask is no Tensor, or not (batch, seqlen).
    """
    own = _read("attention_mask", attention_mask, hidden_states) != 0
    kept = own if unused_mask is None else own | (_read("unused_mask", unused_mask, hidden_states) != 0)
    return *_packed(hidden_states, kept, kept.sum(axis=1)), tensor_of(own.sum(axis=1).astype(np.int32))


def unpad_input_for_concatenated_sequences(hidden_states: Tensor, attention_mask_in_length: Tensor) -> tuple:
    """Unpad batch items that hold several sequences each. The cumulative lengths keep the sequences apart.

    Args:
        hidden_states (Tensor): (batch, seqlen, ...), floating or int32, int64.
        attention_mask_in_length (Tensor): integer (batch, seqlen): the lengths of an item's sequences in their order;
            0 = none. The tokens stand at the item's start, at most seqlen of them.

    Returns:
        (tokens, ...) rows, differentiable in hidden_states; int64 (tokens,) indices of them in batch * seqlen; int32
        (sequences + 1,) cumulative lengths; the largest length, an int.

    Raises:
        TypeError: the lengths are no integers.
        ValueError: they are not (batch, seqlen), one is negative, or an item's lengths add up to more than seqlen.
    """
    name = "attention_mask_in_length"
    lengths, seqlen = _read(name, attention_mask_in_length, hidden_states), hidden_states.shape[1]
    if not np.issubdtype(lengths.dtype, np.integer):
        raise TypeError(f"{name}: got dtype {lengths.dtype}, allowed are integers")
    if lengths.min(initial=0) < 0:
        raise ValueError(f"{name}: got {lengths.min()}, allowed are lengths >= 0")
    totals = lengths.sum(axis=1)
    if totals.max(initial=0) > seqlen:
        raise ValueError(f"{name}: got {totals.max()} tokens of an item, allowed are up to seqlen, {seqlen}")
    return _packed(hidden_states, np.arange(seqlen) < totals[:, None], lengths[lengths > 0])


def _packed(hidden_states: Tensor, kept: np.ndarray, lengths: np.ndarray) -> tuple:
    """Return the rows that are kept, their indices, cumulative lengths, and the largest length."""
    ends = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    indices = tensor_of(np.flatnonzero(kept).astype(np.int64))
    rows = _gathered(hidden_states).reshape((-1,) + hidden_states.shape[2:])
    rows = ops.cast(index_first_axis(rows, indices), hidden_states.dtype)
    return rows, indices, Tensor(ends), int(lengths.max(initial=0))


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """Return packed rows as a padded batch, zeros elsewhere.

    Args:
        hidden_states (Tensor): (tokens, ...), floating or int32, int64.
        indices (Tensor): (tokens,), as of `unpad_input`.
        batch (int): items of the batch.
        seqlen (int): places of an item.

    Returns:
        Tensor (batch, seqlen, ...), differentiable in hidden_states.
    """
    _check_sizes(batch, seqlen)
    rows = _put("hidden_states", hidden_states, indices, batch * seqlen)
    rows = ops.reshape(_gathered(rows), (batch, seqlen) + hidden_states.shape[1:])
    return ops.cast(rows, hidden_states.dtype)


@constexpr(reuse_result=False)
def _check_sizes(batch, seqlen):
    check_int("batch", batch, 0)
    check_int("seqlen", seqlen, 0)


def _read(name: str, mask: Tensor, hidden_states: Tensor) -> np.ndarray:
    given, hidden = tensor_spec(name, spec(mask)), tensor_spec("hidden_states", spec(hidden_states))
    if len(hidden.shape) < 2:
        raise ValueError(f"hidden_states: got shape {hidden.shape}, allowed is (batch, seqlen, ...)")
    if given.shape != hidden.shape[:2]:
        raise ValueError(f"{name}: got shape {mask.shape}, allowed is (batch, seqlen), here {hidden_states.shape[:2]}")
    return mask.asnumpy()
