"""Tensors: definition rules, the three kinds of index, reshape, reinterpret, element writes (core.md 2.1 to 2.5)."""

from __future__ import annotations

import numpy as np
import pytest
import tikemu
from hypothesis import given, settings
from hypothesis import strategies as st
from tikemu import ir, nodes, platform_info, tik
from tikemu.errors import (
    TikAlignError,
    TikIndexError,
    TikParamError,
    TikScopeError,
    TikUnsupportedArgumentError,
    TikUnsupportedError,
)


@pytest.fixture
def ub(kernel):
    return lambda shape, dtype="float16", name="t": kernel.Tensor(dtype, shape, tik.scope_ubuf, name)


def offset(tensor):
    return nodes.describe(tensor._node.offset)


# ------------------------------------------------------------------------------------------------ definition
def test_positional_order_and_attributes(kernel):
    tensor = kernel.Tensor("float32", [2, 8], tik.scope_ubuf, "data")
    assert (tensor.dtype, tensor.shape, tensor.scope, tensor.name) == ("float32", (2, 8), "local.UB", "data")
    assert (tensor.size, tensor.buffer_size, tensor.offset) == (16, 64, 0)
    assert isinstance(kernel._recorder.program.body.statements[0], ir.Define)


def test_default_names_are_counted(kernel):
    assert [kernel.Tensor("int8", (32,), tik.scope_ubuf).name for _ in range(2)] == ["auto_tensor_0", "auto_tensor_1"]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"dtype": "float64"}, "dtype"),
        ({"dtype": np.float16}, "dtype"),
        ({"shape": 16}, "list or tuple"),
        ({"shape": ()}, "1 to 8"),
        ({"shape": (1,) * 9}, "1 to 8"),
        ({"shape": (0,)}, "positive"),
        ({"shape": (4, -1)}, "positive"),
        ({"shape": (2.5,)}, "positive"),
        ({"shape": ("4",)}, "positive"),
        ({"scope": "local.XX"}, "scope"),
        ({"scope": None}, "scope"),
        ({"name": "1abc"}, "name"),
        ({"name": "a-b"}, "name"),
        ({"name": ""}, "name"),
        ({"name": 7}, "name"),
        ({"name": "__fake_tensor", "scope": tik.scope_gm}, "__fake_tensor"),
        ({"is_workspace": True}, "is_workspace"),
        ({"is_atomic_add": True}, "is_atomic_add"),
        ({"init_value": [1.0] * 16}, "init_value"),
        ({"start_addr": 64, "scope": tik.scope_gm}, "start_addr"),
        ({"start_addr": -32}, "start_addr"),
        ({"max_mem_size": 0}, "max_mem_size"),
        ({"max_mem_size": 31}, "max_mem_size"),
    ],
)
def test_definition_rules(kernel, change, message):
    good = {"dtype": "float16", "shape": (16,), "scope": tik.scope_ubuf, "name": "t"}
    assert kernel.Tensor(**good).size == 16
    with pytest.raises(TikParamError, match=message):
        kernel.Tensor(**{**good, **change})


@pytest.mark.parametrize("shape", [(16.0, 2), [np.int64(16), 2], (np.int32(16), 2)])
def test_accepted_extents(kernel, shape):
    assert kernel.Tensor("float16", shape, tik.scope_ubuf).shape == (16, 2)


def test_all_scopes_and_types(kernel):
    for scope in (
        tik.scope_gm,
        tik.scope_ubuf,
        tik.scope_cbuf,
        tik.scope_cbuf_out,
        tik.scope_ca,
        tik.scope_cb,
        tik.scope_cc,
    ):
        for dtype in ("uint8", "int8", "uint16", "int16", "float16", "uint32", "int32", "float32", "uint64", "int64"):
            assert kernel.Tensor(dtype, (512,), scope).dtype == dtype


