"""Start every test without shim, selected SoC and changed options."""

import sys
import warnings

import pytest
import tikemu
from tikemu import settings, tik
from tikemu.frontend import platform_info

from emulator.tests.support.arithmetic import arithmetic, native_library  # noqa: F401 - fixtures
from emulator.tests.support.process_runs import one_number  # noqa: F401 - fixture
from emulator.tests.support.recorded import ub  # noqa: F401 - fixture

_NOTHING_SELECTED = platform_info.selection()


@pytest.fixture(autouse=True)
def clean_emulator():
    """Undo what a test installs, selects and configures, and what earlier tests selected."""
    options, finders = settings.default_options(), list(sys.meta_path)
    platform_info.restore(_NOTHING_SELECTED)
    yield
    if sys.meta_path != finders:
        tikemu.uninstall()
    settings.set_default_options(options)
    platform_info.restore(_NOTHING_SELECTED)


@pytest.fixture
def soc():
    """Select Ascend910A."""
    platform_info.set_current_compile_soc_info("Ascend910A")
    return "Ascend910A"


@pytest.fixture
def kernel(soc):
    """Return an empty kernel with debugging enabled."""
    return tik.Tik(disable_debug=False)


@pytest.fixture
def strict():
    """Provide strict mode while programs are recorded and run."""
    with tikemu.use_options(tikemu.Options(strict=True)):
        yield


@pytest.fixture
def no_warnings():
    """Make every TikWarning a failure."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", tikemu.TikWarning)
        yield


@pytest.fixture
def quiet():
    """Hide the warnings of tikemu."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tikemu.TikWarning)
        yield
