"""Where the TIK programs of these tests run: tikemu in strict mode, or CANN's own debugger with --device ascend."""

import pytest


@pytest.fixture(scope="session")
def tik(device):
    """The tik module."""
    if device == "emulator":
        import tikemu

        tikemu.install(soc="Ascend910A")
    from tbe import tik as module

    return module


@pytest.fixture(scope="session")
def execute(device):
    """Runs a built program: execute(instance, feed, outputs) gives arrays by output name."""

    def run(instance, feed: dict, outputs: list) -> dict:
        if device == "emulator":
            import tikemu

            options = tikemu.Options(strict=True, progress=False)
            return tikemu.run(instance, feed, timing=False, options=options).outputs
        results = instance.tikdb.start_debug(feed_dict=feed, interactive=False)
        return dict(zip(outputs, results))

    return run
