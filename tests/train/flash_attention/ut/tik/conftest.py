"""Run TIK programs in tikemu's strict mode, or in CANN's debugger (--device ascend)."""

from __future__ import annotations

import importlib.util

import pytest

SOC = "Ascend910A"


@pytest.fixture(scope="session")
def tik(device):
    """Return the tik module."""
    if device == "emulator":
        import tikemu

        tikemu.install(soc=SOC)
    elif importlib.util.find_spec("tbe") is None:
        pytest.exit("--device ascend needs CANN: tbe cannot be imported, source its set_env.sh first", returncode=4)
    else:
        from tbe.common.platform import set_current_compile_soc_info

        set_current_compile_soc_info(SOC)
    from tbe import tik as module

    return module


@pytest.fixture(scope="session")
def execute(device):
    """Run a built program: execute(instance, feed, outputs) gives arrays by output name.

    On the emulator it also checks the overflow status: clear, set (saturates=True), or whatever it is (None).
    """

    def run(instance, feed: dict, outputs: list, saturates: bool | None = False) -> dict:
        if device == "emulator":
            import tikemu

            options = tikemu.Options(strict=True, progress=False)
            result = tikemu.run(instance, feed, timing=False, options=options)
            assert saturates is None or bool(result.overflow) == saturates, str(result.overflow)
            return result.outputs
        results = instance.tikdb.start_debug(feed_dict=feed, interactive=False)
        return dict(zip(outputs, results))

    return run


@pytest.fixture
def on_emulator(device):
    """Skip the test on a device, because only the emulator has what it tests."""
    if device != "emulator":
        pytest.skip("a test of what only the emulator has")


@pytest.fixture
def execute_nan(on_emulator):
    """Run a built program as `execute` does, in default mode.

    Strict mode refuses NaN among the operands of mmad, because the Cube's result for NaN is not specified.
    """
    import tikemu

    def run(instance, feed: dict, outputs: list) -> dict:
        return tikemu.run(instance, feed, timing=False, options=tikemu.Options(progress=False)).outputs

    return run
