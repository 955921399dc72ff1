"""Whole operators in the usual TIK styles give what NumPy gives: in default and strict mode, and by start_debug."""

import numpy as np
import pytest
import tikemu

from emulator.tests.support.programs.operators import PROGRAMS


def _compare(outputs, expected):
    """Check that shapes are equal, and values within the tolerance of each output."""
    for name, (truth, tolerance) in expected.items():
        got = np.asarray(outputs[name])
        assert got.shape == np.shape(truth)
        np.testing.assert_allclose(got.astype(np.float64), np.asarray(truth, np.float64), rtol=0, atol=tolerance)


@pytest.fixture(autouse=True)
def shim():
    """Put tikemu's modules in the place of CANN's."""
    tikemu.install(soc="Ascend910A")
    yield
    tikemu.uninstall()


@pytest.mark.parametrize("how", ["default", "strict", "debugger"])
@pytest.mark.parametrize("build", PROGRAMS, ids=lambda build: build.__name__)
def test_program(build, how):
    instance, feeds, expected = build()
    if how == "debugger":
        outputs = dict(zip(expected, instance.tikdb.start_debug(feed_dict=feeds, interactive=False)))
    else:
        result = tikemu.run(instance, feeds, options=tikemu.Options(strict=how == "strict"))
        outputs = result.outputs
        assert result.cycles > 0
    _compare(outputs, expected)
