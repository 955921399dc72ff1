"""reshape and reinterpret_cast_to, writes of elements, and life time."""

import pytest
import tikemu
from tikemu import tik
from tikemu.errors import TikAlignError, TikParamError, TikScopeError, TikUnsupportedArgumentError, TikUnsupportedError
from tikemu.program import nodes

from emulator.tests.support.recorded import offset


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
