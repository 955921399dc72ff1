#!/usr/bin/env bash
# ml_dtypes 0.6.0 with NumPy 2.3.5: the mean of 1000 bfloat16 ones is 0.256, and their sum is 256.
# Expected: 1 and 1000, as NumPy's own float16 gives, whose sums NumPy keeps in float32.
# Seen: each partial sum is rounded to bfloat16, so adding 1 to 256 changes nothing. int4 wraps: 7 + 7 is -2.
# np.dot and @ are right. np.asarray of a bfloat16 jax array is such an array.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check ml_dtypes==0.6.0 numpy==2.3.5
cd "$folder"
venv/bin/python - <<'PROGRAM'
import ml_dtypes
import numpy as np

means = {}
for dtype in (ml_dtypes.bfloat16, np.float16):
    ones = np.ones(1000, dtype)
    means[dtype] = float(ones.mean())
    print(f"ml_dtypes {ml_dtypes.__version__}, NumPy {np.__version__}, 1000 ones of {np.dtype(dtype)}:", end=" ")
    print(f"mean {means[dtype]}, sum {ones.sum()}, last of cumsum {np.cumsum(ones)[-1]}, dot {np.dot(ones, ones)}")
nibbles = np.array([7, 7], ml_dtypes.int4).sum()
print("sum of 7 and 7:", nibbles, "as int4,", np.array([127, 127], np.int8).sum(), "of 127 and 127 as int8")
assert means[np.float16] == 1 and means[ml_dtypes.bfloat16] == 0.255859375 and nibbles == -2, "sums are wider now"
PROGRAM
