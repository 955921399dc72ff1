"""Compile sharded graphs of the layer for 8 devices, forward and backward, without a device.

    PYTHONPATH=train:emulator python tests/train/flash_attention/st/support/parallel_compile.py [CASE...]

MindSpore refuses semi-automatic parallelism for the device target "CPU", and any target without its libraries. So this
program writes the target's name into MindSpore's context, and answers in place of the communication library. Parsing,
sharding, inference and gradients are MindSpore's own; a phase called "export" ends before code for the device is made.
The program prints one JSON object: by case the error, or the operators after sharding and at the end.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import mindspore as ms
import numpy as np
import tikemu
from flash_attention import FlashAttention
from flash_attention.backends import registry
from flash_attention.backends.tik import environment
from flash_attention.kernels.tik.problem import Chip
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from mindspore.common.api import _cell_graph_executor
from mindspore.communication import management
from mindspore.parallel._auto_parallel_context import auto_parallel_context
from no_device import Target, end_of_graph, open_no_device

DEVICES, RANK = 8, 3
BATCH, HEADS, KV_HEADS, SEQ, HEAD_DIM = 8, 4, 2, 40, 16
SPLIT = (4, 2, 1, 1)


def prepare() -> None:
    """Set semi-automatic parallelism on 8 devices that do not exist, as seen by device 3."""
    ms.set_auto_parallel_context(
        parallel_mode="semi_auto_parallel", device_num=DEVICES, global_rank=RANK, dataset_strategy="full_batch"
    )
    auto_parallel_context()._context_handle.set_hccl_test_avaible(True)  # the count of devices is not asked of HCCL
    # MindSpore names a group after its size and its members.
    management._get_size_helper = lambda group, *_: int(group.split("-")[0]) if group[0].isdigit() else DEVICES
    management._get_rank_helper = lambda group, *_: 0 if group[0].isdigit() else RANK
    ops.Custom._generate_get_workspace_size_func = lambda self: None  # compiles C++ against CANN's headers
    open_no_device()
    # The backends are complete but for the device.
    type(registry.get_backend("cpu")).refuse = lambda self, call: None
    environment.missing = lambda version, target: None
    environment.chip = Chip


class Network(nn.Cell):
    """The layer between operations that are sharded like it."""

    def __init__(self, layer, input_strategies: tuple):
        super().__init__()
        self.layer = layer
        self.around = nn.CellList([_Double(one) for one in (*input_strategies, input_strategies[0])])

    def construct(self, query, key, value, mask=None, alibi=None):
        query, key, value = self.around[0](query), self.around[1](key), self.around[2](value)
        if mask is not None:
            mask = self.around[3](mask)
        if alibi is not None:
            alibi = self.around[4](alibi)
        return self.around[-1](self.layer(query, key, value, mask, alibi))


class NetworkWithSinks(Network):
    """Add the inputs that newer models have. The sinks are a parameter, which every device holds."""

    def __init__(self, layer, input_strategies: tuple):
        super().__init__(layer, input_strategies)
        self.sinks = Parameter(Tensor(np.ones(HEADS, np.float32)), name="sinks")

    def construct(self, query, key, value, prefix, segment_ids):
        query, key, value = self.around[0](query), self.around[1](key), self.around[2](value)
        return self.around[-1](self.layer(query, key, value, None, None, self.sinks, prefix, segment_ids))


class _Double(nn.Cell):
    """A multiplication with a strategy, so that its output is split."""

    def __init__(self, strategy: tuple):
        super().__init__()
        self.times = ops.Mul().shard((strategy, ()))

    def construct(self, tensor):
        return self.times(tensor, 2.0)


class Gradients(nn.Cell):
    """Gradients of the inputs, and of the sinks if there are some."""

    def __init__(self, network):
        super().__init__()
        self.network, self.weights = network, ParameterTuple(network.trainable_params())
        self.gradients = ops.GradOperation(get_all=True, get_by_list=len(self.weights) > 0)

    def construct(self, *tensors):
        if len(self.weights) > 0:
            return self.gradients(self.network, self.weights)(*tensors)
        return self.gradients(self.network)(*tensors)


@dataclass(frozen=True)
class Case:
    """A layer with its sharding, and the shapes and strategies of its inputs."""

    layer: Callable[[], FlashAttention]
    target: str = "Ascend"
    shape: tuple = (BATCH, HEADS, SEQ, HEAD_DIM)
    key_shape: tuple = (BATCH, KV_HEADS, SEQ, HEAD_DIM)
    mask: tuple | None = None
    bias: tuple | None = None
    optional_inputs: bool = False  # sinks, prefix and segment ids
    split: tuple = SPLIT
    mask_split: tuple = (4, 1, 1)

    def compile(self, target: Target, folder: str) -> str | None:
        """Dump the graphs into the folder; gives the error if that fails."""
        ms.set_context(save_graphs=2 if hasattr(ms, "Layout") else True, save_graphs_path=folder)
        dtype = np.float16 if self.target == "Ascend" else np.float32
        shapes = (self.shape, self.key_shape, self.key_shape, self.mask, self.bias)
        tensors = [Tensor(np.ones(shape, dtype)) for shape in shapes if shape is not None]
        if self.optional_inputs:
            tensors += [Tensor(np.ones(shape, np.int32)) for shape in ((BATCH,), (BATCH, SEQ))]
        target.set(self.target)
        try:
            kind = NetworkWithSinks if self.optional_inputs else Network
            network = kind(self.layer(), (*[self.split] * 3, self.mask_split, SPLIT)).set_train()
            # No device code is made for a phase of this name.
            _cell_graph_executor.compile(Gradients(network), *tensors, phase="export.sharded", do_convert=False)
        except (RuntimeError, ValueError) as error:
            if not end_of_graph(error):
                return f"{type(error).__name__}: {error}".splitlines()[0]
        finally:
            target.set("CPU")
        return None


def _layer(**arguments) -> FlashAttention:
    """Return the layer of four data-parallel by two model-parallel devices."""
    return FlashAttention(HEAD_DIM, **{"dp": 4, "mp": 2, "backend": "tik", **arguments})


BSH = (BATCH, SEQ, HEADS * HEAD_DIM), (BATCH, SEQ, KV_HEADS * HEAD_DIM)
SBH = (SEQ, BATCH, HEADS * HEAD_DIM), (SEQ, BATCH, KV_HEADS * HEAD_DIM)
CASES = {
    "tik": Case(lambda: _layer(dropout_rate=0.1, alibi=True), mask=(BATCH, SEQ, SEQ), bias=(BATCH, HEADS, 1, SEQ)),
    "tik-BSH-computed-alibi": Case(
        lambda: FlashAttention(HEAD_DIM, alibi=True, causal=True, input_layout="BSH", backend="tik").shard(
            ((4, 1, 2),) * 3, ((4, 1, 2),)
        ),
        shape=BSH[0],
        key_shape=BSH[1],
        split=(4, 1, 2),
    ),
    "cpu-SBH-dropout": Case(
        lambda: _layer(
            dropout_rate=0.1, alibi=True, input_layout="SBH", have_attention_mask_batch=False, backend="cpu"
        ),
        target="GPU",
        shape=SBH[0],
        key_shape=SBH[1],
        mask=(SEQ, SEQ),
        split=(1, 4, 2),
        mask_split=(1, 1),
    ),
    "cpu-sinks-prefix-segments": Case(lambda: _layer(causal=True, backend="cpu"), target="GPU", optional_inputs=True),
    "tik-sinks-prefix-segments": Case(lambda: _layer(causal=True), optional_inputs=True),
}


def operators(text: str) -> list:
    """Return the custom operators, Morphs and collectives of a dump: {name, split, shapes, attributes}.

    split: for every axis of every input, the dimension of the device matrix that splits it, counted from the right.
    shapes: of the inputs. A Morph that is not replaced yet has inputs without shapes: there, of the outputs.
    """
    found = []
    pattern = r"= (Custom|Morph|AllGather|AllReduce|ReduceScatter|AllToAll)\((.*?)\n +: \(([^\n]*)\) -> \(([^\n]*)"
    for kind, attributes, shapes, results in re.findall(pattern, text, re.DOTALL):
        entry = {"name": kind, "shapes": [_tuple(one) for one in re.findall(r"<Tensor\[\w+\], (\([^)]*\))", shapes)]}
        if kind == "Morph":
            (of_both,) = re.findall(r"TupleShape\((.*)\)>", results)
            entry["shapes"] = _tuple(f"({of_both})")
        if kind in ("Custom", "Morph"):
            if kind == "Custom":
                entry["name"] = re.search(r'func_name: "?([^",]*)', attributes).group(1).rsplit(":", 1)[-1]
            layouts = re.search(r"in_layout: (.*?\}\))", attributes)
            maps = re.search(r"inputs_tensor_map: \[(.*?)\]\]", attributes)
            if layouts is not None:
                entry["split"] = [_tuple(one) for one in re.findall(r"'tensor_map': (\([^)]*\))", layouts.group(1))]
            elif maps is not None:
                entry["split"] = json.loads(f"[{maps.group(1)}]]")
            rules = re.search(r"Tensor\(shape=\[21\], dtype=Int64, value=\[([^\]]*)\]", text)
            slopes = re.search(r'slopes\\?":(\[[^\]]*\])', attributes)
            entry["rules"] = rules and [int(one) for one in rules.group(1).split()]
            entry["slopes"] = slopes and json.loads(slopes.group(1))
        found.append(entry)
    return found


def _tuple(text: str) -> list:
    """Return nested lists from the text of nested tuples."""
    return json.loads(text.replace(",)", ")").replace("(", "[").replace(")", "]"))


def main() -> None:
    """Compile the cases and print what their programs hold, as JSON."""
    names = sys.argv[1:] or list(CASES)
    ms.set_context(mode=ms.GRAPH_MODE)
    tikemu.install(soc="Ascend910A")
    target = Target()
    prepare()
    results = {}
    sys.path[:] = map(os.path.abspath, sys.path)
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)  # MindSpore leaves files behind
            results[name] = CASES[name].compile(target, folder)
            if results[name] is None:
                dumps = sorted(Path(folder).rglob("*.ir"), key=lambda path: int(path.stem.rsplit("_", 1)[1]))
                sharded = next(path for path in dumps if path.stem.startswith("step_parallel_end"))
                results[name] = {"sharded": operators(sharded.read_text()), "last": operators(dumps[-1].read_text())}
            os.chdir("/")
    print("RESULT " + json.dumps(results))


if __name__ == "__main__":
    main()
