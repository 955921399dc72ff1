#!/usr/bin/env bash
# MindSpore 2.10.0 on a CPU, in a graph: an int to a negative int power is 0.
# Expected: 10 ** -3 is 0.001, as in Python and in PYNATIVE; the documentation lists Number ** Number without a limit.
# Seen: x * 10 ** -3 is 0, pow(2, -1) is 0, and (-1) ** -1 is the int -1. 10.0 ** -3 is right. A learning rate or an
# epsilon that is written so vanishes without a message. 2.0.0 does the same.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check mindspore==2.10.0 numpy==1.26.4
cd "$folder"
cat >program.py <<'PROGRAM'
import mindspore as ms
from mindspore import Tensor, nn


class Power(nn.Cell):
    def __init__(self):
        super().__init__()
        self.exponent = -3

    def construct(self, x):
        return x * 10**-3, x * 10**self.exponent, x * pow(2, -1), x * 10.0**-3


seen = {}
for mode, name in ((ms.PYNATIVE_MODE, "PYNATIVE"), (ms.GRAPH_MODE, "GRAPH")):
    ms.set_context(mode=mode, device_target="CPU")
    seen[name] = [float(result) for result in Power()(Tensor(5.0))]
    print(f"MindSpore {ms.__version__}, {name}: 5 * (10**-3, 10**self.exponent, pow(2, -1), 10.0**-3) = {seen[name]}")
close = [abs(one - other) < 1e-6 for one, other in zip(seen["PYNATIVE"], (0.005, 0.005, 2.5, 0.005))]
assert all(close) and seen["GRAPH"][:3] == [0, 0, 0] and abs(seen["GRAPH"][3] - 0.005) < 1e-6, "powers are right now"
PROGRAM
GLOG_v=3 venv/bin/python program.py
