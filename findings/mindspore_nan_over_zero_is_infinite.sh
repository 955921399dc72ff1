#!/usr/bin/env bash
# MindSpore 2.10.0 on a CPU: NaN / 0 is minus infinity, and 1 / -0.0 is plus infinity, in float16, float32 and float64.
# Expected (IEEE 754, NumPy): NaN and minus infinity.
# Seen: by the operator /, ops.div, mint.div and Div alike. 2.7.1 and 2.0.0 do the same. 1 / x with a Python 1 is right.
# A NaN that reaches a division by a sum of zero is an infinity after it, and tests for NaN pass.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check mindspore==2.10.0 numpy==1.26.4
cd "$folder"
GLOG_v=3 venv/bin/python - <<'PROGRAM'
import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

ms.set_context(mode=ms.PYNATIVE_MODE)
above, below = np.array([np.nan, 1, -1, 1, 0]), np.array([0, -0.0, -0.0, 0, 0])
for dtype in (np.float16, np.float32, np.float64):
    pair = Tensor(above.astype(dtype)), Tensor(below.astype(dtype))
    for name, divide in (("/", lambda x, y: x / y), ("ops.div", ops.div)):
        result = divide(*pair).asnumpy()
        print(f"MindSpore {ms.__version__}, {dtype.__name__}, {name}: {above} over {below} is {result}")
        assert result[:3].tolist() == [-np.inf, np.inf, -np.inf], "NaN or the sign of zero is kept now"
with np.errstate(all="ignore"):
    print("NumPy:", above / below)
PROGRAM
