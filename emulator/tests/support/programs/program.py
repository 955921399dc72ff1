"""Code that all whole operators share.

Every builder builds one program and returns ``(tik_instance, feeds, expected)``; ``expected`` maps output names to
``(array, absolute tolerance)``. They only use what a TIK author has: the public API and its documents.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

import numpy as np


def program(function: Callable[[Any, Any], tuple]) -> Callable[[], tuple]:
    """Turn a function that fills a program into a builder of the program."""

    @functools.wraps(function)
    def build() -> tuple:
        from tbe import tik

        instance = tik.Tik(disable_debug=False)
        return (instance, *function(tik, instance))

    return build


def uniform(shape: Any, dtype: str = "float16", seed: int = 0, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    """Return uniform random elements from a seed."""
    return np.random.default_rng(seed).uniform(low, high, shape).astype(dtype)
