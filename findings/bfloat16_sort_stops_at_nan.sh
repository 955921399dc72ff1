#!/usr/bin/env bash
# ml_dtypes 0.6.0 with NumPy 2.3.5: np.sort of bfloat16 leaves numbers unsorted if a NaN is among them.
# Expected: NaN last, all else ascending, as NumPy's manual says and float16 and float32 do.
# Seen: [3, nan, 1] comes back as it was; np.argsort and np.unique go wrong with it. float8_e5m2 does the same.
# One NaN among the logits, and the largest k of the finite ones are others too.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check ml_dtypes==0.6.0 numpy==2.3.5
cd "$folder"
venv/bin/python - <<'PROGRAM'
import ml_dtypes
import numpy as np

given = [3, np.nan, 1, 2, np.nan, 0.5]
seen = {}
for dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, np.float16):
    result = np.sort(np.array(given, dtype)).astype(np.float64)
    seen[dtype] = result[~np.isnan(result)]
    print(f"ml_dtypes {ml_dtypes.__version__}, NumPy {np.__version__}, {np.dtype(dtype)}: {given} sorted is {result}")
assert (np.diff(seen[np.float16]) > 0).all()
assert (np.diff(seen[ml_dtypes.bfloat16]) < 0).any() and (np.diff(seen[ml_dtypes.float8_e5m2]) < 0).any(), "sorted now"
PROGRAM
