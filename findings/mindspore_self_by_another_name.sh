#!/usr/bin/env bash
# MindSpore 2.10.0 on a CPU: in a graph, the first parameter of `construct` is the Cell only if it is named self.
# Expected: 3 * 5 = 15 in both modes, or an error. Python gives the name of this parameter no meaning.
# Seen: PYNATIVE gives 15, a graph 5. There the Cell's parameter takes the first tensor, x the second one, and y keeps
# its default, without any warning; 2.7.1 and 2.0.0 too.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check mindspore==2.10.0 numpy==1.26.4
cd "$folder"
cat >program.py <<'PROGRAM'
import mindspore as ms
from mindspore import Tensor, nn


class Product(nn.Cell):
    def construct(this, x, y=1.0):
        return x * y


seen = []
for name, mode in (("PYNATIVE", ms.PYNATIVE_MODE), ("graph", ms.GRAPH_MODE)):
    ms.set_context(mode=mode)
    seen.append(float(Product()(Tensor(3.0), Tensor(5.0)).asnumpy()))
    print(f"MindSpore {ms.__version__}, {name}: 3 * 5 = {seen[-1]}")
assert seen == [15.0, 5.0], "a graph knows the Cell's parameter by its place now"
PROGRAM
GLOG_v=3 venv/bin/python program.py
