#!/usr/bin/env bash
# MindSpore 2.10.0 (2.0.0 too) on a CPU: in a graph, an ops.Custom is differentiated by the bprop of another ops.Custom.
# Expected: gradients -1 and 0.5, of two copies whose bprops multiply what comes back by -1 and by 0.5.
# Seen: 0.5 and 0.5; with the copies in the other order -1 and -1. PYNATIVE gives -1 and 0.5.
# MindSpore keeps a compiled bprop by the name and the attributes of its primitive, and a bprop is none of them. Whoever
# reverses or scales gradients by such operations trains on other ones. An attribute that differs makes each its own.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check mindspore==2.10.0 numpy==1.26.4
cd "$folder"
cat >program.py <<'PROGRAM'
import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

ms.set_context(device_target="CPU")


def copied(x):
    return x.copy()


def scaled(factor, **attributes):
    """Return a copy whose gradient is multiplied by a factor."""

    def bprop(x, out, dout):
        return (dout * factor,)

    made = ops.Custom(copied, lambda shape: shape, lambda dtype: dtype, "pyfunc", bprop=bprop)
    for name, value in attributes.items():
        made.add_prim_attr(name, value)
    return made


class Network(nn.Cell):
    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second

    def construct(self, x, y):
        return self.first(x).sum() + self.second(y).sum()


def gradients(first, second):
    one = Tensor(np.ones(1, np.float32))
    return [float(found.asnumpy()[0]) for found in ops.grad(Network(first, second), (0, 1))(one, one)]


ms.set_context(mode=ms.GRAPH_MODE)
seen, other = gradients(scaled(-1), scaled(0.5)), gradients(scaled(0.5), scaled(-1))
named = gradients(scaled(-1, number=1), scaled(0.5, number=2))
print(f"MindSpore {ms.__version__}, GRAPH: {seen}, right is [-1.0, 0.5]; {other}, right is [0.5, -1.0];")
print(f"with an attribute that differs {named}")
assert named == [-1, 0.5] and seen != named, "each has its own bprop now"
PROGRAM
GLOG_v=3 venv/bin/python program.py
