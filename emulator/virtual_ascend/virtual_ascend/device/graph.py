"""Graphs of GE: their nodes run one after the other.

The seed draws the order of nodes that do not depend on each other. Operators are the same as MindSpore 2.0's kernels,
on plain arrays. An operator package's operators are compiled from its entries when they first run. Tensors between two
nodes have no place in the card's memory.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Generator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Callable

import numpy as np

from ..operator_call import OperatorCall
from . import graph_collectives
from .aicpu import DTYPES
from .attributes import Attributes
from .by_name import entry_of
from .errors import KernelError
from .graph_collectives import Exchange
from .launch import Launcher, compute
from .memory import Address
from .node import Graph, Node, described, description_of
from .numerics import convert
from .operators import AICPU, TABLE
from .packages import Packages
from .report import AI_CORE, AI_CPU

#: By type: inputs that the operators here take as an attribute of the same name.
_AS_ATTRIBUTES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "Concat": ("concat_dim",),
        "ConcatV2": ("concat_dim",),
        "Split": ("split_dim",),
        "SplitV": ("size_splits", "split_dim"),
    }
)
#: By type: inputs that are updated in place, in the order of the results. Other types update each input that has the
#: name of an output, as everywhere in GE.
_UPDATED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"ApplyAdam": ("var", "m", "v"), "ApplyMomentum": ("var", "accum")}
)


class Graphs:
    """Keep the graphs of the sessions by number, and run them."""

    def __init__(self, launcher: Launcher) -> None:
        self.launcher = launcher
        self.packages = Packages(launcher)
        self.order = random.Random(int(os.environ.get("VIRTUAL_ASCEND_SEED", "0")))
        self.graphs: dict[int, Graph] = {}
        self.running: dict[int, Generator[Exchange, None, None]] = {}
        #: The collectives that graphs are at.
        self.at: dict[int, Exchange] = {}

    def add(self, number: int, message: bytes) -> None:
        line, _, contents = message.partition(b"\n")
        self.graphs[number] = self._parse(json.loads(line), contents)

    def run(self, number: int, addresses: Sequence[Address], message: bytes) -> str:
        """Run a graph on tensors of the card or of the message. Results go to the last addresses.

        Returns:
            The collective that it is at, or nothing at its end, as `go_on`.
        """
        if number in self.running:
            raise KernelError(f"graph {number} is to run, and waits for other cards in another stream")
        self.running[number] = self._whole(number, addresses, message)
        return self.go_on(number)

    def go_on(self, number: int) -> str:
        """Go on with a graph after its collective has a result."""
        exchange = next(self.running[number], None)
        if exchange is None:
            del self.running[number]
            self.at.pop(number, None)
            return ""
        self.at[number] = exchange
        return exchange.text

    def _whole(self, number: int, addresses: Sequence[Address], message: bytes) -> Generator[Exchange, None, None]:
        line, _, contents = message.partition(b"\n")
        call = json.loads(line)
        inputs = []
        for index, (given, address) in enumerate(zip(call["inputs"], addresses)):
            if "at" in given:
                inputs.append(_constant(given, contents))
            else:
                inputs.append(self._view(given, address, f"input {index} of graph {number}"))
        results = yield from self._run(self.graphs[number], inputs)
        places = zip(results, call["outputs"], addresses[len(inputs) :])
        for index, (result, wanted, address) in enumerate(places):
            # The description may be of another shape with as many elements.
            tensor = {**wanted, "shape": list(result.shape)}
            self._view(tensor, address, f"output {index} of graph {number}")[...] = result

    def _view(self, tensor: dict[str, Any], address: Address, name: str) -> np.ndarray:
        return self.launcher.memory.view(address, np.dtype(DTYPES[tensor["dtype"]]), tuple(tensor["shape"]), name)

    def _parse(self, described: dict[str, Any], contents: bytes) -> Graph:
        nodes = []
        for one in described["nodes"]:
            attributes = {
                name: _constant(value, contents) if isinstance(value, dict) else value
                for name, value in one["attributes"].items()
            }
            subgraphs = {name: self._parse(graph, contents) for name, graph in one["subgraphs"].items()}
            nodes.append(Node(**{**one, "attributes": attributes, "subgraphs": subgraphs}))
        return Graph({number: nodes[number] for number in self._ordered(nodes)}, described["results"])

    def _ordered(self, nodes: Sequence[Node]) -> list[int]:
        """Return the numbers of the nodes, each after the nodes that it needs. All cards order collectives alike."""
        needs = [{place[0] for _, place in node.inputs if place} | set(node.before) for node in nodes]
        together = {number for number, node in enumerate(nodes) if graph_collectives.is_collective(node)}
        if len(together) > 1:
            order = [number for number in self._sorted(nodes, needs, lambda ready: None) if number in together]
            for former, number in zip(order, order[1:]):
                needs[number].add(former)
        return self._sorted(nodes, needs, self.order.shuffle)

    @staticmethod
    def _sorted(nodes: Sequence[Node], needs: Sequence[set[int]], shuffle: Callable[[list[int]], None]) -> list[int]:
        """Return the numbers of the nodes, each after the nodes it needs. `shuffle` orders what may come next."""
        waiting, order = set(range(len(nodes))), []
        while waiting:
            ready = [number for number in sorted(waiting) if not needs[number] & waiting]
            if not ready:
                raise KernelError(f"nodes of a graph wait for one another: {[nodes[n].name for n in sorted(waiting)]}")
            shuffle(ready)
            order += ready
            waiting -= set(ready)
        return order

    def _run(self, graph: Graph, inputs: Sequence[np.ndarray]) -> Generator[Exchange, None, list[np.ndarray]]:
        values: dict[int, list[np.ndarray]] = {}
        for number, node in graph.nodes.items():
            given = [None if place is None else values[place[0]][place[1]] for _, place in node.inputs]
            values[number] = yield from self._run_node(node, given, inputs)
        return [values[number][output] for number, output in graph.results]

    def _run_node(
        self, node: Node, given: Sequence[np.ndarray | None], inputs: Sequence[np.ndarray]
    ) -> Generator[Exchange, None, list[np.ndarray]]:
        if node.type in ("Data", "RefData"):
            return [inputs[node.attributes["index"]]]
        if node.type in ("Const", "Constant"):
            return [node.attributes["value"]]
        if node.type == "NoOp":
            return []
        present = [array for array in given if array is not None]
        if node.type == "PartitionedCall":
            return (yield from self._run(node.subgraphs["f0"], present))
        if node.type == "If":
            condition, *rest = present
            branch = "then_branch0" if condition.any() else "else_branch0"
            return (yield from self._run(node.subgraphs[branch], rest))
        if node.type.startswith("Hcom"):
            return (yield from graph_collectives.run(node, present))
        if node.type in ("Identity", "IdentityN"):
            return [array.copy() for array in present]
        if node.type in self.packages.types:
            return self.packages.run(node, given)
        return self._run_built_in(node, given)

    def _run_built_in(self, node: Node, given: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        by_port = {port: array for (port, _), array in zip(node.inputs, given)}
        attributes = Attributes(node.attributes)
        for port in _AS_ATTRIBUTES.get(node.type, ()):
            value = by_port.pop(port)
            assert value is not None
            attributes[port] = value.tolist()
        arrays = list(by_port.values())
        while arrays and arrays[-1] is None:
            arrays.pop()
        outputs = [described(tensor) for _, tensor in node.outputs]
        kernel = OperatorCall(node.name, node.type, entry_of(node.type), [], outputs, attributes)
        kernel.inputs = [None if array is None else description_of(array) for array in arrays]
        if kernel.function not in TABLE and f"{kernel.function}_d" in TABLE:
            kernel.function += "_d"
        table, unit = TABLE, AI_CORE
        if kernel.function not in TABLE and node.type in AICPU:
            kernel.function, table, unit = node.type, AICPU, AI_CPU
        results = compute(kernel, [array for array in arrays if array is not None], table)
        ignored = attributes.ignored(node.type)
        if ignored:
            raise KernelError(f"node {node.name} ({node.type}): the virtual card's operator ignores {ignored}")
        self.launcher.note(kernel, unit, 1)
        updated = _UPDATED.get(node.type, tuple(port for port, _ in node.outputs))
        for index, port in enumerate(updated):
            target = by_port.get(port)
            if target is not None:
                target[...] = convert(results[index], target.dtype).reshape(target.shape)
                results[index] = target
        return [_stored(result, tensor) for result, tensor in zip(results, outputs)]


def _constant(value: dict[str, Any], contents: bytes) -> np.ndarray:
    """Return a tensor whose contents came with the message."""
    tensor, start = value["tensor"], value["at"]
    dtype, shape = np.dtype(DTYPES[tensor["dtype"]]), tensor["shape"]
    count = int(np.prod(shape))
    return np.frombuffer(contents, dtype, count, start).reshape(shape) if count else np.zeros(shape, dtype)


def _stored(result: np.ndarray, tensor: dict[str, Any] | None) -> np.ndarray:
    """Return a result in the dtype and shape that MindSpore described: operators of layout leave the shape to this."""
    if tensor is None:
        return result
    shape = tensor["shape"] if result.size == np.prod(tensor["shape"]) else result.shape
    return np.ascontiguousarray(convert(result, np.dtype(tensor["dtype"]))).reshape(shape)
