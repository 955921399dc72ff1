"""Tensors of the tests of strict mode, and what they compare."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import tikemu
from tikemu import Options, TikWarning, tik

STRICT = Options(strict=True)


faulty = pytest.mark.parametrize("fault", [True, False], ids=["fault", "right"])


@pytest.fixture
def source(kernel: Any) -> Any:
    """Return a GM tensor to read."""
    return kernel.Tensor("float16", (128,), tik.scope_gm, "source")


@pytest.fixture
def target(kernel: Any) -> Any:
    """Return a GM tensor to write."""
    return kernel.Tensor("float16", (128,), tik.scope_gm, "target")


@pytest.fixture
def quiet() -> Iterator[None]:
    """Hide the warnings of tikemu."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TikWarning)
        yield


def ub(kernel: Any, name: str, count: int = 128, dtype: str = "float16") -> Any:
    """Return a vector in the Unified Buffer."""
    return kernel.Tensor(dtype, (count,), tik.scope_ubuf, name)


def filled(kernel: Any, name: str = "data", count: int = 128) -> Any:
    """Return a vector of ones in the Unified Buffer."""
    data = ub(kernel, name, count)
    kernel.vec_dup(128, data, 1.0, count // 128, 8)
    return data


def check(
    kernel: Any,
    fault: bool,
    error: type,
    message: str,
    inputs: Sequence[Any] = (),
    outputs: Sequence[Any] = (),
    *,
    result: Any = None,
    default: bool = True,
    **feeds: Any,
) -> None:
    """Build a kernel and check what strict mode and default mode report.

    ``result``: 128 float16 of the Unified Buffer that are moved to an output.
    """
    if result is not None:
        outputs = [kernel.Tensor("float16", (128,), tik.scope_gm, "target")]
        kernel.data_move(outputs[0], result, 0, 1, 8, 0, 0)
    kernel.BuildCCE("kernel", list(inputs), list(outputs))
    if default:
        tikemu.run(kernel, feeds)
    if not fault:
        tikemu.run(kernel, feeds, options=STRICT)
        return
    with pytest.raises(error, match=message) as caught:
        tikemu.run(kernel, feeds, options=STRICT)
    # The message names the line of the program: in the test, or here if it is the definition of a shared tensor.
    assert "test_strict" in str(caught.value) or "strict_programs.py" in str(caught.value)


def per_block(kernel: Any, blocks: int = 2) -> Any:
    """Return the multi-core loop."""
    return kernel.for_range(0, blocks, block_num=blocks)
