"""Fixture that runs a test with every implementation of the vector unit's arithmetic."""

from __future__ import annotations

import platform
from collections.abc import Iterator

import pytest
from tikemu import build_native, native


@pytest.fixture(scope="session")
def native_library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
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


def _arithmetics() -> list[str]:
    """Return the implementations of vector arithmetic that this machine can run."""
    try:
        build_native.compiler()
    except RuntimeError:
        return ["numpy"]
    return ["numpy", "native", "generic"] if platform.machine() == "x86_64" else ["numpy", "native"]


@pytest.fixture(params=_arithmetics())
def arithmetic(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test with NumPy, with the native helper, and with its portable version."""
    if request.param != "numpy":
        request.getfixturevalue("native_library")
    monkeypatch.setenv("TIKEMU_NATIVE", {"numpy": "0", "native": "", "generic": "generic"}[request.param])
    assert native.available() == (request.param != "numpy")
    return request.param
