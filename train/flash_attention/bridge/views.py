"""Hand views of tensors to operators that write them."""

from __future__ import annotations

import ctypes
import functools

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn

from flash_attention.bridge.tensors import compile_time


class _Written(nn.Cell):
    """Give a tensor that operators can write. MindSpore hands them a copy of a view, so that their writes are lost.

    A compiled graph cannot do this; there the kernel refuses a view.
    """

    def __call__(self, name, tensor):
        if isinstance(tensor, Parameter) or not hasattr(tensor, "data_ptr"):
            return tensor  # without the method MindSpore has no views, or the kernel refuses them
        device = ms.get_context("device_target")
        if device != "CPU":
            raise ValueError(f"{name}: got a Tensor on {device}, allowed there is a Parameter")
        if not tensor.is_contiguous():
            raise ValueError(
                f"{name}: got a view of shape {tensor.shape} and strides {tuple(tensor.stride())}; allowed are a "
                "Parameter, a Tensor, and a view whose elements lie one behind the other"
            )
        memory = (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())
        memory.owner = tensor  # which lives as long as the result
        array = np.frombuffer(memory, _numpy_dtype(tensor.dtype)).reshape(tensor.shape)
        return Tensor.from_numpy(array)

    def construct(self, name, tensor):
        return tensor


@compile_time
def writable():
    """Return the Cell of `tensor = cell(name, tensor)`, made at the first call: no Cell may be made at import."""
    return _writable()


_writable = functools.lru_cache(maxsize=None)(_Written)


@functools.lru_cache(maxsize=8)
def _numpy_dtype(dtype):
    return Tensor([0], dtype).asnumpy().dtype
