#!/usr/bin/env bash
# onnx 1.23.2: the reference evaluator's Attention gives capped scores where the operator's text says raw product.
# Expected for qk_matmul_output_mode=0: scores before softcap, as onnxruntime 1.32.0 gives them; mode 1 has the others.
# Seen: modes 0 and 1 are the same, up to 2 in size for softcap=2, whatever the scores are. The output Y is right.
# The evaluator is what backends test themselves against.
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

draw = np.random.default_rng(0)
given = {name: (3 * draw.standard_normal((1, 1, 4, 16))).astype(np.float32) for name in ("query", "key", "value")}
product = given["query"] @ given["key"].swapaxes(-1, -2) / 4
true = {0: product, 1: 2 * np.tanh(product / 2)}
seen = {}
for mode in (0, 1):
    node = helper.make_node("Attention", list(given), ["y", "", "", "scores"], softcap=2.0, qk_matmul_output_mode=mode)
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, one.shape) for name, one in given.items()]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "scores")]
    graph = helper.make_graph([node], "g", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for name, run in (("onnx", ReferenceEvaluator(model).run), ("onnxruntime", session.run)):
        seen[name, mode] = run(None, given)[1]
        largest, wanted = abs(seen[name, mode]).max(), abs(true[mode]).max()
        print(f"{name}, mode {mode}: scores up to {largest:.2f}, by the text {wanted:.2f}")
print("onnx", onnx.__version__, "onnxruntime", onnxruntime.__version__)
assert all(np.allclose(seen["onnxruntime", mode], true[mode], atol=1e-4) for mode in (0, 1))
assert np.allclose(seen["onnx", 0], true[1], atol=1e-4) and abs(true[0]).max() > 4, "mode 0 is the raw product now"
PROGRAM
