#!/usr/bin/env bash
# onnxruntime 1.32.0, CPU: Unique takes a NaN for one of the numbers.
# Expected: NaN as a value of its own, as onnx 1.23.2's reference evaluator and NumPy have it.
# Seen: of 5, 4, 3, NaN, 2, 1 the NaN is gone, 3 counts twice, and the inverse indices put a 3 where the NaN was; of
# NaN, 1, NaN the number 1 is gone instead. Which number absorbs the NaN depends on the order of the input.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check onnx==1.23.2 onnxruntime==1.32.0 numpy==2.3.5
cd "$folder"
venv/bin/python - <<'PROGRAM'
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

NAMES = ("values", "first", "inverse", "counts")
types = (TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT64, TensorProto.INT64)
outputs = [helper.make_tensor_value_info(name, kind, [None]) for name, kind in zip(NAMES, types)]
graph = helper.make_graph(
    [helper.make_node("Unique", ["x"], NAMES, sorted=0)],
    "unique",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None])],
    outputs,
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
print("onnxruntime", onnxruntime.__version__, "onnx", onnx.__version__)
seen = []
for given in ([5, 4, 3, np.nan, 2, 1], [np.nan, 1, np.nan]):
    x = np.array(given, np.float32)
    values, first, inverse, counts = session.run(None, {"x": x})
    reference = ReferenceEvaluator(model).run(None, {"x": x})[0]
    print(f"of {x.tolist()}: {values.tolist()}, counts {counts.tolist()}, put back {values[inverse].tolist()}")
    print(f"reference evaluator: {reference.tolist()}")
    assert len(reference) == len(np.unique(x))
    seen.append((values.tolist(), counts.tolist(), values[inverse].tolist()))
assert seen[0] == ([5, 4, 3, 2, 1], [1, 1, 2, 1, 1], [5, 4, 3, 3, 2, 1]), "NaN is a value of its own now"
assert len(seen[1][0]) == 1 and np.isnan(seen[1][0][0]) and seen[1][1] == [3], "1 is kept now"
PROGRAM
