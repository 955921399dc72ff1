#!/usr/bin/env bash
# MindSpore 2.10.0 on a CPU: ops.relu and nn.ReLU of NaN are 0, with gradient 0; so are ops.clamp and max pooling.
# Expected: NaN stays NaN, as in leaky_relu, relu6 and sigmoid of the same library, and in NumPy's maximum.
# Seen: 0 and 0; and ops.maximum gives NaN only if it is the second argument. 2.7.1 and 2.0.0 do the same (relu, maximum).
# A network with a NaN among its parameters reports a finite loss and goes on, with dead units.
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
nan, one = Tensor(np.array([np.nan], np.float32)), Tensor(np.array([1], np.float32))
square = Tensor(np.array([[[[np.nan, 1], [2, 3]]]], np.float32))
seen = {
    "relu": ops.relu(nan),
    "gradient of relu": ms.grad(ops.relu)(nan),
    "clamp to 0..1": ops.clamp(nan, 0, 1),
    "largest of NaN, 1, 2, 3 by MaxPool2d": nn.MaxPool2d(2, 2)(square),
    "maximum(NaN, 1)": ops.maximum(nan, one),
    "maximum(1, NaN)": ops.maximum(one, nan),
    "leaky_relu": ops.leaky_relu(nan),
    "sigmoid": ops.sigmoid(nan),
}
seen = {name: result.asnumpy().item() for name, result in seen.items()}
print(f"MindSpore {ms.__version__}, NaN given:", seen)
assert list(seen.values())[:5] == [0, 0, 0, 3, 1] and np.isnan(list(seen.values())[5:]).all(), "NaN is kept now"
PROGRAM
