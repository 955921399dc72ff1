"""Test graphs of GE in the device process, without MindSpore."""

import json

import numpy as np
import pytest
from virtual_ascend.device import collectives
from virtual_ascend.device.aicpu import DTYPES
from virtual_ascend.device.errors import KernelError
from virtual_ascend.device.graph import Graphs
from virtual_ascend.device.launch import Launcher
from virtual_ascend.device.memory import PAGE, Address, Memory

FLOAT = {"dtype": next(number for number, name in DTYPES.items() if name == "float32"), "format": 2, "shape": [4]}
INT32 = next(number for number, name in DTYPES.items() if name == "int32")
SUM = {"group": "hccl_world_group", "reduction": "sum"}


@pytest.fixture
def launcher(tmp_path):
    """Make a card with one page of memory."""
    path = tmp_path / "memory"
    path.write_bytes(bytes(PAGE + 1))
    with open(path, "r+b") as file:
        yield Launcher(Memory(file.fileno(), PAGE, 1), None)


def node(kind, *inputs, before=(), **attributes):
    """Describe a node with one output, as the runtime does; inputs are numbers of nodes."""
    ports = [(f"x{index}", None if one is None else (one, 0)) for index, one in enumerate(inputs)]
    described = {"name": kind, "type": kind, "inputs": ports, "outputs": [("y", FLOAT)], "before": list(before)}
    return {**described, "attributes": attributes, "subgraphs": {}}


def added(launcher, *nodes):
    """Make a graph with its last node as result."""
    graphs = Graphs(launcher)
    graphs.add(1, json.dumps({"nodes": nodes, "results": [(len(nodes) - 1, 0)]}).encode() + b"\n")
    return graphs


@pytest.mark.parametrize("seed", range(8))
def test_collectives_have_one_order_on_all_cards(launcher, monkeypatch, seed):
    """A seed shuffles eight squares of one input, but their eight sums over the cards keep their order."""
    monkeypatch.setenv("VIRTUAL_ASCEND_SEED", str(seed))
    squares = [node("Square", 0) for _ in range(8)]
    sums = [node("HcomAllReduce", 1 + index, **SUM) for index in range(8)]
    order = list(added(launcher, node("Data", index=0), *squares, *sums).graphs[1].nodes)
    assert [number for number in order if 9 <= number < 17] == [9, 10, 11, 12, 13, 14, 15, 16]
    assert order[0] == 0 and order.index(1) < order.index(9)
    others = [number for number in order if 1 <= number < 9]
    assert sorted(others) == list(range(1, 9)) and (seed or others != list(range(1, 9)))


def test_a_graph_waits_at_a_collective_and_goes_on(launcher):
    """While the graph waits, its input to the collective can be read. The result is NaN: nothing has written it."""
    graphs = added(launcher, node("Data", index=0), node("HcomAllReduce", 0, **SUM), node("Square", 1))
    place = Address(0, 64)
    launcher.memory.view(place, np.dtype(np.float32), (4,), "x")[...] = [1, 2, 3, 4]
    call = json.dumps({"inputs": [FLOAT], "outputs": [FLOAT]}).encode() + b"\n"
    told = graphs.run(1, [place, place], call)
    kind, count, dtype, reduction, *_rest, group = told.split()
    assert (kind, int(count), collectives.DTYPES[int(dtype)]) == ("HcomAllReduce", 4, "float32")
    assert (tuple(collectives.REDUCTIONS)[int(reduction)], group) == ("sum", "hccl_world_group")
    assert graphs.at[1].given.tolist() == [1, 2, 3, 4] and np.isnan(graphs.at[1].taken).all()
    with pytest.raises(KernelError, match="graph 1 is to run, and waits for other cards"):
        graphs.run(1, [place, place], call)
    graphs.at[1].taken[...] = [2, 4, 6, 8]
    assert graphs.go_on(1) == "" and not graphs.running and not graphs.at
    result = launcher.memory.view(place, np.dtype(np.float32), (4,), "y")
    assert result.tolist() == [4, 16, 36, 64]


def test_what_hccl_has_not_is_an_error_of_the_node(launcher):
    graphs = added(launcher, node("Data", index=0), node("HcomAllReduce", 0, **{**SUM, "reduction": "mean"}))
    place = Address(0, 64)
    with pytest.raises(KernelError, match="HcomAllReduce by mean, allowed is one of sum, prod, max, min"):
        graphs.run(1, [place, place], json.dumps({"inputs": [FLOAT], "outputs": [FLOAT]}).encode() + b"\n")


def test_a_gather_takes_indices_for_each_item(launcher):
    """With batch_dims an item of x has indices of its own."""
    graphs = added(launcher, node("Data", index=0), node("Data", index=1), node("GatherV2", 0, 1, axis=1, batch_dims=1))
    x, index = {**FLOAT, "shape": [2, 3]}, {**FLOAT, "dtype": INT32, "shape": [2, 2]}
    places = [Address(64 * number, 64) for number in range(3)]
    launcher.memory.view(places[0], np.dtype(np.float32), (2, 3), "x")[...] = [[0, 1, 2], [3, 4, 5]]
    launcher.memory.view(places[1], np.dtype(np.int32), (2, 2), "index")[...] = [[2, 0], [1, 1]]
    graphs.run(1, places, json.dumps({"inputs": [x, index], "outputs": [{**FLOAT, "shape": [2, 2]}]}).encode() + b"\n")
    assert launcher.memory.view(places[2], np.dtype(np.float32), (4,), "y").tolist() == [2, 0, 4, 4]


def test_an_attribute_that_an_operator_ignores_is_an_error(launcher):
    call = json.dumps({"inputs": [FLOAT], "outputs": [FLOAT]}).encode() + b"\n"
    graphs = added(launcher, node("Data", index=0), node("Square", 0, rounds="up", _number=3, use_locking=True))
    with pytest.raises(KernelError, match=r"node Square \(Square\): .* ignores \{'rounds': 'up'\}"):
        graphs.run(1, [Address(0, 64), Address(64, 64)], call)


def test_a_sum_over_the_axis_of_a_scalar(launcher):
    """MindSpore names axis 0 of a scalar, which has none."""
    scalar = {**FLOAT, "shape": []}
    graphs = added(launcher, node("Data", index=0), node("ReduceSumD", 0, axes=[0], keep_dims=False))
    place = Address(0, 64)
    launcher.memory.view(place, np.dtype(np.float32), (), "x")[...] = 3
    graphs.run(1, [place, place], json.dumps({"inputs": [scalar], "outputs": [scalar]}).encode() + b"\n")
    assert launcher.memory.view(place, np.dtype(np.float32), (), "y") == 3
