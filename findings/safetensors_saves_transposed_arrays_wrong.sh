#!/usr/bin/env bash
# safetensors 0.8.0 for NumPy: an array that is not C-contiguous is saved with its numbers in the wrong places.
# Expected: what is loaded equals what was saved, or an error, as safetensors.torch raises one.
# Seen: weight.T comes back with the shape of the transpose and the order of the original; so do Fortran-ordered arrays
# (of SciPy, of MATLAB files) and slices of columns. save and save_file alike, without a warning.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check safetensors==0.8.0 numpy==2.3.5
cd "$folder"
venv/bin/python - <<'PROGRAM'
import numpy as np
import safetensors
from safetensors.numpy import load, load_file, save, save_file

weight = np.arange(6, dtype=np.float32).reshape(2, 3)
print(f"safetensors {safetensors.__version__}, NumPy {np.__version__}")
for name, given in (("weight.T", weight.T), ("Fortran order", np.asfortranarray(weight)), ("columns", weight[:, :2])):
    save_file({"x": given}, "x.safetensors")
    for loaded in (load(save({"x": given}))["x"], load_file("x.safetensors")["x"]):
        print(f"{name}: saved {given.tolist()}, loaded {loaded.tolist()}")
        assert loaded.shape == given.shape and not np.array_equal(loaded, given), "the order is kept now"
assert np.array_equal(load(save({"x": np.ascontiguousarray(weight.T)}))["x"], weight.T)
PROGRAM
