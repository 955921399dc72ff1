"""Collectives as nodes of GE's graphs: what HCCL is asked, on arrays between two nodes.

The runtime carries them out as any other (runtime/collectives.cc, AddGraph), while the graph waits.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import numpy as np

from .aicpu import DTYPES
from .collectives import DTYPES as HCCL_DTYPES
from .collectives import REDUCTIONS, extent
from .errors import KernelError
from .memory import FRESH
from .node import Node


class Exchange(NamedTuple):
    """A collective that a graph is at.

    Attributes:
        text: the call as the runtime reads it.
        given: what this card gives, flat.
        taken: where the result goes, flat.
    """

    text: str
    given: np.ndarray
    taken: np.ndarray


def is_collective(node: Node) -> bool:
    """Return True if other cards have to call a node, or a node in it."""
    inside = (inner for graph in node.subgraphs.values() for inner in graph.nodes.values())
    return node.type.startswith("Hcom") or any(map(is_collective, inside))


def run(node: Node, given: Sequence[np.ndarray]) -> Generator[Exchange, None, list[np.ndarray]]:
    """Yield each exchange that a node needs, and return its results.

    Raises:
        KernelError: HCCL has no such collective, or none for this dtype.
    """
    attributes = node.attributes
    group = attributes.get("group", "hccl_world_group")
    peer = next((attributes[name] for name in ("root_rank", "dest_rank", "src_rank") if name in attributes), 0)
    if node.type in ("HcomAllReduce", "HcomAllGather", "HcomReduceScatter", "HcomBroadcast"):
        results = []
        for index, array in enumerate(given):
            result = _result(node, index)
            count = result.size if node.type == "HcomReduceScatter" else array.size
            yield _exchange(node, count, array, result, group, peer)
            results.append(result)
        return results
    if node.type == "HcomSend":
        yield _exchange(node, given[0].size, given[0], given[0][:0], group, peer)
        return []
    if node.type == "HcomReceive":
        result = _result(node)
        yield _exchange(node, result.size, result[:0], result, group, peer)
        return [result]
    if node.type == "HcomAllToAllV":
        data, *lists = given
        counts = [one.reshape(-1).tolist() for one in lists]
        result = _result(node)
        yield _exchange(node, 0, data.reshape(-1)[: extent(*counts[:2])], result, group, peer, counts)
        return [result]
    raise KernelError(f"node {node.name}: the virtual card has no collective {node.type}")


def _result(node: Node, index: int = 0) -> np.ndarray:
    """Return memory for a result. Nobody wrote to it: of floats it holds NaN."""
    tensor = node.outputs[index][1]
    if tensor is None:
        raise KernelError(f"node {node.name}: {node.type} has no description of output {index}")
    dtype = np.dtype(DTYPES[tensor["dtype"]])
    size = math.prod(tensor["shape"]) * dtype.itemsize
    return np.full(size, FRESH, np.uint8).view(dtype).reshape(tensor["shape"])


def _exchange(
    node: Node,
    count: int,
    given: np.ndarray,
    taken: np.ndarray,
    group: str,
    peer: int,
    counts: Sequence[Sequence[int]] = ((), (), (), ()),
) -> Exchange:
    dtype, reduction = str(taken.dtype), node.attributes.get("reduction", "sum")
    if dtype not in HCCL_DTYPES or given.dtype != taken.dtype:
        raise KernelError(
            f"node {node.name}: {node.type} of {given.dtype} gives {dtype}, allowed is one of {', '.join(HCCL_DTYPES)}"
        )
    if reduction not in REDUCTIONS:
        raise KernelError(f"node {node.name}: {node.type} by {reduction}, allowed is one of {', '.join(REDUCTIONS)}")
    words: list[Any] = [node.type, count, HCCL_DTYPES.index(dtype), list(REDUCTIONS).index(reduction), peer]
    words.append(node.attributes.get("sr_tag", 0))
    for numbers in counts:
        words += [len(numbers), *numbers]
    words.append(group)
    return Exchange(" ".join(map(str, words)), np.ascontiguousarray(given).reshape(-1), taken.reshape(-1))
