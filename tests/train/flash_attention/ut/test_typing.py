"""Type checkers and wrappers see the public names, and every argument."""

import ast
import importlib
import inspect
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from flash_attention import FlashAttention, flash_attention
from mindspore import Tensor, nn


@pytest.mark.parametrize("name", ("flash_attention", "flash_attention.context_parallel"))
def test_the_stub_has_every_public_name_from_where_it_is(name: str) -> None:
    package = importlib.import_module(name)
    stub = ast.parse(Path(package.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    found = {
        alias.asname: statement.module
        for statement in stub.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert found == package._EXPORTS
    assert (Path(importlib.import_module("flash_attention").__file__).parent / "py.typed").exists()


@pytest.mark.parametrize(
    "name", ("flash_attention", "flash_attention.context_parallel", "flash_attention.compat.flash_attn")
)
def test_public_signatures_name_every_argument(name: str) -> None:
    package = importlib.import_module(name)
    functions = [getattr(package, one) for one in package.__all__ if one not in ("__version__", "PeerError")]
    functions += [one.construct for one in functions if isinstance(one, type) and issubclass(one, nn.Cell)]
    signatures = {one.__qualname__: str(inspect.signature(one)) for one in functions}
    assert not [one for one, signature in signatures.items() if "*args" in signature or "**" in signature]


def test_an_argument_by_the_name_of_another_library_is_python_s_error() -> None:
    query, layer = Tensor(np.ones((1, 2, 8, 16)), ms.float32), FlashAttention(16)
    for function in (flash_attention, layer):
        with pytest.raises(TypeError, match="unexpected keyword argument 'is_causal'"):
            function(query, query, query, is_causal=True)
    with pytest.raises(TypeError, match="unexpected keyword argument 'is_causal'"):
        FlashAttention(16, is_causal=True)
