"""Start every test without shim, selected SoC and changed options."""

import platform
import sys
import warnings

import pytest
import tikemu
from tikemu import build_native, native, tik
from tikemu.frontend import platform_info

from emulator.tests.support.bench import Bench
from emulator.tests.support.kernels import ub  # noqa: F401 - fixture

_NOTHING_SELECTED = platform_info.selection()


@pytest.fixture(autouse=True)
def clean_emulator():
    """Undo what a test installs, selects and configures, and what earlier tests selected."""
    options, finders = tikemu.default_options(), list(sys.meta_path)
    platform_info.restore(_NOTHING_SELECTED)
    yield
    if sys.meta_path != finders:
        tikemu.uninstall()
    tikemu.set_default_options(options)
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


@pytest.fixture
def bench():
    """Return the memories of a core. They are in strict mode if the test asks for that before."""
    return Bench()


@pytest.fixture(scope="session")
def native_library(tmp_path_factory):
    """Provide the native helper, compiled from the present sources."""
    try:
        build_native.compiler()
    except RuntimeError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("native")
    build_native.build(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "library_folder", lambda: folder)
        native._load.cache_clear()
        yield
    native._load.cache_clear()


def _arithmetics():
    """Return the implementations of vector arithmetic that this machine can run."""
    try:
        build_native.compiler()
    except RuntimeError:
        return ["numpy"]
    return ["numpy", "native", "generic"] if platform.machine() == "x86_64" else ["numpy", "native"]


@pytest.fixture(params=_arithmetics())
def arithmetic(request, monkeypatch):
    """Run a test with NumPy, with the native helper, and with its portable version."""
    if request.param != "numpy":
        request.getfixturevalue("native_library")
    monkeypatch.setenv("TIKEMU_NATIVE", {"numpy": "0", "native": "", "generic": "generic"}[request.param])
    assert native.available() == (request.param != "numpy")
    return request.param
