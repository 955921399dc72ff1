"""Tensors: definition rules, the three kinds of index, reshape, reinterpret, element writes (core.md 2.1 to 2.5)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tikemu import tik
from tikemu.errors import TikIndexError, TikParamError
from tikemu.frontend import platform_info
from tikemu.program import ir, nodes

from emulator.tests.support.kernels import offset


def test_positional_order_and_attributes(kernel):
    tensor = kernel.Tensor("float32", [2, 8], tik.scope_ubuf, "data")
    assert (tensor.dtype, tensor.shape, tensor.scope, tensor.name) == ("float32", (2, 8), "local.UB", "data")
    assert (tensor.size, tensor.buffer_size, tensor.offset) == (16, 64, 0)
    assert isinstance(kernel._recorder.program.body.statements[0], ir.Define)


def test_default_names_are_counted(kernel):
    assert [kernel.Tensor("int8", (32,), tik.scope_ubuf).name for _ in range(2)] == ["auto_tensor_0", "auto_tensor_1"]


@pytest.mark.parametrize("shape", [(16.0, 2), [np.int64(16), 2], (np.int32(16), 2)])
def test_accepted_extents(kernel, shape):
    assert kernel.Tensor("float16", shape, tik.scope_ubuf).shape == (16, 2)


def test_all_scopes_and_types(kernel):
    for scope in ("gm", "ubuf", "cbuf", "cbuf_out", "ca", "cb", "cc"):
        for dtype in ("uint8", "int8", "uint16", "int16", "float16", "uint32", "int32", "float32", "uint64", "int64"):
            assert kernel.Tensor(dtype, (512,), getattr(tik, f"scope_{scope}")).dtype == dtype


def test_run_time_shapes_need_max_mem_size(kernel):
    n = kernel.InputScalar("int32", "n")
    tensor = kernel.Tensor("float16", (n, 16), tik.scope_ubuf, "t", max_mem_size=1024)
    assert offset(tensor[2, 3]) == "35" and nodes.describe(tensor.size._node) == "n * 16"
    assert kernel.Tensor("float16", (n * 2,), tik.scope_gm, "g").shape[0].dtype == "int32"


def test_gm_tensors_stand_outside_loops(kernel):
    with kernel.new_stmt_scope():
        assert kernel.Tensor("float16", (16,), tik.scope_gm, "g").size == 16


def test_the_documented_examples(ub):
    """A of shape (2, 4) holds 0..7."""
    a = ub((2, 4))
    assert (a[0].shape, offset(a[0])) == ((1,), "0")
    assert (a[0:].shape, offset(a[0:])) == ((8,), "0")
    assert (a[0, 1].shape, offset(a[0, 1])) == ((1, 1), "1")
    assert (a[0:, 1].shape, offset(a[0:, 1]), a[0:, 1]._node.strides) == ((2, 1), "1", (4, 1))
    assert offset(a[0:][1]) == "1"
    assert a[0:8].shape == (8,)


@st.composite
def indices(draw):
    """Return a shape and an index tuple that is valid for it."""
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    entries = []
    for size in shape:
        kind = draw(st.sampled_from(["index", "slice", "all", "from"]))
        start = draw(st.integers(-size, size - 1))
        if kind == "index":
            entries.append(start)
        elif kind == "all":
            entries.append(slice(None))
        elif kind == "from":
            entries.append(slice(start, None))
        else:
            entries.append(slice(start, draw(st.integers(start % size + 1, size))))
    return shape, tuple(entries)


def selected(shape, index):
    """Return the elements that NumPy selects from the numbers from 0. An integer index is a slice of one, because TIK
    keeps the axis.
    """
    kept = tuple(
        slice(entry % size, entry % size + 1) if isinstance(entry, int) else entry for entry, size in zip(index, shape)
    )
    return np.arange(np.prod(shape)).reshape(shape)[kept]


@settings(max_examples=300, deadline=None)
@given(indices())
def test_tuples_select_what_numpy_selects(case):
    shape, index = case
    platform_info.set_current_compile_soc_info("Ascend910")
    view = tik.Tik().Tensor("int32", shape, tik.scope_ubuf)[index]._node
    expected = selected(shape, index)
    assert view.shape == expected.shape
    positions = sum(
        (np.arange(extent) * stride).reshape([-1 if axis == other else 1 for other in range(len(shape))])
        for axis, (extent, stride) in enumerate(zip(view.shape, view.strides))
    )
    np.testing.assert_array_equal(view.offset + positions, expected)


@settings(max_examples=200, deadline=None)
@given(indices(), st.data())
def test_a_position_in_a_view_counts_in_row_major_order(case, data):
    shape, index = case
    platform_info.set_current_compile_soc_info("Ascend910")
    view = tik.Tik().Tensor("int32", shape, tik.scope_ubuf)[index]
    expected = selected(shape, index).reshape(-1)
    position = data.draw(st.integers(-len(expected), len(expected) - 1))
    assert view[position]._node.offset == expected[position]


def test_run_time_indices(kernel, ub):
    t, i = ub((4, 128)), kernel.Scalar("int32", "i")
    assert offset(t[i]) == "i" and t[i].shape == (1,)
    assert offset(t[i, 0:64]) == "i * 128" and t[i, 0:64].shape == (1, 64)
    assert offset(t[i * 128 + 64]) == "i * 128 + 64"
    assert offset(t[1, i + 2]) == "i + 130"


def test_slices_with_run_time_bounds_have_known_extents_where_possible(kernel, ub):
    t, i, n = ub((1024,)), kernel.Scalar("int32", "i"), kernel.Scalar("int32", "n")
    assert t[i * 128 : (i + 1) * 128].shape == (128,)
    assert t[i : i + 16].shape == (16,)
    assert nodes.describe(t[i:n].shape[0]._node) == "n - i"
    assert nodes.describe(t[i:].shape[0]._node) == "1024 - i"
    for empty in (lambda: t[i:i], lambda: t[i + 1 : i], lambda: t[i : i + 2000]):
        with pytest.raises(TikIndexError):
            empty()


def test_a_view_that_is_not_contiguous_cannot_be_flattened_at_run_time(kernel, ub):
    t, i = ub((4, 32)), kernel.Scalar("int32")
    block = t[0:4, 0:16]
    for use in (lambda: block[i], lambda: block[0:32], lambda: block[3:]):
        with pytest.raises(TikParamError, match="not contiguous"):
            use()
    assert offset(block[16]) == "32" and offset(t[1:3, :][i]) == f"{i.name} + 32"
    assert offset(t[2:3, 8:16][i]) == f"{i.name} + 72"
