"""reshape and reinterpret_cast_to, writes of elements, and life time."""

import pytest
import tikemu
from tikemu import tik
from tikemu.errors import TikParamError, TikScopeError
from tikemu.program import nodes

from emulator.tests.support.kernels import offset


def test_reshape(ub):
    t = ub((4, 32))
    assert t.reshape((2, 4, 16)).shape == (2, 4, 16) and offset(t.reshape([128])[100]) == "100"
    assert t[0:].reshape((8, 16)).shape == (8, 16)
    assert t.reinterpret_cast_to("uint16").reshape((128,)).dtype == "uint16"


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
