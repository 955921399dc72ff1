"""Whole TIK programs around the Cube: chained products, convolutions, moves and atomic addition between blocks."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import tikemu
from tikemu import (
    Options,
    TikBoundsError,
    TikMemoryError,
    TikParamError,
    TikSyncError,
    TikUndefinedError,
    TikUnsupportedError,
    TikWarning,
    tik,
)

from tests.emulator.isa.test_conv2d import direct_convolution
from tests.emulator.isa.test_load3d import window
from tests.emulator.support.composite_arrays import packed, unpacked, values
from tests.emulator.support.cube_layout import block_product, to_nz

pytestmark = pytest.mark.usefixtures("soc")
RNG = np.random.default_rng(29)
STRICT = Options(strict=True)


def run(instance: Any, feeds: dict, options: Options = STRICT) -> Any:
    """A run in strict mode, if nothing else is asked for."""
    return tikemu.run(instance, feeds, options=options)


# ---------------------------------------------------------------------------------------------------------- products
def product_program(m: int, k: int, n: int, left: str, right: str) -> Any:
    """C (n1, m, 16) = A B with the operand recipes of cube.md 4.1."""
    instance = tik.Tik(disable_debug=False)
    a_gm = instance.Tensor("float16", (m * k,), tik.scope_gm, "a")
    b_gm = instance.Tensor("float16", (k * n,), tik.scope_gm, "b")
    c_gm = instance.Tensor("float16", (n // 16, m, 16), tik.scope_gm, "c")
    a_l1 = instance.Tensor("float16", (m * k,), tik.scope_cbuf, "a_l1")
    b_l1 = instance.Tensor("float16", (k * n,), tik.scope_cbuf, "b_l1")
    l0a = instance.Tensor("float16", (m * k,), tik.scope_ca, "l0a")
    l0b = instance.Tensor("float16", (k * n,), tik.scope_cb, "l0b")
    l0c = instance.Tensor("float32", (n // 16, m, 16), tik.scope_cc, "l0c")
    ub = instance.Tensor("float16", (n // 16, m, 16), tik.scope_ubuf, "ub")
    instance.data_move(a_l1, a_gm, 0, 1, m * k // 16, 0, 0)
    instance.data_move(b_l1, b_gm, 0, 1, k * n // 16, 0, 0)
    if left == "A":
        with instance.for_range(0, m // 16) as i:
            instance.load2dv1(l0a[i * k * 16], a_l1[i * 256], 0, k // 16, m // 16, 0, False)
    else:
        instance.load2dv1(l0a, a_l1, 0, m * k // 256, 1, 0, True)
    if right == "B":
        with instance.for_range(0, k // 16) as i:
            instance.load2dv1(l0b[i * n * 16], b_l1[i * 256], 0, n // 16, k // 16, 0, True)
    else:
        instance.load2dv1(l0b, b_l1, 0, n * k // 256, 1, 0, False)
    instance.mmad(l0c, l0a, l0b, m, k, n, 0)
    instance.tensor_mov(ub, l0c, "m", 1, m * n // 256, 0, 0)
    instance.data_move(c_gm, ub, 0, 1, m * n // 16, 0, 0)
    instance.BuildCCE("product", [a_gm, b_gm], [c_gm])
    return instance


@pytest.mark.parametrize("m,k,n", [(64, 48, 32), (16, 128, 80)])
@pytest.mark.parametrize("left", ["A", "A transposed"])
@pytest.mark.parametrize("right", ["B", "B transposed"])
def test_operand_recipes(m, k, n, left, right):
    a, b = values("float16", m, k), values("float16", k, n)
    feeds = {"a": to_nz(a if left == "A" else a.T).reshape(-1), "b": to_nz(b if right == "B" else b.T).reshape(-1)}
    result = run(product_program(m, k, n, left, right), feeds)
    expected = block_product(a, b, np.zeros((m, n)), 16).astype(np.float16)
    np.testing.assert_array_max_ulp(unpacked(result.outputs["c"], m, n), expected, 1)
    assert result.cycles > 0


def test_k_slices_with_two_threads():
    """The accumulation loop of public programs: 16-deep slices, loads overlapped with products."""
    m, k, n = 48, 96, 64
    instance = tik.Tik(disable_debug=False)
    a_gm = instance.Tensor("float16", (k // 16, m, 16), tik.scope_gm, "a")
    b_gm = instance.Tensor("float16", (n // 16, k, 16), tik.scope_gm, "b")
    c_gm = instance.Tensor("float32", (n // 16, m, 16), tik.scope_gm, "c")
    a_l1 = instance.Tensor("float16", (k // 16, m, 16), tik.scope_cbuf, "a_l1")
    b_l1 = instance.Tensor("float16", (n // 16, k, 16), tik.scope_cbuf, "b_l1")
    l0c = instance.Tensor("float32", (n // 16, m, 16), tik.scope_cbuf_out, "l0c")
    ub = instance.Tensor("float32", (n // 16, m, 16), tik.scope_ubuf, "ub")
    instance.data_move(a_l1, a_gm, 0, 1, m * k // 16, 0, 0)
    instance.data_move(b_l1, b_gm, 0, 1, k * n // 16, 0, 0)
    with instance.for_range(0, k // 16, thread_num=2) as step:
        l0a = instance.Tensor("float16", (m, 16), tik.scope_ca, "l0a")
        l0b = instance.Tensor("float16", (n, 16), tik.scope_cb, "l0b")
        instance.load2dv1(l0a, a_l1[step * m * 16], 0, m // 16, 1, 0, False)
        instance.load2dv1(l0b, b_l1[step * 256], 0, n // 16, k // 16, 0, True)
        with instance.if_scope(step == 0):
            instance.mmad(l0c, l0a, l0b, m, 16, n, 0)
        with instance.else_scope():
            instance.mmad(l0c, l0a, l0b, m, 16, n, 1)
    instance.data_move(ub, l0c, 0, 1, m * n * 4 // 1024, 0, 0)
    instance.data_move(c_gm, ub, 0, 1, m * n // 8, 0, 0)
    instance.BuildCCE("slices", [a_gm, b_gm], [c_gm])
    a, b = values("float16", m, k), values("float16", k, n)
    result = run(instance, {"a": to_nz(a), "b": to_nz(b)})
    np.testing.assert_array_max_ulp(unpacked(result.outputs["c"], m, n), block_product(a, b, np.zeros((m, n)), 16), 1)
    assert result.instructions["mmad"].count == 6


def test_documented_matmul_and_fixpipe():
    """m, k, n = 30, 64, 160 in int8, cburst_num 10, burst_len 60 (cube.md 5)."""
    instance = tik.Tik(disable_debug=False)
    a_gm = instance.Tensor("int8", (2, 32, 32), tik.scope_gm, "a")
    b_gm = instance.Tensor("int8", (2, 160, 32), tik.scope_gm, "b")
    c_gm = instance.Tensor("int32", (10, 30, 16), tik.scope_gm, "c")
    a_l1 = instance.Tensor("int8", (2, 32, 32), tik.scope_cbuf, "a_l1")
    b_l1 = instance.Tensor("int8", (2, 160, 32), tik.scope_cbuf, "b_l1")
    dst = instance.Tensor("int32", (10, 32, 16), tik.scope_cbuf_out, "dst")
    instance.data_move(a_l1, a_gm, 0, 1, 64, 0, 0)
    instance.data_move(b_l1, b_gm, 0, 1, 320, 0, 0)
    instance.matmul(dst, a_l1, b_l1, 30, 64, 160)
    instance.fixpipe(c_gm, dst, 10, 60, 0, 0)
    instance.BuildCCE("documented", [a_gm, b_gm], [c_gm])
    a, b = RNG.integers(-128, 128, (30, 64)).astype(np.int8), RNG.integers(-128, 128, (64, 160)).astype(np.int8)
    result = run(instance, {"a": packed(a, 32), "b": packed(b.T, 32)})
    np.testing.assert_array_equal(unpacked(result.outputs["c"], 30, 160), a.astype(np.int64) @ b.astype(np.int64))


def test_convolution_to_global_memory():
    """conv2d and fixpipe with bias, conversion and relu."""
    fm, weight = values("float16", 2, 9, 10, 16), values("float16", 2, 3, 3, 32, 16)
    bias = RNG.standard_normal(32).astype(np.float32)
    howo = 5 * 10
    instance = tik.Tik(disable_debug=False)
    tensors = {}
    for name, data in (("fm", fm), ("weight", weight), ("bias", bias)):
        gm = instance.Tensor(data.dtype.name, data.shape, tik.scope_gm, name)
        tensors[name] = instance.Tensor(data.dtype.name, data.shape, tik.scope_cbuf, f"{name}_l1")
        instance.data_move(tensors[name], gm, 0, 1, data.nbytes // 32, 0, 0)
        tensors[f"{name}_gm"] = gm
    out = instance.Tensor("float16", (2, howo, 16), tik.scope_gm, "out")
    dst = instance.Tensor("float32", (2, 64, 16), tik.scope_cbuf_out, "dst")
    instance.conv2d(
        dst, tensors["fm"], tensors["weight"], [2, 9, 10, 16], [2, 3, 3, 32, 16], [2, 1], [1, 1, 1, 1], [1, 1], 0
    )
    instance.fixpipe(
        out,
        dst,
        2,
        howo * 16 * 4 // 32,
        0,
        0,
        {"bias": tensors["bias"], "quantize_params": {"mode": "fp322fp16", "mode_param": None}, "relu": True},
    )
    instance.BuildCCE("convolution", [tensors["fm_gm"], tensors["weight_gm"], tensors["bias_gm"]], [out])
    result = run(instance, {"fm": fm, "weight": weight, "bias": bias}).outputs["out"]
    expected = np.maximum(direct_convolution(fm, weight, [2, 1], [1, 1, 1, 1], [1, 1], 0) + bias.reshape(2, 1, 16), 0)
    np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-2)


def test_composites_are_refused_inside_disable_sync():
    instance = tik.Tik(disable_debug=False)
    a = instance.Tensor("float16", (1, 16, 16), tik.scope_cbuf, "a")
    dst = instance.Tensor("float32", (1, 16, 16), tik.scope_cc, "dst")
    instance.matmul(dst, a, a, 16, 16, 16)
    with pytest.raises(TikParamError, match="disable_sync"), instance.new_stmt_scope(disable_sync=True):
        instance.matmul(dst, a, a, 16, 16, 16)


# ------------------------------------------------------------------------------------------------------ run-time values
def move_program(kind: str) -> Any:
    """Copies with run-time counts: ``data_move(ub, gm, 0, nburst, burst, gap, 0)``."""
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
    """The pattern of the img2col programs: kernel point from the loop variable, straight to the Unified Buffer."""
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


# --------------------------------------------------------------------------------------------------- undefined padding
def padding_program(rows_used: int) -> Any:
    """An unaligned product whose padding rows reach a vector instruction if ``rows_used`` is more than 20."""
    instance = tik.Tik(disable_debug=False)
    a = instance.Tensor("float16", (1, 32, 16), tik.scope_gm, "a")
    b = instance.Tensor("float16", (1, 16, 16), tik.scope_gm, "b")
    c = instance.Tensor("float32", (20, 16), tik.scope_gm, "c")
    l1 = instance.Tensor("float16", (48, 16), tik.scope_cbuf, "l1")
    l0a = instance.Tensor("float16", (32, 16), tik.scope_ca, "l0a")
    l0b = instance.Tensor("float16", (16, 16), tik.scope_cb, "l0b")
    l0c = instance.Tensor("float32", (1, 32, 16), tik.scope_cc, "l0c")
    ub = instance.Tensor("float32", (32, 16), tik.scope_ubuf, "ub")
    instance.data_move(l1, a, 0, 1, 32, 0, 0)
    instance.data_move(l1[512], b, 0, 1, 16, 0, 0)
    instance.load2dv1(l0a, l1, 0, 2, 1, 0)
    instance.load2dv1(l0b, l1, 2, 1, 1, 0)
    instance.mmad(l0c, l0a, l0b, 20, 16, 16, 0)
    instance.data_move(ub, l0c, 0, 1, 2, 0, 0)
    instance.vec_muls(16, ub, ub, 1.0, rows_used, 2, 2)
    instance.data_move(c, ub, 0, 1, 40, 0, 0)
    instance.BuildCCE("padding", [a, b], [c])
    return instance


def test_padding_may_be_moved_but_not_used():
    feeds = {"a": values("float16", 1, 32, 16), "b": values("float16", 1, 16, 16)}
    expected = block_product(feeds["a"][0, :20], feeds["b"][0].T, np.zeros((20, 16)), 16)
    np.testing.assert_array_max_ulp(run(padding_program(20), feeds).outputs["c"], expected, 1)
    with pytest.raises(TikUndefinedError, match=r"vec_muls.*'ub'(.|\n)*instance.vec_muls"):
        run(padding_program(21), feeds)
    np.testing.assert_array_max_ulp(run(padding_program(32), feeds, Options()).outputs["c"], expected, 1)


# ---------------------------------------------------------------------------------------------------------- atomic add
def atomic_program(atomic: bool, dtype: str = "float32") -> Any:
    """Four blocks add their index + 1 to the same 64 numbers."""
    instance = tik.Tik(disable_debug=False)
    out = instance.Tensor(dtype, (64,), tik.scope_gm, "out", is_atomic_add=True)
    with instance.for_range(0, 4, block_num=4) as block:
        ub = instance.Tensor(dtype, (64,), tik.scope_ubuf, "ub")
        value = instance.Scalar("float32", init_value=0.0)
        value.set_as(block + 1)
        instance.vec_dup(64, ub, value if dtype == "float32" else 1.0, 1, 8)
        if atomic:
            instance.set_atomic_add(1)
        instance.data_move(out, ub, 0, 1, 8 if dtype == "float32" else 4, 0, 0)
        if atomic:
            instance.set_atomic_add(0)
    instance.BuildCCE("atomic", [], [out])
    return instance


def test_atomic_add_between_blocks():
    result = run(atomic_program(True), {})
    assert (result.outputs["out"] == 10).all()
    assert (run(atomic_program(False), {}, Options()).outputs["out"] == 4).all()
    with pytest.raises(TikSyncError):
        run(atomic_program(False), {})
    with pytest.raises(TikUnsupportedError, match="float32 only, got float16"):
        run(atomic_program(True, "float16"), {})


def test_atomic_add_may_be_switched_inside_a_loop():
    """The same statement executes with and without it."""
    instance = tik.Tik(disable_debug=False)
    out = instance.Tensor("float32", (8,), tik.scope_gm, "out")
    ub = instance.Tensor("float32", (8,), tik.scope_ubuf, "ub")
    instance.vec_dup(8, ub, 1.0, 1, 8)
    with instance.for_range(0, 5) as step:
        instance.data_move(out, ub, 0, 1, 1, 0, 0)
        with instance.if_scope(step == 1):
            instance.set_atomic_add(1)
    instance.BuildCCE("switch", [], [out])
    assert (run(instance, {}).outputs["out"] == 4).all()
    timed = tikemu.run(instance, {}, numerics=False)
    assert timed.cycles == run(instance, {}).cycles


# -------------------------------------------------------------------------------------------------- whole-tensor APIs
def test_softmax_over_rows_with_whole_tensor_calls():
    """Slices, repeated rows, reductions and casts as programs use them."""
    m, n = 24, 40
    instance = tik.Tik(disable_debug=False)
    src = instance.Tensor("float16", (m, 48), tik.scope_gm, "src")
    out = instance.Tensor("float16", (m, 48), tik.scope_gm, "out")
    s = instance.Tensor("float16", (m, 48), tik.scope_ubuf, "s")
    largest = instance.Tensor("float16", (m,), tik.scope_ubuf, "largest")
    total = instance.Tensor("float32", (m,), tik.scope_ubuf, "total")
    wide = instance.Tensor("float32", (m, 48), tik.scope_ubuf, "wide")
    instance.h_data_move(s, src)
    instance.h_reduce_max(largest, s[0:m, 0:n], 1)
    number = instance.Scalar("float16")
    with instance.for_range(0, m) as i:
        number.set_as(largest[i])
        instance.h_sub(s[i, :], s[i, :], number)
    instance.h_exp(s[0:m, 0:n], s[0:m, 0:n])
    instance.h_cast(wide, s, "none")
    instance.h_reduce_sum(total, wide[0:m, 0:n], 1)
    factor = instance.Scalar("float32")
    with instance.for_range(0, m) as i:
        factor.set_as(total[i])
        instance.h_div(wide[i, :], wide[i, :], factor)
    instance.h_cast(s, wide, "none")
    instance.h_data_move(out, s)
    instance.BuildCCE("softmax", [src], [out])
    x = values("float16", m, 48)
    result = run(instance, {"src": x}).outputs["out"][:, :n]
    exact = np.exp(x[:, :n].astype(np.float64) - x[:, :n].max(axis=1, keepdims=True))
    np.testing.assert_allclose(result, exact / exact.sum(axis=1, keepdims=True), rtol=4e-3, atol=1e-4)


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


@pytest.mark.parametrize("held,strict", [(200000, True), (253000, True), (253000, False), (261000, False)])
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
    if held == 253000 and strict:
        with pytest.raises(TikMemoryError, match="needs 4096 bytes of UB for itself"):
            run(instance, feeds)
    elif held == 261000:
        with pytest.warns(TikWarning, match="needs 4096 bytes of UB for itself"):
            run(instance, feeds, Options())
    else:
        run(instance, feeds, Options(strict=strict))
