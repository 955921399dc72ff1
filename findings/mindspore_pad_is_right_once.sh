#!/usr/bin/env bash
# MindSpore 2.10.0 on a CPU: ops.pad with a negative width, which cuts off, is right at the first call only.
# Expected: the same result at each call; the documentation excludes negative widths on an Ascend alone.
# Seen: the second call returns some of the numbers in wrong places, and from the third call on all are 0. Whatever array
# of that shape comes next is padded to 0 too, in PYNATIVE and in a graph, without a message. 2.0.0 is right.
# Such a width crops an image, or shifts labels by one token: pad(labels, (-1, 1)).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check mindspore==2.10.0 numpy==1.26.4
cd "$folder"
cat >program.py <<'PROGRAM'
import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
given = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
shifted = np.array([[2, 3, 0], [5, 6, 0]], np.float32)


def shift(x):
    return ops.pad(x, (-1, 1))


print(f"MindSpore {ms.__version__}, right is {shifted.tolist()}")
for name, run in (("PYNATIVE", shift), ("graph", ms.jit(shift))):
    seen = [run(Tensor(given)).asnumpy() for _ in range(4)]
    for call, result in enumerate(seen, 1):
        print(f"{name}, call {call}: {result.tolist()}")
    assert np.array_equal(seen[0], shifted)
    assert not np.array_equal(seen[1], shifted) and not seen[2].any() and not seen[3].any(), "later calls are right now"
print("other numbers, same shape:", shift(Tensor(10 * given)).asnumpy().tolist())
assert np.array_equal(ops.pad(Tensor(given), (1, 1)).asnumpy(), np.pad(given, ((0, 0), (1, 1))))
PROGRAM
GLOG_v=3 venv/bin/python program.py
