"""Operators that move elements and compute nothing: formats, shapes, parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import numpy as np

from ...operator_call import OperatorCall, tensors
from ..by_name import attribute, both_forms
from ..formats import with_filling
from ..numerics import listed


def _same(_kernel: OperatorCall, x: np.ndarray, *_rest: Any) -> np.ndarray:
    """Return the tensor: its format and its shape are the store's concern."""
    return x


def _given(kernel: OperatorCall, name: str, tensor: np.ndarray | None) -> Any:
    """Return the numbers of a tensor, or of an attribute if there is no tensor."""
    return kernel.attributes[name] if tensor is None else tensor.tolist()


def _transpose(kernel: OperatorCall, x: np.ndarray, order: np.ndarray | None = None) -> np.ndarray:
    return x.transpose(_given(kernel, "perm", order))


def _transpose_and_reshape(kernel: OperatorCall, x: np.ndarray) -> np.ndarray:
    """Transpose and reshape in either order, as MindSpore fuses both."""
    attributes = kernel.attributes
    if attributes["transpose_first"]:
        return x.transpose(attributes["perm"]).reshape(attributes["shape"])
    return x.reshape(attributes["shape"]).transpose(attributes["perm"])


def _concatenate(kernel: OperatorCall, *arrays: Any) -> np.ndarray:
    return np.concatenate(listed(arrays), attribute(kernel, "concat_dim", "axis", otherwise=0))


def _split(kernel: OperatorCall, x: np.ndarray) -> list[np.ndarray]:
    count = attribute(kernel, "num_split", "output_num")
    return np.split(x, count, attribute(kernel, "split_dim", "axis", otherwise=0))


@with_filling
def _split_by_sizes(kernel: OperatorCall, x: np.ndarray) -> list[np.ndarray]:
    """Split a tensor. A part may be larger than its output.

    For tensors in fractals MindSpore counts the filling in the sizes too.
    """
    parts = np.split(x, np.cumsum(kernel.attributes["size_splits"])[:-1], kernel.attributes["split_dim"])
    return [part[tuple(map(slice, output["ori_shape"]))] for part, output in zip(parts, tensors(kernel.outputs))]


def _strides(kernel: OperatorCall, shape: Sequence[int], begin: Any, end: Any, steps: Any) -> tuple[Any, ...]:
    """Return the index that StridedSlice describes."""
    masks = {
        name: kernel.attributes.get(f"{name}_mask", 0)
        for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    index: list[Any] = []
    for place, (first, last, step) in enumerate(zip(begin, end, steps)):
        bit = 1 << place
        if masks["ellipsis"] & bit:
            index.append(Ellipsis)
        elif masks["new_axis"] & bit:
            index.append(None)
        elif masks["shrink_axis"] & bit:
            index.append(int(first))
        else:
            start = None if masks["begin"] & bit else int(first)
            index.append(slice(start, None if masks["end"] & bit else int(last), int(step)))
    return tuple(index)


def _bounds(kernel: OperatorCall, given: Sequence[np.ndarray | None]) -> list[Any]:
    """Return begin, end and strides, from tensors or attributes."""
    return [_given(kernel, name, array) for name, array in zip(("begin", "end", "strides"), given)]


def _strided_slice(kernel: OperatorCall, x: np.ndarray, *bounds: np.ndarray) -> np.ndarray:
    return x[_strides(kernel, x.shape, *_bounds(kernel, (*bounds, None, None, None)[:3]))]


def _strided_slice_gradient(kernel: OperatorCall, *arrays: np.ndarray) -> np.ndarray:
    """Scatter the gradient of a strided slice. Shape, begin, end and strides may be tensors."""
    *bounds, gradient = arrays
    result = np.zeros(kernel.outputs[0]["ori_shape"], gradient.dtype)
    index = _strides(kernel, result.shape, *_bounds(kernel, (*bounds[1:], None, None, None)[:3]))
    result[index] = gradient.reshape(result[index].shape)
    return result


def _slice(kernel: OperatorCall, x: np.ndarray, *bounds: np.ndarray) -> np.ndarray:
    given = [array.tolist() for array in bounds]
    starts, sizes = given or (attribute(kernel, "offsets", "begin"), kernel.attributes["size"])
    ends = (start + size if size >= 0 else None for start, size in zip(starts, sizes))
    return x[tuple(slice(start, end) for start, end in zip(starts, ends))]


def _broadcast(kernel: OperatorCall, x: np.ndarray, *_shape: Any) -> np.ndarray:
    return np.broadcast_to(x, kernel.outputs[0]["ori_shape"])


TABLE: dict[str, Callable[..., Any]] = {
    **both_forms(
        broadcast_to=_broadcast,
        pad=lambda kernel, x, widths=None: np.pad(x, np.reshape(_given(kernel, "paddings", widths), (-1, 2))),
        slice=_slice,
        tile=lambda kernel, x, times=None: np.tile(x, _given(kernel, "multiples", times)),
        transpose=_transpose,
    ),
    **both_forms(strided_slice=_strided_slice, strided_slice_grad=_strided_slice_gradient),
    **dict.fromkeys(("concat_d", "concat_v2_d"), _concatenate),
    "confusion_transpose_d": _transpose_and_reshape,
    **dict.fromkeys(("expand_dims", "identity", "reshape", "squeeze", "tensor_move"), _same),
    "fill_d": _broadcast,
    "pack": lambda kernel, *arrays: np.stack(listed(arrays), attribute(kernel, "axis", otherwise=0)),
    "shape": lambda _kernel, x: np.array(x.shape),
    "split_d": _split,
    "split_v_d": _split_by_sizes,
    "trans_data": _same,
    "unpack": lambda kernel, x: list(np.moveaxis(x, attribute(kernel, "axis", otherwise=0), 0)),
}
AICPU: dict[str, Callable[..., Any]] = {
    "Concat": _concatenate,
    **dict.fromkeys(("Identity", "Reshape"), _same),
    "Slice": _slice,
    "Split": _split,
    "StridedSlice": _strided_slice,
    "StridedSliceGrad": _strided_slice_gradient,
    "Transpose": _transpose,
    "Tril": lambda kernel, x: np.tril(x, kernel.attributes["diagonal"]),
    "Triu": lambda kernel, x: np.triu(x, kernel.attributes["diagonal"]),
}
