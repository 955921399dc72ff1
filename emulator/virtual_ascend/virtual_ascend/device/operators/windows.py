"""Windows on images, of convolution and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Pair = tuple[int, int]


def plane(numbers: Sequence[int], first: int = 2) -> Pair:
    """Of height and width, the first of which stands there."""
    return numbers[first], numbers[first + 1]


class Windows:
    """Where a kernel of this size stands on images of this shape.

    Attributes:
        size, strides, dilation: along height and width.
        padding: rows above and below, columns left and right.
    """

    def __init__(self, shape: Sequence[int], size: Pair, strides: Pair, dilation: Pair, padding: Sequence[int]) -> None:
        self.shape, self.size, self.strides, self.dilation = tuple(shape), size, strides, dilation
        self.padding = (0, 0), (0, 0), tuple(padding[:2]), tuple(padding[2:])
        self.padded = *self.shape[:2], self.shape[2] + sum(padding[:2]), self.shape[3] + sum(padding[2:])
        reach = [step * (count - 1) + 1 for step, count in zip(dilation, size)]
        self.counts = tuple((full - one) // step + 1 for full, one, step in zip(self.padded[2:], reach, strides))

    def take(self, images: np.ndarray, filling: float = 0.0) -> np.ndarray:
        """(batch, channels, places down, places across, kernel height, kernel width)"""
        padded = np.pad(images, self.padding, constant_values=filling)
        parts = [[padded[self._under(i, j)] for j in range(self.size[1])] for i in range(self.size[0])]
        return np.moveaxis(np.array(parts), (0, 1), (-2, -1))

    def put(self, parts: np.ndarray) -> np.ndarray:
        """Images in which every element is the sum of all parts that were taken from it."""
        padded = np.zeros(self.padded, parts.dtype)
        for i in range(self.size[0]):
            for j in range(self.size[1]):
                padded[self._under(i, j)] += parts[..., i, j]
        (top, _), (left, _) = self.padding[2:]
        return padded[..., top : top + self.shape[2], left : left + self.shape[3]]

    def _under(self, i: int, j: int) -> tuple[Any, ...]:
        """What element (i, j) of the kernel meets at all its places."""
        starts = i * self.dilation[0], j * self.dilation[1]
        ends = (start + step * count for start, step, count in zip(starts, self.strides, self.counts))
        return (..., *(slice(start, end, step) for start, end, step in zip(starts, ends, self.strides)))