def test_run_time_shapes_need_max_mem_size(kernel):
    n = kernel.InputScalar("int32", "n")
    with pytest.raises(TikParamError, match="max_mem_size"):
        kernel.Tensor("float16", (n, 16), tik.scope_ubuf, "t")
    tensor = kernel.Tensor("float16", (n, 16), tik.scope_ubuf, "t", max_mem_size=1024)
    assert offset(tensor[2, 3]) == "35" and nodes.describe(tensor.size._node) == "n * 16"
    assert kernel.Tensor("float16", (n * 2,), tik.scope_gm, "g").shape[0].dtype == "int32"
    with pytest.raises(TikParamError, match="integer"):
        kernel.Tensor("float16", (kernel.Scalar("float32"),), tik.scope_gm, "h")


def test_gm_tensors_stand_outside_loops(kernel):
    with kernel.for_range(0, 2), pytest.raises(TikParamError, match="outside for_range"):
        kernel.Tensor("float16", (16,), tik.scope_gm, "g")
    with kernel.new_stmt_scope():
        assert kernel.Tensor("float16", (16,), tik.scope_gm, "g").size == 16


# ------------------------------------------------------------------------------------------------ indexing
def test_the_documented_examples(ub):
    """A of shape (2, 4) holds 0..7."""
    a = ub((2, 4))
    assert (a[0].shape, offset(a[0])) == ((1,), "0")
    assert (a[0:].shape, offset(a[0:])) == ((8,), "0")
    assert (a[0, 1].shape, offset(a[0, 1])) == ((1, 1), "1")
    assert (a[0:, 1].shape, offset(a[0:, 1]), a[0:, 1]._node.strides) == ((2, 1), "1", (4, 1))
    with pytest.raises(TikIndexError):
        a[0][1]
    assert offset(a[0:][1]) == "1"
    assert a[0:8].shape == (8,)


@st.composite
def indices(draw):
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


@settings(max_examples=300, deadline=None)
@given(indices())
def test_tuples_select_what_numpy_selects(case):
    """Against NumPy, where an integer index is written as a slice of one because TIK keeps the axis."""
    shape, index = case
    platform_info.set_current_compile_soc_info("Ascend910")
    view = tik.Tik().Tensor("int32", shape, tik.scope_ubuf)[index]._node
    numbers = np.arange(np.prod(shape)).reshape(shape)
    kept = tuple(
        slice(entry % size, entry % size + 1) if isinstance(entry, int) else entry for entry, size in zip(index, shape)
    )
    expected = numbers[kept]
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
    kept = tuple(
        slice(entry % size, entry % size + 1) if isinstance(entry, int) else entry for entry, size in zip(index, shape)
    )
    expected = np.arange(np.prod(shape)).reshape(shape)[kept].reshape(-1)
    position = data.draw(st.integers(-len(expected), len(expected) - 1))
    assert view[position]._node.offset == expected[position]


@pytest.mark.parametrize("index", [8, -9, slice(8, None), slice(0, 9), slice(3, 3), slice(5, 2), slice(-9, None)])
def test_flat_bounds(ub, index):
    with pytest.raises(TikIndexError, match="'t'"):
        ub((2, 4))[index]


@pytest.mark.parametrize("index", [(2, 0), (0, 4), (-3, 0), (0, slice(4, 5)), (slice(1, 1), 0), (0,), (0, 0, 0)])
def test_tuple_bounds(ub, index):
    with pytest.raises(TikIndexError, match="'t'"):
        ub((2, 4))[index]


@pytest.mark.parametrize(
    "index", [1.0, "1", None, Ellipsis, slice(0, 4, 2), slice(4, 0, -1), slice(1.0, None), True, (0, 1.5)]
)
def test_what_is_no_index(ub, index):
    with pytest.raises(TikParamError):
        ub((2, 4))[index]
    assert ub((2, 4))[0:4:1].shape == (4,)


def test_run_time_indices(kernel, ub):
    t, i = ub((4, 128)), kernel.Scalar("int32", "i")
    assert offset(t[i]) == "i" and t[i].shape == (1,)
    assert offset(t[i, 0:64]) == "i * 128" and t[i, 0:64].shape == (1, 64)
    assert offset(t[i * 128 + 64]) == "i * 128 + 64"
    assert offset(t[1, i + 2]) == "i + 130"
    with pytest.raises(TikParamError, match="integer"):
        t[kernel.Scalar("float32")]
    with pytest.raises(TikParamError, match="integer"):
        t[i > 2]


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


