#!/usr/bin/env bash
# onnxruntime 1.32.0: an input array of big-endian numbers is taken for little-endian ones.
# Expected: the same numbers, as in NumPy, or an error, as torch.from_numpy and onnx.numpy_helper raise one.
# Seen: 1 arrives as 4.6e-41, and the graph's results are of that, without a warning. int64 likewise.
# Files of FITS, NetCDF-3 and IDX are read as such arrays by astropy, scipy.io and np.frombuffer.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check onnxruntime==1.32.0 onnx==1.23.2 numpy==2.3.5
cd "$folder"
venv/bin/python - <<'PROGRAM'
import numpy as np
import onnxruntime
from onnx import TensorProto, helper

for dtype, kind in ((np.float32, TensorProto.FLOAT), (np.int64, TensorProto.INT64)):
    ends = [helper.make_tensor_value_info(name, kind, [3]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "twice", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    little, big = np.arange(3, dtype=dtype), np.arange(3, dtype=np.dtype(dtype).newbyteorder(">"))
    assert np.array_equal(little, big)
    twice = [session.run(None, {"x": given})[0] for given in (little, big)]
    print(f"onnxruntime {onnxruntime.__version__}, {np.dtype(dtype)}: x + x of {little} is", end=" ")
    print(f"{twice[0]}, of the equal big-endian array {twice[1]}")
    assert np.array_equal(twice[0], 2 * little) and not np.array_equal(twice[1], 2 * little), "byte order is seen now"
PROGRAM
