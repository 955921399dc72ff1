"""A multi-core loop inside a serial loop: default mode runs it as if it were outermost, strict mode refuses."""

from __future__ import annotations

import numpy as np
import pytest
import tikemu
from tikemu import TikWarning, tik
from tikemu.errors import TikParamError

ROWS, BLOCKS, WIDTH = 3, 4, 16


def accumulate(kernel, nested):
    """Return ``y[block] = sum over rows of (x[row, block] + row)``, in global memory."""
    x = kernel.Tensor("float16", (ROWS, BLOCKS, WIDTH), tik.scope_gm, "x")
    y = kernel.Tensor("float16", (BLOCKS, WIDTH), tik.scope_gm, "y")

    def body(row, block):
        one = kernel.Tensor("float16", (WIDTH,), tik.scope_ubuf, "one")
        total = kernel.Tensor("float16", (WIDTH,), tik.scope_ubuf, "total")
        kernel.data_move(one, x[row * BLOCKS * WIDTH + block * WIDTH], 0, 1, 1, 0, 0)
        kernel.data_move(total, y[block * WIDTH], 0, 1, 1, 0, 0)
        kernel.vec_add(WIDTH, total, total, one, 1, 8, 8, 8)
        kernel.data_move(y[block * WIDTH], total, 0, 1, 1, 0, 0)

    if nested:
        with kernel.for_range(0, ROWS) as row, kernel.for_range(0, BLOCKS, block_num=BLOCKS) as block:
            body(row, block)
    else:
        with kernel.for_range(0, BLOCKS, block_num=BLOCKS) as block, kernel.for_range(0, ROWS) as row:
            body(row, block)
    kernel.BuildCCE("accumulate", [x], [y])
    return kernel


def test_results_are_those_of_an_outermost_loop(soc):
    data = np.random.default_rng(0).integers(-8, 8, (ROWS, BLOCKS, WIDTH)).astype(np.float16)
    feed = {"x": data, "y": np.zeros((BLOCKS, WIDTH), np.float16)}
    with pytest.warns(TikWarning, match="outermost"):
        nested = accumulate(tik.Tik(), True)
    plain = tikemu.run(accumulate(tik.Tik(), False), feed)
    result = tikemu.run(nested, feed)
    assert (result.outputs["y"] == data.sum(0)).all() and result.block_count == BLOCKS
    assert (result.outputs["y"] == plain.outputs["y"]).all()


def test_strict_mode_refuses_it(soc, strict):
    with pytest.raises(TikParamError, match="outermost"):
        accumulate(tik.Tik(), True)
