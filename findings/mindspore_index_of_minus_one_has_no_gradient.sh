#!/usr/bin/env bash
# MindSpore 2.10.0 on a CPU, PYNATIVE: x[tensor] with a negative index reads the right row and loses its gradient.
# Expected: x[Tensor([-1, 0])] is differentiated as x[[-1, 0]], x[Tensor([2, 0])] and x[-1] are, and as in GRAPH.
# Seen: the gradient of the row that -1 names is 0, without a message.
# A model that takes its last tokens by such an index trains nothing behind it. 2.0.0 loses it in GRAPH as well.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check mindspore==2.10.0 numpy==1.26.4
cd "$folder"
cat >program.py <<'PROGRAM'
import mindspore as ms
import numpy as np
from mindspore import Tensor, ops


def take(x, rows):
    return x[rows]


x = np.arange(6, dtype=np.float32).reshape(3, 2)
true = np.array([[1, 1], [0, 0], [1, 1]], np.float32)
seen = {}
for mode, name in ((ms.PYNATIVE_MODE, "PYNATIVE"), (ms.GRAPH_MODE, "GRAPH")):
    ms.set_context(mode=mode, device_target="CPU")
    for rows in ([-1, 0], [2, 0]):
        value = take(Tensor(x), Tensor(rows)).asnumpy()
        gradient = seen[name, rows[0]] = ops.grad(take)(Tensor(x), Tensor(rows)).asnumpy()
        print(f"MindSpore {ms.__version__}, {name}, x[Tensor({rows})]: rows {value.tolist()}, gradient {gradient.tolist()}")
        assert np.array_equal(value, x[rows])
ms.set_context(mode=ms.PYNATIVE_MODE)
by_list = ops.grad(lambda x: x[[-1, 0]])(Tensor(x)).asnumpy()
print(f"PYNATIVE, x[[-1, 0]]: gradient {by_list.tolist()}")
lost = seen.pop(("PYNATIVE", -1))
assert all(np.array_equal(other, true) for other in (by_list, *seen.values()))
assert np.array_equal(lost, [[1, 1], [0, 0], [0, 0]]), "the gradient arrives now"
PROGRAM
GLOG_v=3 venv/bin/python program.py
