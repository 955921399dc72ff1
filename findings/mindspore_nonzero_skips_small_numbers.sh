#!/usr/bin/env bash
# MindSpore 2.10.0 on a CPU: ops.nonzero leaves out float32 numbers below 1.2e-7, though none of them is 0.
# Expected: the indices of all elements that differ from 0, as ops.count_nonzero, x != 0, NumPy and torch say.
# Seen: numbers up to the dtype's epsilon count as zero (float64: 2.2e-16). 2.7.1 and 2.0.0 do the same.
# Learning rates of 1e-7, small probabilities and gradients are dropped without a word.
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
for dtype, kept in ((np.float32, [0, 1]), (np.float64, [0, 1, 2, 3])):
    x = np.array([1, 1e-6, 1e-7, 1e-8, 1e-17, 0], dtype)
    given = Tensor(x)
    found = ops.nonzero(given).asnumpy()[:, 0].tolist()
    count, unlike = ops.count_nonzero(given).asnumpy().item(), (given != 0).asnumpy().sum().item()
    print(f"MindSpore {ms.__version__}, {dtype.__name__}: of {x} nonzero finds {found},", end=" ")
    print(f"NumPy {np.nonzero(x)[0].tolist()}; count_nonzero: {count}, unlike 0: {unlike}")
    assert count == unlike == 5 and found == kept, "nonzero finds others now"
PROGRAM
