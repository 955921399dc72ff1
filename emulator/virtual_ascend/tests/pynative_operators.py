"""Operators that the training of a Llama calls in PYNATIVE: pynative_operators.py DEVICE FILE.npz

Results and gradients, to be compared with another device.
"""

import sys

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

X = np.random.default_rng(0).standard_normal((2, 3, 4, 8)).astype(np.float32)
LABELS = Tensor(np.arange(24) % 8, ms.int32)
CASES = {
    "silu": ops.silu,
    "gelu": lambda x: ops.gelu(x, approximate="tanh"),
    "GELU": nn.GELU(),
    "log_softmax": lambda x: ops.log_softmax(x, 1),
    "softmax": lambda x: ops.softmax(x, 1),
    "strided slice": lambda x: ops.strided_slice(x, (0, 0, 0, 0), (2, 3, 2, 4), (1, 1, 1, 1)),
    "slice": lambda x: x[:, :, :2, 1:5],
    "concat": lambda x: ops.concat((-x[..., 4:], x[..., :4]), -1),
    "split": lambda x: ops.split(x, 2, -1)[0],
    "sum of a scalar": lambda x: ops.sum(x.sum(), 0),
    "sum of a scalar from behind": lambda x: ops.sum(x.mean(), -1),
    "root mean square": lambda x: x * ops.rsqrt((x * x).mean(-1, keep_dims=True) + 1e-5),
    "cross entropy": lambda x: ops.cross_entropy(x.reshape(-1, 8), LABELS),
}


def main():
    """Run all cases and store the results."""
    device, path = sys.argv[1:]
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target=device)
    found = {}
    for name, function in CASES.items():
        result = function(Tensor(X)).asnumpy()
        weights = Tensor(np.cos(np.arange(result.size)).reshape(result.shape).astype(np.float32))
        gradient = ms.grad(lambda x, function=function, weights=weights: (function(x) * weights).sum())(Tensor(X))
        found[name], found[f"{name}, gradient"] = result, gradient.asnumpy()
    np.savez(path, **found)


if __name__ == "__main__":
    main()
