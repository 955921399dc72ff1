"""Whole TIK programs around the Cube: run-time values, and the memory that composite calls need for themselves."""

import warnings

import numpy as np
import pytest
import tikemu
from tikemu import Options, TikBoundsError, TikMemoryError, TikUnsupportedError, TikWarning, tik

from emulator.tests.isa.test_load3d import window
from emulator.tests.support.cube_layout import values

pytestmark = pytest.mark.usefixtures("soc")
RNG = np.random.default_rng(29)
STRICT = Options(strict=True)


def run(instance, feeds, options=STRICT):
    """Return a run in strict mode, if nothing else is asked for."""
    return tikemu.run(instance, feeds, options=options)


def move_program(kind):
    """Copy with run-time counts: ``data_move(ub, gm, 0, nburst, burst, gap, 0)``."""
    instance = tik.Tik(disable_debug=False)
    src = instance.Tensor("int32", (512,), tik.scope_gm, "src")
    out = instance.Tensor("int32", (512,), tik.scope_gm, "out")
    names = ("nburst", "burst", "gap")
    scalars = [instance.InputScalar("int32", name) for name in names]
    ub = instance.Tensor("int32", (512,), tik.scope_ubuf, "ub")
    instance.vec_dup(64, ub, -1, 8, 8)
    if kind == "data_move":
        instance.data_move(ub, src, 0, *scalars, 0)
    else:
        instance.tensor_mov(ub, src, "", scalars[0], scalars[1], 0, scalars[2])
    instance.data_move(out, ub, 0, 1, 64, 0, 0)
    instance.BuildCCE("moves", [src, *scalars], [out])
    return instance


@pytest.mark.parametrize("kind", ["data_move", "tensor_mov"])
def test_moves_with_run_time_counts(kind):
    src = np.arange(512, dtype=np.int32)
    result = run(move_program(kind), {"src": src, "nburst": 3, "burst": 2, "gap": 4}).outputs["out"]
    expected = np.full(512, -1)
    expected[:48] = src.reshape(-1, 8)[:18].reshape(3, 6, 8)[:, :2].reshape(-1)
    np.testing.assert_array_equal(result, expected)
    nothing = run(move_program(kind), {"src": src, "nburst": 0, "burst": 2, "gap": 4}).outputs["out"]
    assert (nothing == -1).all()
    with pytest.raises(TikBoundsError, match=r"nburst must be in \[0, 4095\], got 4096"):
        run(move_program(kind), {"src": src, "nburst": 4096, "burst": 2, "gap": 4})
    with pytest.raises(TikBoundsError, match=r"'src'(.|\n)*test_cube_programs.py"):
        run(move_program(kind), {"src": src, "nburst": 3, "burst": 20, "gap": 4})


def test_run_time_mode_v_is_checked_when_it_runs():
    instance = tik.Tik(disable_debug=False)
    burst = instance.InputScalar("int32", "burst")
    out = instance.Tensor("float32", (16,), tik.scope_gm, "out")
    l0c = instance.Tensor("float32", (512,), tik.scope_cc, "l0c")
    ub = instance.Tensor("float32", (32,), tik.scope_ubuf, "ub")
    instance.tensor_mov(ub, l0c, "v", 1, burst, 0, 0)
    instance.data_move(out, ub, 0, 1, 2, 0, 0)
    instance.BuildCCE("rows", [burst], [out])
    run(instance, {"burst": 1}, Options())
    with pytest.raises(TikUnsupportedError, match="burst 1 only"):
        run(instance, {"burst": 2}, Options())


def test_image_to_column_with_run_time_window():
    """As in img2col programs, the loop variable is the kernel point, and data go straight to the Unified Buffer."""
    height, width, out_rows = 6, 8, 48
    image = values("float16", 1, height, width, 16)
    instance = tik.Tik(disable_debug=False)
    src = instance.Tensor("float16", image.shape, tik.scope_gm, "src")
    out = instance.Tensor("float16", (9, out_rows, 16), tik.scope_gm, "out")
    l1 = instance.Tensor("float16", image.shape, tik.scope_cbuf, "l1")
    ub = instance.Tensor("float16", (out_rows, 16), tik.scope_ubuf, "ub")
    instance.data_move(l1, src, 0, 1, height * width, 0, 0)
    with instance.for_range(0, 9) as point:
        args = window(l1_h=height, l1_w=width)
        args.update(fetch_filter_w=point % 3, fetch_filter_h=point // 3)
        instance.load3dv1(ub, l1, **args)
        instance.data_move(out[point, 0, 0], ub, 0, 1, out_rows, 0, 0)
    instance.BuildCCE("img2col", [src], [out])
    result = run(instance, {"src": image}).outputs["out"]
    padded = np.pad(image[0], ((1, 1), (1, 1), (0, 0)))
    for point in range(9):
        expected = padded[point // 3 : point // 3 + height, point % 3 : point % 3 + width].reshape(-1, 16)
        np.testing.assert_array_equal(result[point], expected)


def test_scalar_functions_steer_a_program():
    instance = tik.Tik(disable_debug=False)
    value = instance.InputScalar("float32", "value")
    out = instance.Tensor("int32", (8,), tik.scope_gm, "out")
    ub = instance.Tensor("int32", (8,), tik.scope_ubuf, "ub")
    instance.vec_dup(8, ub, 0, 1, 8)
    root, count, small = instance.Scalar("float32"), instance.Scalar("int32"), instance.Scalar("int64")
    instance.scalar_sqrt(root, value)
    instance.scalar_conv("floor", count, root)
    small.set_as(count)
    instance.scalar_min(small, small, 6)
    with instance.for_range(0, small) as i:
        ub[i].set_as(i + 1)
    instance.data_move(out, ub, 0, 1, 1, 0, 0)
    instance.BuildCCE("steering", [value], [out])
    assert run(instance, {"value": 17.5}).outputs["out"].tolist() == [1, 2, 3, 4, 0, 0, 0, 0]
    assert run(instance, {"value": 4.0}).outputs["out"].tolist() == [1, 2, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    "held,strict", [(249856, True), (249888, True), (249888, False), (258048, False), (258080, False)]
)
def test_fixpipe_needs_a_column_of_the_unified_buffer(held, strict):
    """D28b: a column of 64 rows takes 4096 bytes; strict mode plans with 253952 bytes in all."""
    instance = tik.Tik(disable_debug=False)
    out = instance.Tensor("float32", (1, 64, 16), tik.scope_gm, "out")
    dst = instance.Tensor("float32", (1, 64, 16), tik.scope_cc, "dst")
    l1 = instance.Tensor("float16", (1, 64, 16), tik.scope_cbuf, "l1")
    gm = instance.Tensor("float16", (1, 64, 16), tik.scope_gm, "gm")
    instance.data_move(l1, gm, 0, 1, 64, 0, 0)
    instance.matmul(dst, l1, l1, 64, 16, 16)
    instance.Tensor("int8", (held,), tik.scope_ubuf, "held")
    instance.fixpipe(out, dst, 1, 128, 0, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TikWarning)  # more than the planned part of the Unified Buffer
        instance.BuildCCE("full", [gm], [out])
    feeds = {"gm": values("float16", 1, 64, 16)}
    told = "needs 4096 bytes of UB for itself, but the live tensors leave 4064"
    if (held, strict) == (249888, True):
        with pytest.raises(TikMemoryError, match=told):
            run(instance, feeds)
    elif held == 258080:
        with pytest.warns(TikWarning, match=told):
            run(instance, feeds, Options())
    else:
        run(instance, feeds, Options(strict=strict))
