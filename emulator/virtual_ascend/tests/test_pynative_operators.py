"""Operators outside of graphs, which go through aclnn, against MindSpore's kernels for the CPU."""

from pathlib import Path

import numpy as np
import pytest

from emulator.virtual_ascend.tests.card import ge_python, on_card, said, start

PROGRAM = Path(__file__).with_name("pynative_operators.py")


@pytest.mark.card
@pytest.mark.timeout(1800)  # the first test of a release makes an environment
@pytest.mark.parametrize("release", ["2.6.0", pytest.param("2.5.0", marks=pytest.mark.slow)])
def test_what_a_llama_trains_with(release, tmp_path):
    python = ge_python(release)
    said(on_card(python, PROGRAM, "Ascend", tmp_path / "card.npz", cwd=tmp_path))
    said(start(python, PROGRAM, "CPU", tmp_path / "cpu.npz", cwd=tmp_path))
    card, cpu = (np.load(tmp_path / f"{name}.npz") for name in ("card", "cpu"))
    assert set(card.files) == set(cpu.files)
    for name in cpu.files:
        assert card[name].shape == cpu[name].shape, name
        # Some roundings of float32.
        np.testing.assert_allclose(card[name], cpu[name], atol=1e-5 * np.abs(cpu[name]).max(), err_msg=name)
