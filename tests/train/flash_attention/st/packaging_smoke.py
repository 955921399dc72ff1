"""Forward and backward of the installed package, checked against the float64 truth. Run by test_packaging_*.py.

    python packaging_smoke.py BACKEND...

Needs neither pytest nor this repository; works with every supported MindSpore.
"""

import itertools
import sys

import mindspore as ms
import numpy as np
from flash_attention import FlashAttention, reference
from flash_attention.problem import AttentionProblem
from mindspore import Tensor, nn, ops

SHAPE = (2, 3, 150, 64)


class Network(nn.Cell):
    def __init__(self, backend):
        super().__init__()
        self.attention = FlashAttention(SHAPE[3], alibi=True, backend=backend)

    def construct(self, query, key, value, mask):
        return self.attention(query, key, value, mask)


def check(backend, mode, dtype):
    ms.set_context(mode=mode)
    random = np.random.default_rng(0)
    query, key, value, d_output = (reference.round_to(random.standard_normal(SHAPE), dtype) for _ in range(4))
    mask = np.triu(np.ones((1, 128, 128), np.float16), 1)
    network = Network(backend)
    network.set_train()
    inputs = [Tensor(array, getattr(ms, dtype)) for array in (query, key, value)] + [Tensor(mask)]
    output = network(*inputs)
    gradient = ops.GradOperation(get_all=True, sens_param=True)(network)
    gradients = gradient(*inputs, Tensor(d_output, getattr(ms, dtype)))
    results = [np.asarray(result.astype(ms.float32).asnumpy()) for result in (output, *gradients[:3])]

    batch, heads, seq, head_dim = SHAPE
    sizes = {"batch": batch, "heads": heads, "seq_q": seq, "seq_k": seq, "head_dim": head_dim}
    problem = AttentionProblem(dtype=dtype, causal=True, alibi="computed", **sizes)
    exact = reference.truth(problem, query, key, value, d_output=d_output)
    low = reference.baseline(problem, query, key, value, d_output=d_output)
    actual = reference.Attention(results[0], exact.logsumexp, *results[1:])
    for error in reference.compare(actual, exact, low):
        if not error.ok:
            raise SystemExit(f"WRONG: {backend}, {mode}, {dtype}: {error}")
    print("ok", ms.__version__, backend, "graph" if mode == ms.GRAPH_MODE else "pynative", dtype, flush=True)


def main():
    for backend, mode, dtype in itertools.product(
        sys.argv[1:], (ms.GRAPH_MODE, ms.PYNATIVE_MODE), ("float32", "float16")
    ):
        check(backend, mode, dtype)


main()
