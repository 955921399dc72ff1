#!/usr/bin/env bash
# MindSpore 2.10.0 on a CPU: % and // of int64 go through float64, ops.fmod and ops.div of int32 through float32.
# Expected: exact results between 0 and 999 for hashes % 1000; 123456789 divided by 10, truncated, is 12345678, rest 9.
# Seen: of 10,000 hashes of 63 bits nearly all get another bucket, some a negative one and some one above 999; ops.div
# with rounding_mode="trunc" gives 12345679 and ops.fmod -1. 2.7.1 does the same, 2.0.0 the same for hashes.
# Ids that are hashed into a table of embeddings land elsewhere than where NumPy puts them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check mindspore==2.10.0 numpy==1.26.4
cd "$folder"
GLOG_v=3 venv/bin/python - <<'PROGRAM'
import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

ms.set_context(mode=ms.PYNATIVE_MODE)
hashes = np.random.default_rng(0).integers(0, 2**63, 10000)
buckets, quotients = (Tensor(hashes) % 1000).asnumpy(), (Tensor(hashes) // 1000).asnumpy()
wrong, outside = int((buckets != hashes % 1000).sum()), int(((buckets < 0) | (buckets > 999)).sum())
print(f"MindSpore {ms.__version__}, int64: {wrong} of {len(hashes)} hashes % 1000 are wrong,")
print(f"{outside} outside 0..999 ({buckets.min()} to {buckets.max()}), {int((quotients != hashes // 1000).sum())} // 1000 wrong")
x = Tensor(np.array([123456789], np.int32))
ten = Tensor(np.array([10], np.int32))
truncated, rest = ops.div(x, ten, rounding_mode="trunc").asnumpy(), ops.fmod(x, ten).asnumpy()
print("int32: 123456789 by 10, truncated:", truncated, "rest:", rest)
assert wrong > 9000 and outside > 0 and truncated[0] == 12345679 and rest[0] == -1, "integers are divided otherwise now"
PROGRAM
