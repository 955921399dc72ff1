#!/usr/bin/env bash
# onnxruntime 1.32.0, CPU: ReduceSum of int64 is rounded to the 53 bits of float64.
# Expected: an exact sum, as MatMul with a column of ones gives it, and onnx 1.23.2's reference evaluator.
# Seen: the sum of 2**53 + 1 and 0 is 2**53, and that of the nanosecond 1700000000000000001 and 0 ends in 0. Nothing
# overflows. ReduceL1, ReduceProd and an Einsum of int64 round alike; identifiers and times arrive as their neighbours.
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
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

x = np.array([[2**53 + 1, 0], [1700000000000000001, 0]], np.int64)
constants = {"axis": np.array([1], np.int64), "ones": np.ones(2, np.int64)}
nodes = {
    "ReduceSum": helper.make_node("ReduceSum", ["x", "axis"], ["y"], keepdims=0),
    "ReduceL1": helper.make_node("ReduceL1", ["x", "axis"], ["y"], keepdims=0),
    "Einsum": helper.make_node("Einsum", ["x"], ["y"], equation="ij->i"),
    "MatMul": helper.make_node("MatMul", ["x", "ones"], ["y"]),
}
print("onnxruntime", onnxruntime.__version__, "onnx", onnx.__version__, "sums", x.sum(1).tolist())
for name, node in nodes.items():
    graph = helper.make_graph(
        [node],
        name,
        [helper.make_tensor_value_info("x", TensorProto.INT64, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.INT64, None)],
        [numpy_helper.from_array(constants[given], given) for given in node.input[1:]],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    seen, reference = (run(None, {"x": x})[0] for run in (session.run, ReferenceEvaluator(model).run))
    print(f"{name}: onnxruntime {seen.tolist()}, reference evaluator {reference.tolist()}")
    assert np.array_equal(reference, x.sum(1))
    assert np.array_equal(seen, reference - (name != "MatMul")), f"{name} differs now"
PROGRAM
