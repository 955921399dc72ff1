#!/usr/bin/env bash
# MindSpore 2.10.0 on a CPU: float32 ops.logsigmoid is minus infinity below -88.7, and its gradient is NaN there.
# Expected: logsigmoid(x) is x to the last digit for such x, with gradient 1; the function exists to avoid log(0).
# Seen: -inf and NaN from -89 on, and -87.61422 for -88. 2.7.1 does the same; 2.0.0 gives -inf from -87.5 on.
# A pairwise or preference loss, -logsigmoid(difference), ends a training at one pair that it judges very wrong.
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
x = np.array([-80, -88, -89, -100], np.float32)
result, gradient = ops.logsigmoid(Tensor(x)).asnumpy(), ms.grad(ops.logsigmoid)(Tensor(x)).asnumpy()
print(f"MindSpore {ms.__version__}: logsigmoid of {x} is {result}, gradient {gradient}")
print("NumPy:", -np.logaddexp(0, -x))
assert np.isneginf(result[2:]).all() and np.isnan(gradient[2:]).all(), "logsigmoid behaves otherwise now"
PROGRAM
