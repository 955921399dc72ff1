#!/usr/bin/env bash
# MindSpore 2.10.0 on a CPU, in a graph: // and % of two Python ints are computed in float32.
# Expected: what Python gives; + and * of the same numbers are exact there.
# Seen: 16777217 // 1 is 16777216, 3000000000 % 7 is 32 (above its divisor), 123456789012 % 1000 is -2988, and
# -20000001 // 10 is rounded up. x.shape[0] // 3 is wrong as well. From 2 to the power of 24 on; offsets of a packed
# data set and seeds are as large. PYNATIVE is right; 2.0.0 does the same.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check mindspore==2.10.0 numpy==1.26.4
cd "$folder"
cat >program.py <<'PROGRAM'
import mindspore as ms
import numpy as np
from mindspore import Tensor


def divide(x):
    return (
        16777217 // 1,
        3000000000 % 7,
        123456789012 % 1000,
        -20000001 // 10,
        x.shape[0] // 3,
        123456789012 * 1000 + 1,
        1000003 % 7,
    )


x = Tensor(np.zeros(20000001, np.int8))
true, seen = divide(x), ms.jit(divide)(x)
print(f"MindSpore {ms.__version__}: in a graph {seen}")
print(f"Python {true}")
assert seen[:5] == (16777216, 32, -2988, -2000000, 6666666) and seen[5:] == true[5:], "numbers are divided otherwise now"
PROGRAM
GLOG_v=3 venv/bin/python program.py
