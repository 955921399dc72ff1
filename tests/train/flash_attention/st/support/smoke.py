"""Run the main paths under whatever MindSpore this is: shared cases, training, both modes, dynamic shapes.

    PYTHONPATH=train:. python tests/train/flash_attention/st/support/smoke.py [ONE_IN] [BACKEND...]

Without names it takes every available backend. With ONE_IN it runs one shared case in so many and nothing else, in
graphs a quarter of them, since each is compiled. It needs no pytest, and MindSpore 2.0 is enough.
"""

import sys

import mindspore as ms
import numpy as np
from flash_attention import FlashAttention, available_backends
from flash_attention.backends.registry import get_backend
from mindspore import Tensor

from tests.train.flash_attention.support import case_list, cases
from tests.train.flash_attention.support.cases import Case
from tests.train.flash_attention.support.run import run_case
from tests.train.flash_attention.support.training_steps import TRAININGS

MODES = {"graph": (ms.GRAPH_MODE, 4), "pynative": (ms.PYNATIVE_MODE, 1)}
OLD = ms.__version__.startswith("2.0")
CASES = (
    Case(batch=2, heads=4, kv_heads=2, seq_q=97, seq_k=150, head_dim=64, mask="compact", dropout=0.1),
    Case(batch=2, heads=3, kv_heads=1, seq_q=150, seq_k=97, head_dim=59, mask="3d", alibi="computed", dtype="float32"),
    Case(seq_q=300, seq_k=300, head_dim=128, mask="causal", blocks=(1, 65536), alibi="shared", dtype="float32"),
    Case(batch=2, seq_q=64, seq_k=64, head_dim=80, mask="rows", dropout=0.5, alibi="given"),
    Case(batch=2, seq_q=60, seq_k=77, mask="4d", mask_dtype="bool", window=(30, -1), dtype="bfloat16"),
)


def check_dynamic_shapes(backend):
    """Compare a layer that is compiled once for unknown lengths with one compiled for each."""
    layers = [FlashAttention(16, causal=True, backend=backend) for _ in range(2)]
    layers[0].set_inputs(*(Tensor(shape=(None, 2, None, 16), dtype=ms.float32) for _ in range(3)))
    for batch, seq in ((2, 50), (1, 140)):
        random = np.random.default_rng(seq)
        tensors = [Tensor(random.standard_normal((batch, 2, seq, 16)).astype(np.float32)) for _ in range(3)]
        outputs = [layer(*tensors).asnumpy() for layer in layers]
        np.testing.assert_allclose(*outputs, atol=1e-6)


def main(one_in, backends):
    """Run cases, trainings and dynamic shapes on every backend and mode."""
    for backend in backends:
        for mode, (number, fewer) in MODES.items():
            ms.set_context(mode=number)
            chosen = CASES
            if one_in:
                chosen = [one for one in case_list.CASES if not one.slow and case_list.sample(one, one_in * fewer)]
            for case in chosen:
                if case.dtype == "bfloat16" and OLD:
                    continue
                cases.check(case, run_case(case, backend))
                print(f"ok {ms.__version__} {backend} {mode} {case}", flush=True)
            for name in () if one_in else ("two alike", "recompute") if mode == "graph" else ("two alike",):
                TRAININGS[name](backend=backend)
                print(f"ok {ms.__version__} {backend} {mode} training, {name}", flush=True)
        if get_backend(backend).dynamic and not one_in:
            ms.set_context(mode=ms.GRAPH_MODE)
            check_dynamic_shapes(backend)
            print(f"ok {ms.__version__} {backend} graph dynamic shapes", flush=True)
    print("ok: all is right")


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:] if word.isdigit()]
    names = [word for word in sys.argv[1:] if not word.isdigit()]
    main(*(numbers or [0]), names or available_backends())
