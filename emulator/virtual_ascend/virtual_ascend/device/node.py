"""Describe the nodes of GE's graphs and their tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .aicpu import DTYPES
from .by_name import FORMATS

Place = tuple[int, int]  # a node and one of its outputs


@dataclass
class Node:
    """One node; tensors of its outputs are descriptions with `shape`, `dtype` and `format`."""

    name: str
    type: str
    inputs: list[tuple[str, Place | None]]
    outputs: list[tuple[str, dict[str, Any] | None]]
    before: list[int]
    attributes: dict[str, Any]
    subgraphs: dict[str, Graph]


@dataclass
class Graph:
    """Hold the nodes by number in the order they run, and the results' places."""

    nodes: dict[int, Node]
    results: list[Place]


def described(tensor: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a description as kernels have it."""
    if tensor is None or tensor["dtype"] not in DTYPES:
        return None
    shape = tensor["shape"]
    return {
        "shape": shape,
        "ori_shape": shape,
        "format": FORMATS.get(tensor["format"], "ND"),
        "dtype": DTYPES[tensor["dtype"]],
    }


def description_of(array: np.ndarray) -> dict[str, Any]:
    """Return the description of an array."""
    shape = list(array.shape)
    return {"shape": shape, "ori_shape": shape, "format": "ND", "dtype": str(array.dtype)}
