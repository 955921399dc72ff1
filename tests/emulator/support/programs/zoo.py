"""Complete operators in the usual styles of TIK programs, each with its NumPy meaning.

Every builder builds one program (`disable_debug=False`) and returns ``(tik_instance, feeds, expected)``; ``expected``
maps output names to ``(array, absolute tolerance)``. They only use what a TIK author has: the public API and its
documents.
"""

from __future__ import annotations

import numpy as np

from tests.emulator.support.programs.program import program


def _random(shape, dtype="float16", seed=0, low=-4.0, high=4.0):
    """Return uniform random elements from a seed."""
    generator = np.random.default_rng(seed)
    return generator.uniform(low, high, shape).astype(dtype)


@program
def add_multi_core(tik, inst):
    """Compute c = a + b on 8 cores, double buffered, with a short tail."""
    cores, length = 8, 8 * 3 * 1000
    per_core, chunk = length // cores, 1000
    a, b, c = (inst.Tensor("float16", (length,), name=name, scope=tik.scope_gm) for name in "abc")
    with inst.for_range(0, cores, block_num=cores) as core, inst.for_range(0, per_core // chunk, thread_num=2) as step:
        a_ub, b_ub = (inst.Tensor("float16", (1024,), name=name, scope=tik.scope_ubuf) for name in ("a_ub", "b_ub"))
        offset = core * per_core + step * chunk
        bursts = chunk * 2 // 32 + 1
        with inst.if_scope(tik.all(core == cores - 1, step == per_core // chunk - 1)):
            # 1000 halves are 62.5 blocks: the last chunk rolls back so that it ends with the tensor
            back = bursts * 16 - chunk
            inst.data_move(a_ub, a[offset - back], 0, 1, bursts, 0, 0)
            inst.data_move(b_ub, b[offset - back], 0, 1, bursts, 0, 0)
            inst.vec_add(128, a_ub, a_ub, b_ub, 7, 8, 8, 8)
            inst.vec_add(112, a_ub[896], a_ub[896], b_ub[896], 1, 8, 8, 8)
            inst.data_move(c[offset - back], a_ub, 0, 1, bursts, 0, 0)
        with inst.else_scope():
            inst.data_move(a_ub, a[offset], 0, 1, bursts, 0, 0)
            inst.data_move(b_ub, b[offset], 0, 1, bursts, 0, 0)
            inst.vec_add(128, a_ub, a_ub, b_ub, 7, 8, 8, 8)
            inst.vec_add(112, a_ub[896], a_ub[896], b_ub[896], 1, 8, 8, 8)
            inst.data_move(c[offset], a_ub, 0, 1, bursts, 0, 0)
    inst.BuildCCE(kernel_name="add_multi_core", inputs=[a, b], outputs=[c])
    x, y = _random(length, seed=1), _random(length, seed=2)
    return {"a": x, "b": y}, {"c": (x + y, 0)}


def tiled_by_scalars():
    """Compute y = max(x, 0) * 2 with sizes from a tiling tensor (dynamic-shape style)."""
    from te import tik

    inst = tik.Tik(tik.Dprofile(), False)
    most = 4096
    x = inst.Tensor("float32", (most,), name="x", scope=tik.scope_gm)
    tiling = inst.Tensor("int32", (8,), name="tiling", scope=tik.scope_gm)
    y = inst.Tensor("float32", (most,), name="y", scope=tik.scope_gm)
    tiling_ub = inst.Tensor("int32", (8,), name="tiling_ub", scope=tik.scope_ubuf)
    inst.data_move(tiling_ub, tiling, 0, 1, 1, 0, 0)
    count = inst.Scalar("int32", name="count")
    tile = inst.Scalar("int32", name="tile", init_value=tiling_ub[1])
    count.set_as(tiling_ub[0])
    with inst.for_range(0, count // tile) as i:
        ub = inst.Tensor("float32", (1024,), name="ub", scope=tik.scope_ubuf)
        inst.data_move(ub, x[i * tile], 0, 1, tile // 8, 0, 0)
        inst.vmuls(64, ub, ub, 2.0, tile // 64, 1, 1, 8, 8)
        zero = inst.Tensor("float32", (64,), name="zero", scope=tik.scope_ubuf)
        inst.vector_dup(64, zero, 0, 1, 1, 8)
        inst.vmax(64, ub, ub, zero, tile // 64, 1, 1, 1, 8, 8, 0)
        inst.data_move(y[i * tile], ub, 0, 1, tile // 8, 0, 0)
    inst.BuildCCE(kernel_name="tiled_by_scalars", inputs=[x, tiling], outputs=[y])
    data = _random(most, "float32", 3)
    sizes = np.array([4096, 512, 0, 0, 0, 0, 0, 0], np.int32)
    return inst, {"x": data, "tiling": sizes}, {"y": (np.maximum(data * 2, 0), 0)}


@program
def softmax_rows(tik, inst):
    """Return row softmax of (rows, 128) float16 in float32 arithmetic."""
    rows, columns = 24, 128
    x, y = (inst.Tensor("float16", (rows, columns), name=name, scope=tik.scope_gm) for name in "xy")
    with inst.for_range(0, rows, block_num=rows) as row:
        half = inst.Tensor("float16", (columns,), name="half", scope=tik.scope_ubuf)
        wide = inst.Tensor("float32", (columns,), name="wide", scope=tik.scope_ubuf)
        stat = inst.Tensor("float16", (16,), name="stat", scope=tik.scope_ubuf)
        total, work = (inst.Tensor("float32", (8,), name=name, scope=tik.scope_ubuf) for name in ("total", "work"))
        inst.data_move(half, x[row, 0], 0, 1, columns // 16, 0, 0)
        inst.vcmax(128, stat, half, 1, 1, 1, 8)
        largest = inst.Scalar("float16", init_value=stat[0])
        wide_max = inst.Scalar("float32")
        inst.scalar_conv("", wide_max, largest)
        inst.vec_conv(64, "", wide, half, 2, 8, 4)
        negative = inst.Scalar("float32")
        negative.set_as(0 - wide_max)
        inst.vec_adds(64, wide, wide, negative, 2, 8, 8)
        inst.vec_exp(64, wide, wide, 2, 8, 8)
        inst.vec_reduce_add(64, total, wide, work, 2, 8)
        denominator = inst.Scalar("float32", init_value=total[0])
        inverse = inst.Tensor("float32", (64,), name="inverse", scope=tik.scope_ubuf)
        inst.vec_dup(64, inverse, denominator, 1, 8)
        inst.vdiv(64, wide, wide, inverse, 2, 1, 1, 1, 8, 8, 0)
        inst.vec_conv(64, "", half, wide, 2, 4, 8)
        inst.data_move(y[row * columns], half, 0, 1, columns // 16, 0, 0)
    inst.BuildCCE(kernel_name="softmax_rows", inputs=[x], outputs=[y])
    data = _random((rows, columns), seed=4)
    shifted = np.exp(data.astype(np.float64) - data.max(1, keepdims=True))
    return {"x": data}, {"y": (shifted / shifted.sum(1, keepdims=True), 1e-3)}


@program
def matmul_fixpipe(tik, inst):
    """Return the worked example of the matmul page: (30, 64) x (64, 160) int8 -> int32."""
    m, k, n = 30, 64, 160
    a_gm = inst.Tensor("int8", (k // 32, 32, 32), name="a", scope=tik.scope_gm)
    b_gm = inst.Tensor("int8", (k // 32, n, 32), name="b", scope=tik.scope_gm)
    c_gm = inst.Tensor("int32", (n // 16, m, 16), name="c", scope=tik.scope_gm)
    a_l1 = inst.Tensor("int8", (k // 32, 32, 32), name="a_l1", scope=tik.scope_cbuf)
    b_l1 = inst.Tensor("int8", (k // 32, n, 32), name="b_l1", scope=tik.scope_cbuf)
    c_out = inst.Tensor("int32", (n // 16, 32, 16), name="c_out", scope=tik.scope_cbuf_out)
    inst.data_move(a_l1, a_gm, 0, 1, k * 32 // 32, 0, 0)
    inst.data_move(b_l1, b_gm, 0, 1, k * n // 32, 0, 0)
    inst.matmul(c_out, a_l1, b_l1, m, k, n)
    inst.fixpipe(c_gm, c_out, n // 16, m * 16 * 4 // 32, 0, 0)
    inst.BuildCCE(kernel_name="matmul_fixpipe", inputs=[a_gm, b_gm], outputs=[c_gm])
    generator = np.random.default_rng(5)
    a = generator.integers(-128, 128, (32, k)).astype(np.int8)
    b = generator.integers(-128, 128, (k, n)).astype(np.int8)
    c = a[:m].astype(np.int64) @ b.astype(np.int64)
    feeds = {
        "a": a.reshape(32, k // 32, 32).transpose(1, 0, 2).copy(),
        "b": b.T.reshape(n, k // 32, 32).transpose(1, 0, 2).copy(),
    }
    return feeds, {"c": (c.reshape(m, n // 16, 16).transpose(1, 0, 2), 0)}


@program
def matmul_by_hand(tik, inst):
    """Multiply matrices with load2dv1, mmad and tensor_mov, the K loop double buffered."""
    m, k, n = 96, 64, 80
    a_gm = inst.Tensor("float16", (k // 16, m, 16), name="a", scope=tik.scope_gm)
    b_gm = inst.Tensor("float16", (n // 16, k, 16), name="b", scope=tik.scope_gm)
    c_gm = inst.Tensor("float16", (n // 16, m, 16), name="c", scope=tik.scope_gm)
    a_l1 = inst.Tensor("float16", (k // 16, m, 16), name="a_l1", scope=tik.scope_cbuf)
    b_l1 = inst.Tensor("float16", (n // 16, k, 16), name="b_l1", scope=tik.scope_cbuf)
    c_l0 = inst.Tensor("float32", (n // 16, m, 16), name="c_l0", scope=tik.scope_cc)
    c_ub = inst.Tensor("float16", (n // 16, m, 16), name="c_ub", scope=tik.scope_ubuf)
    inst.data_move(a_l1, a_gm, 0, 1, m * k // 16, 0, 0)
    inst.data_move(b_l1, b_gm, 0, 1, n * k // 16, 0, 0)
    with inst.for_range(0, k // 16, thread_num=2) as slice_k:
        a_l0 = inst.Tensor("float16", (m // 16, 1, 16, 16), name="a_l0", scope=tik.scope_ca)
        b_l0 = inst.Tensor("float16", (1, n // 16, 16, 16), name="b_l0", scope=tik.scope_cb)
        inst.load2dv1(a_l0, a_l1[slice_k * m * 16], 0, m // 16, 1, 0, False)
        inst.load2dv1(b_l0, b_l1[slice_k * 256], 0, n // 16, k // 16, 0, True)
        with inst.if_scope(slice_k == 0):
            inst.mmad(c_l0, a_l0, b_l0, m, 16, n, 0)
        with inst.else_scope():
            inst.mmad(c_l0, a_l0, b_l0, m, 16, n, 1)
    inst.tensor_mov(c_ub, c_l0, "m", 1, m * n * 4 // 1024, 0, 0)
    inst.data_move(c_gm, c_ub, 0, 1, m * n * 2 // 32, 0, 0)
    inst.BuildCCE(kernel_name="matmul_by_hand", inputs=[a_gm, b_gm], outputs=[c_gm])
    a, b = _random((m, k), seed=6), _random((k, n), seed=7)
    c = a.astype(np.float64) @ b.astype(np.float64)
    feeds = {
        "a": a.reshape(m, k // 16, 16).transpose(1, 0, 2).copy(),
        "b": b.reshape(k, n // 16, 16).transpose(1, 0, 2).copy(),
    }
    return feeds, {"c": (c.reshape(m, n // 16, 16).transpose(1, 0, 2), 0.1)}


@program
def column_sums_atomic(tik, inst):
    """Sum over rows, every core adding its share to the output atomically."""
    cores, rows, columns = 4, 6, 192
    x = inst.Tensor("float32", (cores * rows, columns), name="x", scope=tik.scope_gm)
    y = inst.Tensor("float32", (columns,), name="y", scope=tik.scope_gm, is_atomic_add=True)
    with inst.for_range(0, cores, block_num=cores) as core:
        row_ub = inst.Tensor("float32", (rows, columns), name="row_ub", scope=tik.scope_ubuf)
        inst.data_move(row_ub, x[core * rows, 0], 0, rows, columns // 8, 0, 0)
        total = inst.Tensor("float32", (columns,), name="total", scope=tik.scope_ubuf)
        inst.vec_dup(64, total, 0, columns // 64, 8)
        with inst.for_range(0, rows) as r:
            inst.vec_add(64, total, total, row_ub[r, 0], columns // 64, 8, 8, 8)
        inst.set_atomic_add(1)
        inst.data_move(y, total, 0, 1, columns // 8, 0, 0)
        inst.set_atomic_add(0)
    inst.BuildCCE(kernel_name="column_sums_atomic", inputs=[x], outputs=[y])
    data = np.random.default_rng(8).integers(-8, 8, (cores * rows, columns)).astype(np.float32)
    return {"x": data}, {"y": (data.sum(0), 0)}


@program
def transpose_nchw(tik, inst):
    """Return (16, 64) -> (64, 16) by vnchwconv, and 16x16 blocks by vec_trans."""
    x = inst.Tensor("float16", (16, 64), name="x", scope=tik.scope_gm)
    y = inst.Tensor("float16", (64, 16), name="y", scope=tik.scope_gm)
    z = inst.Tensor("float16", (4, 16, 16), name="z", scope=tik.scope_gm)
    x_ub = inst.Tensor("float16", (16, 64), name="x_ub", scope=tik.scope_ubuf)
    y_ub = inst.Tensor("float16", (64, 16), name="y_ub", scope=tik.scope_ubuf)
    z_ub = inst.Tensor("float16", (4, 16, 16), name="z_ub", scope=tik.scope_ubuf)
    inst.data_move(x_ub, x, 0, 1, 64, 0, 0)
    inst.vnchwconv(False, False, [y_ub[16 * i] for i in range(16)], [x_ub[64 * i] for i in range(16)], 4, 16, 1)
    inst.data_move(y, y_ub, 0, 1, 64, 0, 0)
    inst.vec_trans(z_ub, y_ub, 4, 1, 1)
    inst.data_move(z, z_ub, 0, 1, 64, 0, 0)
    inst.BuildCCE(kernel_name="transpose_nchw", inputs=[x], outputs=[y, z])
    data = _random((16, 64), seed=9)
    blocks = data.T.reshape(4, 16, 16).transpose(0, 2, 1)
    return {"x": data}, {"y": (data.T, 0), "z": (blocks, 0)}


@program
def select_and_compare(tik, inst):
    """Return clip-like select: where(x > y, x, 0) with a compare mask, and the mask's bits through UB."""
    x, y, out = (inst.Tensor("float16", (256,), name=name, scope=tik.scope_gm) for name in ("x", "y", "out"))
    bits = inst.Tensor("uint16", (16,), name="bits", scope=tik.scope_gm)
    x_ub, y_ub = (inst.Tensor("float16", (256,), name=name, scope=tik.scope_ubuf) for name in ("x_ub", "y_ub"))
    zero = inst.Tensor("float16", (128,), name="zero", scope=tik.scope_ubuf)
    bits_ub = inst.Tensor("uint16", (16,), name="bits_ub", scope=tik.scope_ubuf)
    inst.data_move(x_ub, x, 0, 1, 16, 0, 0)
    inst.data_move(y_ub, y, 0, 1, 16, 0, 0)
    inst.vec_dup(128, zero, 0.0, 1, 8)
    inst.vec_cmpv_gt(bits_ub, x_ub, y_ub, 2, 8, 8)
    with inst.for_range(0, 2) as i:
        mask = inst.vcmp_gt(128, x_ub[i * 128], y_ub[i * 128], 1, 1)
        inst.vsel(128, 0, x_ub[i * 128], mask, x_ub[i * 128], zero, 1, 1, 1, 1, 8, 8, 8)
    inst.data_move(out, x_ub, 0, 1, 16, 0, 0)
    inst.data_move(bits, bits_ub, 0, 1, 1, 0, 0)
    inst.BuildCCE(kernel_name="select_and_compare", inputs=[x, y], outputs=[out, bits])
    a, b = _random(256, seed=10), _random(256, seed=11)
    packed = np.packbits(a > b, bitorder="little").view(np.uint16)
    return {"x": a, "y": b}, {"out": (np.where(a > b, a, 0), 0), "bits": (packed, 0)}


@program
def top_scores(tik, inst):
    """Sort 64 scores, descending, through proposals: vconcat, vrpsort16, vmrgsort4, vextract."""
    count = 64
    x, y = (inst.Tensor("float16", (count,), name=name, scope=tik.scope_gm) for name in "xy")
    x_ub = inst.Tensor("float16", (count,), name="x_ub", scope=tik.scope_ubuf)
    rows, merged = (inst.Tensor("float16", (count, 8), name=name, scope=tik.scope_ubuf) for name in ("rows", "merged"))
    inst.vec_dup(128, rows, 0, 4, 8)
    inst.vec_dup(128, merged, 0, 4, 8)
    inst.data_move(x_ub, x, 0, 1, count // 16, 0, 0)
    inst.vconcat(rows, x_ub, count // 16, 4)
    inst.vrpsort16(merged, rows, count // 16)
    inst.vmrgsort4(rows, [merged[0], merged[16 * 8], merged[32 * 8], merged[48 * 8]], [16, 16, 16, 16], False, 15, 1)
    inst.vextract(x_ub, rows, count // 16, 4)
    inst.data_move(y, x_ub, 0, 1, count // 16, 0, 0)
    inst.BuildCCE(kernel_name="top_scores", inputs=[x], outputs=[y])
    data = _random(count, seed=12)
    return {"x": data}, {"y": (np.sort(data)[::-1], 0)}


@program
def layer_norm_whole_tensor(tik, inst):
    """Return layer normalisation of (8, 128) float32 rows in the whole-tensor style (h_* calls)."""
    rows, columns = 8, 128
    x, y = (inst.Tensor("float32", (rows, columns), name=name, scope=tik.scope_gm) for name in "xy")
    ub = inst.Tensor("float32", (rows, columns), name="ub", scope=tik.scope_ubuf)
    squared = inst.Tensor("float32", (rows, columns), name="squared", scope=tik.scope_ubuf)
    sums = inst.Tensor("float32", (rows,), name="sums", scope=tik.scope_ubuf)
    inst.data_move(ub, x, 0, 1, rows * columns // 8, 0, 0)
    inst.h_reduce_sum(sums, ub, 1)
    inst.h_mul(sums, sums, 1.0 / columns)
    with inst.for_range(0, rows) as r:
        mean = inst.Scalar("float32", init_value=sums[r])
        inst.h_sub(ub[r, :], ub[r, :], mean)
    inst.h_mul(squared, ub, ub)
    inst.h_reduce_sum(sums, squared, 1)
    inst.h_mul(sums, sums, 1.0 / columns)
    with inst.for_range(0, rows) as r:
        variance = inst.Scalar("float32", init_value=sums[r])
        deviation = inst.Scalar("float32")
        inst.scalar_sqrt(deviation, variance)
        inst.h_div(ub[r, :], ub[r, :], deviation)
    inst.data_move(y, ub, 0, 1, rows * columns // 8, 0, 0)
    inst.BuildCCE(kernel_name="layer_norm_whole_tensor", inputs=[x], outputs=[y])
    data = _random((rows, columns), "float32", 13)
    centred = data.astype(np.float64) - data.mean(1, keepdims=True, dtype=np.float64)
    return {"x": data}, {"y": (centred / np.sqrt((centred**2).mean(1, keepdims=True)), 1e-4)}


@program
def search_with_break(tik, inst):
    """Find the first index whose value reaches a threshold given as an InputScalar."""
    count = 64
    x = inst.Tensor("int32", (count,), name="x", scope=tik.scope_gm)
    threshold = inst.InputScalar(dtype="int32", name="threshold")
    y = inst.Tensor("int32", (8,), name="y", scope=tik.scope_gm)
    x_ub = inst.Tensor("int32", (count,), name="x_ub", scope=tik.scope_ubuf)
    y_ub = inst.Tensor("int32", (8,), name="y_ub", scope=tik.scope_ubuf)
    inst.data_move(x_ub, x, 0, 1, count // 8, 0, 0)
    inst.vec_dup(8, y_ub, -1, 1, 8)
    value = inst.Scalar("int32", name="value", init_value=0)
    steps = inst.Scalar("int32", name="steps", init_value=0)
    with inst.for_range(0, count) as i:
        value.set_as(x_ub[i])
        steps.set_as(steps + 1)
        with inst.if_scope(value >= threshold):
            y_ub[0].set_as(i)
            inst.tik_break()
    y_ub[1].set_as(steps)
    with inst.if_scope(tik.any(steps > 100, tik.negate(steps < 10))):
        y_ub[2] = 7
    with inst.elif_scope(steps % 2 == 0):
        y_ub[2] = 8
    with inst.else_scope():
        y_ub[2] = 9
    inst.data_move(y, y_ub, 0, 1, 1, 0, 0)
    inst.BuildCCE(kernel_name="search_with_break", inputs=[x, threshold], outputs=[y])
    data = np.arange(count, dtype=np.int32) * 3
    return {"x": data, "threshold": 40}, {"y": (np.array([14, 15, 7, -1, -1, -1, -1, -1], np.int32), 0)}


PROGRAMS = (
    add_multi_core,
    tiled_by_scalars,
    softmax_rows,
    matmul_fixpipe,
    matmul_by_hand,
    column_sums_atomic,
    transpose_nchw,
    select_and_compare,
    top_scores,
    layer_norm_whole_tensor,
    search_with_break,
)
