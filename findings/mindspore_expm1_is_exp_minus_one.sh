#!/usr/bin/env bash
# MindSpore 2.10.0 on a CPU: float32 ops.expm1 computes exp(x) - 1.
# Expected: expm1(x) is x to the last digit for small x; that is what the function is for (NumPy gives 1e-08 for 1e-08).
# Seen: 0 for 1e-08, and for 1e-04 an error of 1.2e-04 of the result, more than a thousand units in the last place.
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
x = np.array([1e-8, 1e-4], np.float32)
result = ops.expm1(Tensor(x)).asnumpy()
errors = np.abs(result / np.expm1(x.astype(np.float64)) - 1)
print(f"MindSpore {ms.__version__}: expm1 of 1e-08 and 1e-04 is {result}, relative errors {errors}")
assert result[0] == 0 and errors[1] > 1e-4, "expm1 behaves otherwise now"
PROGRAM
