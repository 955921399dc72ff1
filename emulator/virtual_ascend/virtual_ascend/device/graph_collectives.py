"""Collectives as nodes of GE's graphs: what HCCL is asked, on arrays between two nodes.

The runtime carries them out as any other (runtime/collectives.cc, AddGraph), while the graph waits.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .aicpu import DTYPES
from .collectives import DTYPES as HCCL_DTYPES
from .collectives import REDUCTIONS
from .errors import KernelError

if TYPE_CHECKING:
    from .graph import Node


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
    """Whether other cards have to call a node too, or one of the nodes in it."""
    inside = (inner for graph in node.subgraphs.values() for inner in graph.nodes.values())
    return node.type.startswith("Hcom") or any(map(is_collective, inside))


def run(node: Node, given: Sequence[np.ndarray]) -> Generator[Exchange, None, list[np.ndarray]]:
    """Yields each exchange that a node needs, and returns its results.

    Raises:
        KernelError: HCCL has no such collective, or none for this dtype.
    """
    attributes = node.attributes
    group = attributes.get("group", "hccl_world_group")
    peer = next((attributes[name] for name in ("root_rank", "dest_rank", "src_rank") if name in attributes), 0)
    if node.type in ("HcomAllReduce", "HcomAllGather", "HcomReduceScatter", "HcomBroadcast"):
        results = []
        for array, (_, tensor) in zip(given, node.outputs):
            shape = array.shape if tensor is None else tensor["shape"]
            result = np.empty(shape, array.dtype)
            count = result.size if node.type == "HcomReduceScatter" else array.size
            yield _exchange(node, count, array, result, group, peer)
            results.append(result)
        return results
    if node.type == "HcomSend":
        yield _exchange(node, given[0].size, given[0], np.empty(0, given[0].dtype), group, peer)
        return []
    if node.type == "HcomReceive":
        (_, tensor), = node.outputs
        assert tensor is not None
        result = np.empty(tensor["shape"], DTYPES[tensor["dtype"]])
        yield _exchange(node, result.size, np.empty(0, result.dtype), result, group, peer)
        return [result]
    raise KernelError(f"node {node.name}: the virtual card has no collective {node.type}")


def _exchange(node: Node, count: int, given: np.ndarray, taken: np.ndarray, group: str, peer: int) -> Exchange:
    dtype, reduction = str(taken.dtype), node.attributes.get("reduction", "sum")
    if dtype not in HCCL_DTYPES:
        raise KernelError(f"node {node.name}: {node.type} of {dtype}, allowed is one of {', '.join(HCCL_DTYPES)}")
    words: list[Any] = [node.type, count, HCCL_DTYPES.index(dtype), list(REDUCTIONS).index(reduction), peer]
    words += [node.attributes.get("sr_tag", 0), *([0] * 4), group]
    return Exchange(" ".join(map(str, words)), np.ascontiguousarray(given).reshape(-1), taken.reshape(-1))
