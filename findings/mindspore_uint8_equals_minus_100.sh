#!/usr/bin/env bash
# MindSpore 2.10.0 on a CPU: a number that a tensor's integers cannot hold is wrapped into them before it is compared.
# Expected: no uint8 equals -100 and none equals 300, as NumPy says; no int32 equals 2 ** 40.
# Seen: uint8 156 == -100, 44 == 300 and int32 0 == 2 ** 40 are True, in PYNATIVE and in a graph; 2.7.1 and 2.0.0 too.
# Labels of uint8 whose hidden places are sought by -100 lose class 156.
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


def equal(tensor, number):
    return tensor == number


seen = []
for mode in (ms.PYNATIVE_MODE, ms.GRAPH_MODE):
    ms.set_context(mode=mode)
    run = ms.jit(equal) if mode == ms.GRAPH_MODE else equal
    for array, number in ((np.uint8([156]), -100), (np.uint8([44]), 300), (np.int32([0]), 2**40)):
        result = bool(run(Tensor(array), number).asnumpy()[0])
        print(f"MindSpore {ms.__version__}: {array.dtype} {array[0]} == {number}: {result}, NumPy: {(array == number)[0]}")
        seen.append(result)
assert all(seen), "numbers are compared otherwise now"
PROGRAM
GLOG_v=3 venv/bin/python program.py
