"""Differentiate a function in a closure around another tensor, for the programs closure_*.py."""

import numpy as np
from mindspore import Tensor, ops


def verdict(function, derivative):
    """Say "right", or "wrong" and why, of four calls.

    Args:
        function: of a tensor of four elements.
        derivative: of the function, for NumPy arrays.
    """
    random, said = np.random.default_rng(0), "right"
    for _ in range(4):
        given, wanted = (random.random(4).astype(np.float32) for _ in range(2))
        label = Tensor(wanted)

        def loss(x):
            return (function(x) * label).sum()  # noqa: B023

        try:
            found = ops.GradOperation()(loss)(Tensor(given)).asnumpy()
        except (RuntimeError, TypeError) as error:
            return f"wrong: {' '.join(str(error).split())[:300]}"
        if not np.allclose(found, derivative(given) * wanted, rtol=1e-4):
            said = f"wrong: {found}"
    return said
