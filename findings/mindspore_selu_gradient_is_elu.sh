#!/usr/bin/env bash
# MindSpore 2.10.0 on a CPU: the gradient of ops.selu and nn.SeLU is wrong for every negative number.
# Expected: scale * alpha * exp(x), which is positive: 0.65 at -1 and 0.09 at -3. The values themselves are right.
# Seen: -0.12 at -1, and towards -0.80 where the function is flat: scale * (1 + selu(x)), the rule for ELU with alpha 1
# applied to the result of SELU. Below -0.84 it has the wrong sign. GRAPH and PYNATIVE alike; 2.0.0 does the same.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check mindspore==2.10.0 numpy==1.26.4
cd "$folder"
cat >program.py <<'PROGRAM'
import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

SCALE, ALPHA = 1.0507009873554805, 1.6732632423543772
points = np.array([-20, -3, -1, -0.5, 0.5, 3], np.float32)
value = SCALE * np.where(points > 0, points, ALPHA * np.expm1(points.astype(np.float64)))
slope = SCALE * np.where(points > 0, 1, ALPHA * np.exp(points.astype(np.float64)))
print(f"MindSpore {ms.__version__}, points {points.tolist()}")
print("true derivative ", slope.round(3).tolist())
for mode in (ms.PYNATIVE_MODE, ms.GRAPH_MODE):
    ms.set_context(mode=mode, device_target="CPU")
    for run in (ops.selu, nn.SeLU()):
        gradient = ops.grad(run)(Tensor(points)).asnumpy()
        print("MindSpore's     ", gradient.round(3).tolist())
        assert np.allclose(run(Tensor(points)).asnumpy(), value, atol=1e-5)
        assert np.allclose(gradient[4:], slope[4:]), "positive numbers are wrong too"
        assert np.allclose(gradient[:4], SCALE * (1 + value[:4]), atol=1e-4), "the gradient differs now"
assert abs(gradient[:4] - slope[:4]).min() > 0.5
PROGRAM
GLOG_v=3 venv/bin/python program.py
