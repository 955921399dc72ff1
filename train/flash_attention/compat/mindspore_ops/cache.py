"""`ReshapeAndCache`: write keys and values of tokens into a cache of blocks."""

from __future__ import annotations

import mindspore as ms
from mindspore import ops

from flash_attention.bridge.tensors import compile_time, spec, tensor_spec
from flash_attention.call.inputs import fits
from flash_attention.call.paged import product
from flash_attention.compat.ascend910 import Operator
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

    def __init__(self):
        super().__init__("ReshapeAndCache")

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