def test_whole_tensors_are_no_numbers(ub):
    t = ub((16,), "int32")
    for use in (
        lambda: t == 3,
        lambda: t != 3,
        lambda: t < 3,
        lambda: t + 1,
        lambda: 1 - t,
        lambda: -t,
        lambda: t * t,
        lambda: t <= 3,
    ):
        with pytest.raises(TikParamError, match="set_as"):
            use()
    with pytest.raises(TikParamError, match="set_as"):
        t += 1
    assert t == t and (t != t) is False and (t == None) is False and t in [None, t]  # noqa: E711
    with pytest.raises(TypeError):
        iter(t)


def test_an_expression_cannot_hold_a_whole_tensor(kernel, ub):
    with pytest.raises(TikParamError, match="set_as"):
        kernel.Scalar("int32") + ub((16,), "int32")


# ------------------------------------------------------------------------------------------------ reshape, reinterpret
def test_reshape(ub):
    t = ub((4, 32))
    assert t.reshape((2, 4, 16)).shape == (2, 4, 16) and offset(t.reshape([128])[100]) == "100"
    assert t[0:].reshape((8, 16)).shape == (8, 16)
    assert t.reinterpret_cast_to("uint16").reshape((128,)).dtype == "uint16"


@pytest.mark.parametrize("shape", [(4, 31), (129,), 128, (-1, 32), (4, 32.5)])
def test_reshape_needs_the_same_number_of_elements(ub, shape):
    with pytest.raises(TikParamError):
        ub((4, 32)).reshape(shape)


@pytest.mark.parametrize("index", [slice(0, 64), slice(1, None), 3, (0, slice(None)), (slice(0, 4), slice(0, 16))])
def test_partial_views_cannot_be_reshaped(ub, index):
    view = ub((4, 32))[index]
    with pytest.raises(TikParamError, match="partial view"):
        view.reshape(view.shape)


def test_run_time_reshape(kernel):
    n = kernel.InputScalar("int32", "n")
    t = kernel.Tensor("float16", (n, 16), tik.scope_ubuf, "t", max_mem_size=1024)
    assert nodes.describe(t.reshape((n * 16,)).shape[0]._node) == "n * 16"
    with pytest.raises(TikParamError, match="elements"):
        t.reshape((n * 16 + 1,))


@pytest.mark.parametrize(
    "old, new, shape, result",
    [
        ("float16", "uint32", (4, 16), (4, 8)),
        ("float16", "uint8", (4, 16), (4, 32)),
        ("int64", "uint8", (2,), (16,)),
        ("uint8", "uint64", (3, 16), (3, 2)),
        ("float16", "int16", (5,), (5,)),
    ],
)
def test_reinterpret_scales_the_last_dimension(ub, old, new, shape, result):
    cast = ub(shape, old).reinterpret_cast_to(new)
    assert (cast.dtype, cast.shape) == (new, result)


def test_reinterpret_keeps_the_start_of_a_view(kernel, ub):
    t, i = ub((4, 32)), kernel.Scalar("int32", "i")
    assert offset(t[1, 16:32].reinterpret_cast_to("float32")) == "24"
    assert t[1:3, 16:32].reinterpret_cast_to("float32")._node.strides == (16, 1)
    assert offset(t[1, 16:32].reinterpret_cast_to("uint8")) == "96"
    assert offset(t[i * 32 + 16 : i * 32 + 32].reinterpret_cast_to("float32")) == "i * 16 + 8"


def test_reinterpret_errors(ub):
    with pytest.raises(TikParamError, match="Error: Last dimension can't be divided."):
        ub((16, 3)).reinterpret_cast_to("float32")
    with pytest.raises(TikParamError, match="Last dimension"):
        ub((16,))[0].reinterpret_cast_to("float32")
    with pytest.raises(TikAlignError, match="inside an element"):
        ub((16,))[1:3].reinterpret_cast_to("float32")
    with pytest.raises(TikParamError, match="dtype"):
        ub((16,)).reinterpret_cast_to("bfloat16")
    assert ub((16, 4)).reinterpret_cast_to("float32").shape == (16, 2)


def test_flatten_has_no_specification(ub):
    with pytest.raises(TikUnsupportedError, match="flatten"):
        ub((4, 4)).flatten()


