"""The TIK operators in several processes of tikemu: the same bits and cycles as in one."""

import numpy as np
import pytest
from flash_attention.kernels.tik import operators

from emulator.tests.support.process_runs import check_same, modes
from tests.train.flash_attention.support.calls import make_kernel_problem

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("on_emulator")]

CASES = {"forward": "forward", "backward": "grad"}


@pytest.mark.parametrize("strict", [False, True], ids=["default", "strict"])
@pytest.mark.parametrize("case", CASES)
def test_same_in_two_processes(case, strict, tmp_path, monkeypatch):
    import tikemu

    monkeypatch.delenv("TIKEMU_PROCESSES", raising=False)
    tikemu.install(soc="Ascend910A")
    from tbe import tik

    problem = make_kernel_problem(batch=1, heads=2, seq_q=144, seq_k=176, head_dim=64)
    built = operators.build(CASES[case], problem, tik, "kernel", False)
    random = np.random.default_rng(0)
    given = [tensor for tensor in built.inputs if tensor.constant is None]
    feed = built.feed(**{tensor.name: random.standard_normal(tensor.shape).astype(tensor.dtype) for tensor in given})
    found = check_same(built.tik, feed, tmp_path, strict=strict)
    assert found["block_count"] > 1 and found["outputs"]
    assert modes(built.tik) == set()
