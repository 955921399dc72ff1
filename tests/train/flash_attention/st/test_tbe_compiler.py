"""MindSpore 2.0's own graphs and compile code, with a stand-in for CANN, end in kernels with the right results.

With --versions: the environment is that of test_packaging_wheel.py.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from flash_attention import reference
from flash_attention.dropout import philox

from tests.train.flash_attention import cases
from tests.train.flash_attention.cases import Case
from tests.train.flash_attention.st.wheel_tools import ROOT, mindspore_environment, run

PROGRAM = Path(__file__).parent / "tbe_compiler" / "program.py"
SMALL = {"seq_q": 40, "seq_k": 56, "head_dim": 16}
# One process compiles them one after another. By name: the case, and whether MindSpore copies the source of the entry,
# as where it cannot import its file; without that the virtual card runs all of them.
CASES = {
    "causal": (Case(**SMALL, mask="causal"), False),
    "copied": (Case(**SMALL, mask="padding", alibi="given", dropout=0.2), True),
    "alibi": (Case(**SMALL, alibi="computed", window=(20, 10)), True),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what the kernels of every case gave."""
    folder = tmp_path_factory.mktemp("tbe")
    described = []
    for name, (case, copied) in CASES.items():
        data, problem = case.inputs(), dataclasses.replace(case.problem, keep_bits=case.dropout > 0)
        arrays = {**vars(data), "mask": case.backend_mask()}
        arrays["keep_bits"] = philox.keep_bits(case.problem, cases.SEED) if case.dropout else None
        np.savez(folder / f"{name}.npz", **{key: array for key, array in arrays.items() if array is not None})
        described.append({"name": name, "problem": dataclasses.asdict(problem), "copied": copied})
    (folder / "cases.json").write_text(json.dumps(described))
    python = mindspore_environment("3.9")  # MindSpore 2.0.0
    path = f"{ROOT / 'train'}:{ROOT}"  # not the emulator: MindSpore's process has no tik
    run(python, PROGRAM, ROOT / "emulator", folder, cwd=folder, PYTHONPATH=path, XDG_CACHE_HOME=str(folder))
    return folder


@pytest.mark.versions
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", CASES)
def test_what_mindspore_compiles_is_right(results: Path, name: str) -> None:
    case, _ = CASES[name]
    with np.load(results / f"{name}.out.npz") as arrays:
        cases.check(case, reference.Attention(**arrays))
