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


@pytest.mark.parametrize("strict", [False, True], ids=["default", "strict"])
@pytest.mark.parametrize("build", PROGRAMS, ids=lambda build: build.__name__)
def test_program(build, strict):
    instance, feeds, expected = build()
    result = tikemu.run(instance, feeds, options=tikemu.Options(strict=strict))
    _compare(result.outputs, expected)
    assert result.cycles > 0


@pytest.mark.parametrize("build", PROGRAMS, ids=lambda build: build.__name__)
def test_program_in_the_debugger(build):
    instance, feeds, expected = build()
    outputs = instance.tikdb.start_debug(feed_dict=feeds, interactive=False)
    _compare(dict(zip(expected, outputs)), expected)
