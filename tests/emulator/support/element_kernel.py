"""Kernels that store a tensor of scalars, for tests of what the scalar unit computes."""

from __future__ import annotations

import warnings
from typing import Any, Callable

import numpy as np
import tikemu
from tikemu import Options, TikWarning, tik

INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


def program(
    instance: Any, body: Callable[[Any], None], count: int = 8, dtype: str = "int32", inputs: list | None = None
) -> Any:
    """A kernel that fills a tensor ``out`` element by element: ``body(out)``, then it is stored."""
    target = instance.Tensor(dtype, (count,), tik.scope_gm, "target")
    out = instance.Tensor(dtype, (count,), tik.scope_ubuf, "out")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TikWarning)
        body(out)
        instance.data_move(target, out, 0, 1, count * np.dtype(dtype).itemsize // 32, 0, 0)
        instance.BuildCCE("kernel", inputs or [], [target])
    return instance


def values(instance: Any, feeds: dict | None = None, **options: Any) -> list:
    """Elements of the output "target" after a run."""
    return tikemu.run(instance, feeds or {}, options=Options(**options)).outputs["target"].tolist()
