"""Print the operations between projections and TIK operators in MindSpore's Ascend graphs, by layout.

    PYTHONPATH=train:emulator python tests/train/flash_attention/st/support/token_graphs.py

Forward and backward of attention between four projections (`nn.Dense`) are compiled for a device that is not there:
MindSpore's own passes on the graph run, but it does not select kernels and formats. The program prints one JSON object:
by layout and head_dim, the operations that give the operators a matrix of tokens or take a matrix from them.
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

import mindspore as ms
import numpy as np
from flash_attention import FlashAttention
from flash_attention.backends.tik import environment
from flash_attention.kernels.tik.problem import Chip
from mindspore import Tensor, nn, ops
from mindspore.common.api import _cell_graph_executor
from no_device import Target, end_of_graph, open_no_device

BATCH, SEQ, HEADS = 2, 20, 2
SHAPES = {"TH": (BATCH * SEQ,), "BSH": (BATCH, SEQ), "SBH": (SEQ, BATCH)}
CASES = ("TH", 16), ("BSH", 16), ("SBH", 16), ("BSH", 24)  # layout and head_dim
# Inputs and results of the operators with one matrix per head; the places of d_query_sums and row terms are not here.
MATRICES = {
    "FlashAttentionForward": ((0, 1, 2), (0,)),
    "FlashAttentionGradRows": ((0, 1), ()),
    "FlashAttentionGrad": ((0, 1, 2, 3), (0, 1, 4)),
}


class Block(nn.Cell):
    """Attention between its projections."""

    def __init__(self, layout: str, head_dim: int):
        super().__init__()
        hidden = HEADS * head_dim
        self.query, self.key, self.value, self.out = (
            nn.Dense(hidden, hidden, has_bias=False).to_float(ms.float16) for _ in range(4)
        )
        batch = BATCH if layout == "TH" else None
        self.attention = FlashAttention(head_dim, causal=True, input_layout=layout, batch=batch, backend="tik")

    def construct(self, tokens):
        return self.out(self.attention(self.query(tokens), self.key(tokens), self.value(tokens)))


class Gradients(nn.Cell):
    """Gradients of a network with regard to its input and its weights."""

    def __init__(self, network: nn.Cell):
        super().__init__()
        self.network, self.weights = network, ms.ParameterTuple(network.trainable_params())
        self.gradients = ops.GradOperation(get_all=True, get_by_list=True, sens_param=True)

    def construct(self, tokens, d_output):
        return self.gradients(self.network, self.weights)(tokens, d_output)


def neighbours(text: str) -> list[str]:
    """Return the names of the operations beside a printed graph's operators, on their matrices' sides."""
    kinds, inputs = {}, {}
    for name, kind, given in re.findall(r"^ +(%\d+)\([^)]*\) = (?:PrimFunc_)?(\w+)\((.*)", text, re.MULTILINE):
        kinds[name], inputs[name] = kind, re.findall(r"%\w+|Tensor\(", given.split(") {")[0])
    # Constants among the inputs go over several lines.
    custom = r"^ +(%\d+)\([^\n]* = Custom\(.*?uniq_name: \"Custom_(\w+)_[0-9a-f]{64}\""
    found, operators = set(), re.findall(custom, text, re.MULTILINE | re.DOTALL)
    assert sorted(kind for _, kind in operators) == sorted(MATRICES)
    for operator, kind in operators:
        taken, given = MATRICES[kind]
        # Results come out of a tuple if there are several.
        items = re.findall(rf"^ +(%\d+)\(.*= TupleGetItem\({operator}, I64\((\d+)\)\)", text, re.MULTILINE)
        results = {name for name, index in items if int(index) in given} or ({operator} if given else set())
        found |= {_origin(inputs[operator][index], kinds) for index in taken}
        found |= {kinds[name] for name in kinds if results & set(inputs[name])}
    return sorted(found - {"Custom"})


def _origin(name: str, kinds: dict) -> str:
    """Return the operation that a value comes from. Results of operators are taken out of tuples."""
    return {"TupleGetItem": "Custom"}.get(kinds[name], kinds[name])


def compile_graph(layout: str, head_dim: int, target: Target) -> str:
    """Return the last graph that MindSpore prints."""
    tokens = Tensor(np.ones((*SHAPES[layout], HEADS * head_dim), np.float16))
    with tempfile.TemporaryDirectory() as folder:
        ms.set_context(save_graphs=2, save_graphs_path=folder)
        network = Gradients(Block(layout, head_dim))
        target.set("Ascend")
        try:
            _cell_graph_executor.compile(network, tokens, tokens, phase=f"export.{layout}{head_dim}", do_convert=False)
        except RuntimeError as error:
            if not end_of_graph(error):
                raise
        finally:
            target.set("CPU")
        last = max(Path(folder).rglob("*.ir"), key=lambda path: int(path.stem.rsplit("_", 1)[1]))
        return last.read_text()


def main() -> None:
    """Compile the graphs and print what stands around the operators, as JSON."""
    ms.set_context(mode=ms.GRAPH_MODE)
    ops.Custom._generate_get_workspace_size_func = lambda self: None  # compiles C++ against CANN's headers
    open_no_device()
    environment.missing = lambda version, target: None
    environment.chip = Chip
    target = Target()
    found = {f"{layout}-{width}": neighbours(compile_graph(layout, width, target)) for layout, width in CASES}
    print("RESULT " + json.dumps(found))


if __name__ == "__main__":
    main()
