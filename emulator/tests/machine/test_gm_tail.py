"""Test that reading the padding behind a GM tensor gives a warning."""

import numpy as np
import pytest
import tikemu
from tikemu import TikWarning, tik
from tikemu.errors import TikBoundsError


def tail(count, first, length, write=False):
    """Move ``length`` blocks from (or to) a GM tensor of ``count`` float32 elements. They start at element
    ``first``.
    """
    kernel = tik.Tik()
    offset = kernel.InputScalar("int32", "offset")
    x = kernel.Tensor("float32", (count,), tik.scope_gm, "x")
    y = kernel.Tensor("float32", (64,), tik.scope_gm, "y")
    ub = kernel.Tensor("float32", (64,), tik.scope_ubuf, "ub")
    kernel.vec_dup(64, ub, -1.0, 1, 8)
    if write:
        kernel.data_move(x[offset], ub, 0, 1, length, 0, 0)
    else:
        kernel.data_move(ub, x[offset], 0, 1, length, 0, 0)
    kernel.data_move(y, ub, 0, 1, 8, 0, 0)
    kernel.BuildCCE("tail", [offset, x], [y, x] if write else [y])
    return tikemu.run(kernel, {"offset": first, "x": np.arange(count, dtype=np.float32)}).outputs


# Tensors of 12 elements: 48 bytes, in a segment of 96.
@pytest.mark.parametrize("first, length", [(0, 2), (4, 2), (8, 1), (8, 2), (11, 1), (12, 1), (16, 1), (0, 3)])
def test_a_read_into_the_padding_warns(soc, first, length):
    with pytest.warns(TikWarning, match="padding"):
        got = tail(12, first, length)["y"]
    valid = max(0, min(12 - first, 8 * length))
    assert (got[:valid] == np.arange(first, first + valid)).all() and (got[8 * length :] == -1).all()


@pytest.mark.parametrize("first, length", [(0, 4), (4, 3), (12, 2), (17, 1), (20, 2), (24, 1), (30, 1)])
def test_beyond_the_padding_is_an_error(soc, first, length):
    with pytest.raises(TikBoundsError):
        tail(12, first, length)


def test_a_tensor_of_whole_blocks_has_padding_too(soc):
    with pytest.warns(TikWarning, match="padding"):
        assert (tail(16, 8, 2)["y"][:8] == np.arange(8, 16)).all()


@pytest.mark.parametrize("first, length", [(8, 1), (16, 1)])
def test_writes_into_the_padding_are_dropped(soc, first, length):
    with pytest.warns(TikWarning, match="padding"):
        got = tail(12, first, length, write=True)["x"]
    expected = np.arange(12, dtype=np.float32)
    expected[first:] = -1
    assert (got == expected).all()


def test_a_loop_over_ragged_rows_reads_each_row_once(soc):
    """Rows of 5 elements are read as whole blocks: the last block reads beyond the tensor."""
    kernel = tik.Tik()
    x = kernel.Tensor("float32", (300, 5), tik.scope_gm, "x")
    y = kernel.Tensor("float32", (300, 8), tik.scope_gm, "y")
    with kernel.for_range(0, 300) as row:
        ub = kernel.Tensor("float32", (8,), tik.scope_ubuf, "ub")
        kernel.data_move(ub, x[row * 5], 0, 1, 1, 0, 0)
        kernel.data_move(y[row * 8], ub, 0, 1, 1, 0, 0)
    kernel.BuildCCE("rows", [x], [y])
    data = np.arange(1500, dtype=np.float32).reshape(300, 5)
    with pytest.warns(TikWarning, match="padding") as caught:
        full = tikemu.run(kernel, {"x": data})
        quick = tikemu.run(kernel, {}, numerics=False)
    assert (full.outputs["y"][:, :5] == data).all() and full.cycles == quick.cycles
    assert len([warning for warning in caught if "padding" in str(warning.message)]) == 2
