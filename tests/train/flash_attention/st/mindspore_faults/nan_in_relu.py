"""PYNATIVE: NaN in ReLU, clip and Maximum."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
x = Tensor(np.full(32, np.nan, np.float32))
results = {
    "relu": ops.relu(x),
    "clip": ops.clip_by_value(x, Tensor(0.0), Tensor(1.0)),
    "maximum": ops.maximum(x, Tensor(np.zeros(32, np.float32))),
}
lost = [name for name, result in results.items() if not np.isnan(result.asnumpy()).all()]
print(f"wrong: numbers from {', '.join(lost)}" if lost else "right")
