#!/usr/bin/env bash
# MindSpore 2.0.0 on a CPU, GRAPH mode: an int that a function reads from an object's attribute turns int32 into float64.
# Expected: Minimum of an int32 Tensor and the number 300 is int32, wherever the 300 stands.
# Seen: float64 if the function reads it from a dataclass around it, int32 if it reads a plain variable. 2.10.0 gives
# int32 for both, and so does PYNATIVE.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.9}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check mindspore==2.0.0 numpy==1.26.4 pillow==9.5.0
cd "$folder"
cat >program.py <<'PROGRAM'
from dataclasses import dataclass

import mindspore as ms
from mindspore import Tensor, nn, ops


@dataclass(frozen=True)
class Sizes:
    length: int = 300


sizes, number, minimum = Sizes(), 300, ops.Minimum()


def by_attribute(x):
    return minimum(x, sizes.length)


def by_variable(x):
    return minimum(x, number)


class Run(nn.Cell):
    def __init__(self, function):
        super().__init__()
        self.functions = (function,)

    def construct(self, x):
        return self.functions[0](x)


x = Tensor([5, 290], ms.int32)
for mode, expected in ((ms.GRAPH_MODE, ms.float64), (ms.PYNATIVE_MODE, ms.int32)):
    ms.set_context(mode=mode)
    seen = [Run(function)(x).dtype for function in (by_attribute, by_variable)]
    name = "GRAPH" if mode == ms.GRAPH_MODE else "PYNATIVE"
    print(f"MindSpore {ms.__version__}, {name}: by an attribute {seen[0]}, by a variable {seen[1]}")
    assert seen == [expected, ms.int32], "an attribute keeps the dtype now"
PROGRAM
GLOG_v=3 venv/bin/python program.py