# ------------------------------------------------------------------------------------------------ element writes
def test_element_writes(kernel, ub):
    t, s, i = ub((4, 16), "int32"), kernel.Scalar("int32", "s"), kernel.Scalar("int32", "i")
    t[1, 2] = 5
    t[i] = s
    t[3].set_as(t[4])
    t[0].set_as(s + i)
    assert str(kernel).splitlines()[-4:] == [
        "    t[18]:(1, 1) = 5",
        "    t[i]:(1,) = s",
        "    t[3]:(1,) = t[4]:(1,)",
        "    t[0]:(1,) = s + i",
    ]


def test_element_writes_go_to_the_unified_buffer(kernel):
    for scope in (tik.scope_gm, tik.scope_cbuf, tik.scope_cc):
        with pytest.raises(TikUnsupportedArgumentError, match="Unified Buffer"):
            kernel.Tensor("int32", (16,), scope)[0].set_as(1)
    source = kernel.Tensor("int32", (16,), tik.scope_gm, "g")
    with pytest.raises(TikUnsupportedArgumentError, match="Unified Buffer"):
        kernel.Tensor("int32", (16,), tik.scope_ubuf)[0].set_as(source[0])


def test_types_of_element_writes(kernel, ub):
    half, single, integer = ub((16,), "float16"), ub((16,), "float32"), ub((16,), "int32")
    s32, f32, s64 = kernel.Scalar("int32"), kernel.Scalar("float32"), kernel.Scalar("int64")
    for target, value in ((half, f32), (single, s32), (integer, f32), (integer, s64), (integer, half[0])):
        with pytest.raises(TikParamError, match="must be the same"):
            target[0] = value
    for target, value in ((single, s32 + 1), (integer, f32 + f32), (integer, "x"), (integer, None)):
        with pytest.raises(TikParamError):
            target[0] = value
    with pytest.raises(TikUnsupportedArgumentError, match="Expr"):
        half[0] = s32 + 1
    integer[0] = s64 + 1
    single[0] = f32 + f32
    half[0] = 1.5
    half[0] = kernel.Scalar("float16")


def test_integer_elements_wrap_with_a_warning(ub):
    t = ub((16,), "uint8")
    with pytest.warns(tikemu.TikWarning, match="wraps to 0"):
        t[0] = 256


# ------------------------------------------------------------------------------------------------ life time
@pytest.mark.parametrize("block", ["new_stmt_scope", "if_scope", "for_range"])
def test_tensors_die_with_their_scope(kernel, block):
    arguments = {"new_stmt_scope": (), "if_scope": (kernel.Scalar("int32") > 1,), "for_range": (0, 2)}[block]
    outer = kernel.Tensor("float16", (128,), tik.scope_ubuf, "outer")
    with getattr(kernel, block)(*arguments):
        inner = kernel.Tensor("float16", (128,), tik.scope_ubuf, "inner")
        view = inner[16:]
        kernel.vec_dup(16, inner, 1.0, 1, 8)
    for use in (
        lambda: kernel.vec_dup(16, inner, 1.0, 1, 8),
        lambda: kernel.vec_dup(16, view, 1.0, 1, 8),
        lambda: inner[0],
        lambda: inner.reshape((2, 64)),
        lambda: inner.reinterpret_cast_to("int16"),
        lambda: inner.set_as(1),
        lambda: outer[0].set_as(inner),
        lambda: kernel.BuildCCE("k", [inner], []),
    ):
        with pytest.raises(TikScopeError, match="inner") as caught:
            use()
        assert caught.value.location.file == __file__
    kernel.vec_dup(16, outer, 1.0, 1, 8)


def test_a_view_dies_with_its_index(kernel, ub):
    t = ub((128,))
    with kernel.for_range(0, 2) as i:
        view = t[i * 16]
        kernel.vec_dup(16, view, 1.0, 1, 8)
    with pytest.raises(TikScopeError):
        kernel.vec_dup(16, view, 1.0, 1, 8)


def test_tensors_of_another_kernel(kernel, ub):
    other = tik.Tik().Tensor("float16", (128,), tik.scope_ubuf)
    with pytest.raises(TikParamError, match="another Tik instance"):
        kernel.vec_dup(16, other, 1.0, 1, 8)
