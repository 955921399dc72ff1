"""`ReshapeAndCache` and `KVCacheScatterUpdate`: write keys and values of tokens into a cache."""

from __future__ import annotations

import mindspore as ms
from mindspore import dtype as mstype
from mindspore import nn, ops

from flash_attention.bridge.constants import numbered
from flash_attention.bridge.parameters import EntryCell
from flash_attention.bridge.precision import fix_dtypes
from flash_attention.bridge.tensors import as_int32, compile_time, remembered, spec, tensor_spec
from flash_attention.bridge.views import writable
from flash_attention.call.checks import INTEGERS, check_dtype, check_name, check_range
from flash_attention.call.inputs import DTYPES, TensorSpec, fits
from flash_attention.call.layout import UNKNOWN
from flash_attention.call.paged import product
from flash_attention.call_cells import NumberCheck
from flash_attention.compat.ascend910 import Operator
from flash_attention.compat.mindspore_ops.operators import primitive_of
from flash_attention.compat.mindspore_ops.reshaped import reshaped
from flash_attention.paged import update_cache


@ms.jit_class
class ReshapeAndCache(Operator):
    """`mindspore.ops.auto_generate.ReshapeAndCache`, see `flash_attention.reshape_and_cache` for the caches.

    Inputs:
        key (Tensor): (tokens, N * D), (batch, tokens, N * D) or (tokens, N, D).
        value (Tensor): like key. None together with value_cache: multi-head latent attention has one cache.
        key_cache (Parameter): (blocks, block_size, N, D), dtype of key; it is written.
        value_cache (Parameter): likewise.
        slot_mapping (Tensor): int32, a number per token: block * block_size + offset; -1 leaves its token out.

    Outputs:
        Tensor: the key. A graph that takes it by `ops.depend` runs what follows behind the write.
    """

    def __call__(self, key, value=None, key_cache=None, value_cache=None, slot_mapping=None):
        check = spec(key), spec(value), spec(key_cache), spec(value_cache), spec(slot_mapping)
        shapes = _read(*check)
        new = reshaped(key, shapes[0])
        if value is None:
            # One cache, twice: both copies write the same numbers.
            written = update_cache(new, new, key_cache, key_cache, slot_mapping, True)
        else:
            written = update_cache(new, reshaped(value, shapes[1]), key_cache, value_cache, slot_mapping, True)
        return ops.depend(key, written)


@compile_time
def _read(key, value, key_cache, value_cache, slots):
    """Return the shapes in which `update_cache` takes key and value."""
    if slots is None or key_cache is None:
        raise ValueError(f"{'slot_mapping' if slots is None else 'key_cache'}: got None, allowed is a Tensor")
    if (value is None) != (value_cache is None):
        raise ValueError("value, value_cache: got one of them, allowed are both or none")
    slots = product(tensor_spec("slot_mapping", slots).shape)
    shapes = []
    for name, tensor, cache in (("key", key, key_cache), ("value", value, value_cache)):
        if tensor is None:
            continue
        shape, stored = tensor_spec(name, tensor).shape, tensor_spec(f"{name}_cache", cache).shape
        if len(stored) != 4:
            raise ValueError(f"{name}_cache: got shape {stored}, allowed is (blocks, block_size, N, D)")
        apart = len(shape) == 3 and shape[1:] == stored[2:] and fits(shape[0], slots)
        if not apart and (len(shape) not in (2, 3) or shape[-1] != stored[2] * stored[3]):
            raise ValueError(
                f"{name}: got shape {shape}, allowed are (tokens, N * D), (batch, tokens, N * D) and (tokens, N, D), "
                f"with (N, D) = {stored[2:]} of {name}_cache"
            )
        shapes.append((-1, *stored[2:]))
    return tuple(shapes)


def kv_cache_scatter_update(var, indices, updates, axis, reduce="none"):
    """Compute `mindspore.ops.auto_generate.kv_cache_scatter_update`: write `updates` into `var` in place.

    Args:
        var (Parameter): (B, N, S, D), float16 or float32, on devices also bfloat16. On a CPU it may be a Tensor.
        indices (Tensor): ints (B,), where the updates of each item begin.
        updates (Tensor): like var, shorter on the axis.
        axis (int): -1 or -2.
        reduce (str): "update"; no source says the meaning of "none".

    Returns:
        Tensor: var after the write.

    Raises:
        TypeError, ValueError: an argument is not allowed. Indices are checked in PYNATIVE on a CPU; in a graph, what
            does not fit is not written.
    """
    run = _scatter(axis, reduce, (spec(var), spec(indices), spec(updates)))
    return run(writable()("var", var), indices, updates)


KVCacheScatterUpdate = primitive_of("KVCacheScatterUpdate", kv_cache_scatter_update)


@compile_time
def _scatter(axis, reduce, specs):
    return _scatter_cell(axis, reduce, tuple(map(tensor_spec, ("var", "indices", "updates"), specs)))


@remembered
def _scatter_cell(axis: int, reduce: str, specs: tuple) -> nn.Cell:
    var, indices, updates = specs
    check_name("reduce", reduce, ("update",))
    if axis not in (-1, -2) or isinstance(axis, bool):
        raise ValueError(f"axis: got {axis!r}, allowed are -1 and -2")
    on_cpu = ms.get_context("device_target") == "CPU"  # where MindSpore assigns no bfloat16
    check_dtype("var", var.dtype, ("float16", "float32") if on_cpu else DTYPES)
    check_dtype("updates", updates.dtype, (var.dtype,))
    check_dtype("indices", indices.dtype, INTEGERS)
    for name, one in zip(("var", "indices", "updates"), specs):
        if UNKNOWN in one.shape:
            raise ValueError(f"{name}: got shape {one.shape} in a graph for dynamic shapes, allowed are known shapes")
    if len(var.shape) != 4 or indices.shape != var.shape[:1]:
        raise ValueError(
            f"indices: got shape {indices.shape} beside var of {var.shape}, allowed are (B,) and (B, N, S, D)"
        )
    others = list(var.shape)
    others[axis] = updates.shape[axis] if len(updates.shape) == 4 else -1
    if updates.shape != tuple(others) or others[axis] > var.shape[axis]:
        raise ValueError(f"updates: got shape {updates.shape}, allowed is {var.shape}, or shorter on axis {axis}")
    return fix_dtypes(_Scatter(axis, var, others[axis]))


class _Scatter(EntryCell):
    """Write updates where their numbers on an axis say."""

    def __init__(self, axis: int, var: TensorSpec, count: int):
        super().__init__()
        self.axis, self.count, self.size = axis, count, var.shape[axis]
        self.shape = (-1, 1, 1, self.size) if axis == -1 else (-1, 1, self.size, 1)
        self.whole = var.shape
        most = self.size - count
        looks = ms.get_context("device_target") == "CPU"
        self.check = NumberCheck((lambda indices: check_range("indices", indices, most)) if looks else None)

    def construct(self, var, indices, updates):
        self.check(indices)
        place = ops.reshape(numbered(self.size), (1, -1)) - ops.reshape(as_int32(indices), (-1, 1))
        inside = ops.reshape(ops.logical_and(place >= 0, place < self.count), self.shape)
        source = ops.reshape(ops.minimum(ops.maximum(place, 0), self.count - 1), self.shape)
        wide = ops.cast(updates, mstype.float32)
        rows = ops.gather_elements(wide, 4 + self.axis, ops.broadcast_to(source, self.whole))
        kept = ops.cast(var, mstype.float32)
        written = ops.select(ops.broadcast_to(inside, self.whole), rows, kept)
        return ops.assign(var, ops.cast(written, var.dtype))
