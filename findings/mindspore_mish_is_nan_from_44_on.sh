#!/usr/bin/env bash
# MindSpore 2.10.0 on a CPU: ops.mish and nn.Mish of ordinary positive numbers, 44.5 and greater, are NaN.
# Expected: mish(x) = x tanh(log(1 + e^x)) is x there.
# Seen: NaN for every number tried from 44.5 to 119.75, in float32 and float16, while the gradient is 1. 2.7.1 does the
# same, 2.0.0 is right. exp(44.4) squared is the greatest float32.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check mindspore==2.10.0 numpy==1.26.4
cd "$folder"
GLOG_v=3 venv/bin/python - <<'PROGRAM'
import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

ms.set_context(mode=ms.PYNATIVE_MODE)
x = np.arange(40, 120, 0.25, dtype=np.float32)
result, gradient = nn.Mish()(Tensor(x)).asnumpy(), ms.grad(ops.mish)(Tensor(x)).asnumpy()
wrong = x[np.isnan(result)]
half = ops.mish(Tensor(np.array([50], np.float16))).asnumpy()
print(f"MindSpore {ms.__version__}: mish is NaN for {len(wrong)} of {len(x)} numbers from {x[0]} to {x[-1]},")
print(f"the least is {wrong.min()}; float16 mish(50) is {half}; gradients are {np.unique(gradient)}")
assert np.isnan(result[x >= 44.5]).all() and np.isnan(half).all(), "mish behaves otherwise now"
PROGRAM
