"""Tensors of the tests of strict mode, and what they compare."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import tikemu
from tikemu import Options, TikWarning, tik

STRICT = Options(strict=True)


faulty = pytest.mark.parametrize("fault", [True, False], ids=["fault", "right"])


@pytest.fixture
def source(kernel: Any) -> Any:
    """A GM tensor to read."""
    return kernel.Tensor("float16", (128,), tik.scope_gm, "source")


@pytest.fixture
def target(kernel: Any) -> Any:
    """A GM tensor to write."""
    return kernel.Tensor("float16", (128,), tik.scope_gm, "target")


@pytest.fixture
def quiet() -> Iterator[None]:
    """Warnings of tikemu are not shown."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TikWarning)
        yield


def ub(kernel: Any, name: str, count: int = 128, dtype: str = "float16") -> Any:
    """A vector in the Unified Buffer."""
    return kernel.Tensor(dtype, (count,), tik.scope_ubuf, name)


def check(
    kernel: Any, fault: bool, error: type, message: str, inputs: list, outputs: list, default: bool = True, **feeds: Any
) -> None:
    """Build; strict mode reports ``error`` at a line of the program if ``fault``, and default mode reports nothing."""
    kernel.BuildCCE("kernel", inputs, outputs)
    if default:
        tikemu.run(kernel, feeds)
    if not fault:
        tikemu.run(kernel, feeds, options=STRICT)
        return
    with pytest.raises(error, match=message) as caught:
        tikemu.run(kernel, feeds, options=STRICT)
    # The line of the program: in the test, or here where a shared tensor was defined.
    assert "test_strict" in str(caught.value) or "strict_programs.py" in str(caught.value)


def per_block(kernel: Any, blocks: int = 2) -> Any:
    """The multi-core loop."""
    return kernel.for_range(0, blocks, block_num=blocks)
