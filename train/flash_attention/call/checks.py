"""Checks of plain arguments. Each error names the argument, what came and what is allowed."""

from __future__ import annotations

from numbers import Integral, Real
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

# The dtypes of lengths, positions, indices and ids.
INTEGERS = ("int32", "int64")
INT32 = -(1 << 31), (1 << 31) - 1
# A side of a window with at least this many tokens reaches to the end of any sequence.
ALL_TOKENS = 2**31 - 1
# Limits of factors on scores. Kernels multiply by scale / ln 2 in float32, and divide by a softcap.
LARGEST_FACTOR, SMALLEST_SOFTCAP = 2.0**127, 2.0**-126


def check_int(name: str, value, low: int, high: int | None = None, *, other: str = "") -> None:
    """Raise an error unless `value` is an integer in [low, high]. The message also names the `other` kind allowed."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name}: got {type(value).__name__} {value!r}, allowed is an integer{other}")
    if int(value) < low or (high is not None and int(value) > high):
        allowed = f"an integer >= {low}" if high is None else f"an integer from {low} to {high}"
        raise ValueError(f"{name}: got {value}, allowed is {allowed}")


def check_bool(name: str, value) -> bool:
    """Return `value` as a bool; raise an error unless it is one."""
    if not isinstance(value, bool) and (type(value).__module__, type(value).__name__[:4]) != ("numpy", "bool"):
        raise TypeError(f"{name}: got {type(value).__name__} {value!r}, allowed is True or False")
    return bool(value)


def check_real(name: str, value) -> float:
    """Return `value` as a float; raise an error unless it is a number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}: got {type(value).__name__} {value!r}, allowed is a number")
    return float(value)


def check_rate(name: str, value) -> float:
    """Return `value` as a float. Raise unless it is a rate, 0 <= value < 1."""
    rate = check_real(name, value)
    if not 0.0 <= rate < 1.0:
        raise ValueError(f"{name}: got {rate!r}, allowed is 0 <= {name} < 1")
    return rate


def check_scale(name: str, value) -> float:
    """Return `value` as a float; raise an error unless kernels can take it as float32."""
    scale = check_real(name, value)
    if not abs(scale) <= LARGEST_FACTOR:
        allowed = f"-{LARGEST_FACTOR:.2e} to {LARGEST_FACTOR:.2e}, or None for 1 / sqrt(head_dim)"
        raise ValueError(f"{name}: got {scale!r}, allowed are {allowed}")
    return scale


def check_softcap(name: str, value) -> float:
    """Return `value` as a float; raise an error unless float32 holds it."""
    softcap = check_real(name, value)
    if softcap != 0.0 and not SMALLEST_SOFTCAP <= softcap <= LARGEST_FACTOR:
        allowed = f"{SMALLEST_SOFTCAP:.2e} to {LARGEST_FACTOR:.2e}, or 0 for none"
        raise ValueError(f"{name}: got {softcap!r}, allowed are {allowed}")
    return softcap


def check_range(name: str, numbers: np.ndarray, most, least: int = 0) -> None:
    """Raise unless an array's numbers are in [least, most]. `most` is an integer or an array that broadcasts."""
    import numpy as np

    for at in np.argwhere((numbers < least) | (numbers > most))[:1]:
        number, top = (array[tuple(at)] for array in np.broadcast_arrays(numbers, most))
        raise ValueError(f"{name}: got {number}, allowed are {least} to {top}")


def check_name(name: str, value, allowed) -> None:
    """Raise an error unless `value` is one of the `allowed` strings."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name}: got {value!r}, allowed are {', '.join(allowed)}")


def check_dtype(name: str, dtype, allowed: tuple, hint: str = "") -> None:
    """Raise an error unless the dtype name is one of the `allowed`."""
    if dtype not in allowed:
        raise TypeError(f"{name}: got dtype {dtype}, allowed are {', '.join(allowed)}{hint}")


def check_window(window_size) -> tuple[int, int]:
    """Return (left, right) of a token window, -1 for a side that hides nothing. Raise unless it has two integers."""
    if not isinstance(window_size, (tuple, list)) or len(window_size) != 2:
        raise TypeError(f"window_size: got {window_size!r}, allowed is a pair (left, right) of integers")
    for side, size in zip(("left", "right"), window_size):
        if isinstance(size, bool) or not isinstance(size, Integral):
            raise TypeError(f"window_size: got {side} {type(size).__name__} {size!r}, allowed is an integer")
    # As in flash_attn, any negative number hides nothing.
    left, right = (int(size) if 0 <= size < ALL_TOKENS else -1 for size in window_size)
    return left, right
