"""Complete operators of the Cube and of whole-tensor APIs, each with its NumPy meaning. See program.py."""

from __future__ import annotations

import numpy as np

from emulator.tests.support.cube_layout import to_nz
from emulator.tests.support.programs import vector_operators
from emulator.tests.support.programs.program import program, uniform


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
    a, b = uniform((m, k), seed=6), uniform((k, n), seed=7)
    c = a.astype(np.float64) @ b.astype(np.float64)
    feeds = {
        "a": a.reshape(m, k // 16, 16).transpose(1, 0, 2).copy(),
        "b": b.reshape(k, n // 16, 16).transpose(1, 0, 2).copy(),
    }
    return feeds, {"c": (c.reshape(m, n // 16, 16).transpose(1, 0, 2), 0.1)}


@program
def layer_norm_whole_tensor(tik, inst):
    """Record layer normalisation of (8, 128) float32 rows in the whole-tensor style (h_* calls)."""
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
    data = uniform((rows, columns), "float32", 13)
    centred = data.astype(np.float64) - data.mean(1, keepdims=True, dtype=np.float64)
    return {"x": data}, {"y": (centred / np.sqrt((centred**2).mean(1, keepdims=True)), 1e-4)}


@program
def matmul_with_fixpipe(tik, inst):
    """Record matmul into L1OUT, and fixpipe with conversion to float16 and relu."""
    m, k, n = 40, 64, 32
    left = inst.Tensor("float16", (k // 16, m, 16), name="left", scope=tik.scope_gm)
    right = inst.Tensor("float16", (k // 16, n, 16), name="right", scope=tik.scope_gm)  # transposed
    out = inst.Tensor("float16", (n // 16, m, 16), name="out", scope=tik.scope_gm)
    left_l1 = inst.Tensor("float16", (k // 16, 48, 16), name="left_l1", scope=tik.scope_cbuf)
    right_l1 = inst.Tensor("float16", (k // 16, n, 16), name="right_l1", scope=tik.scope_cbuf)
    held = inst.Tensor("float32", (n // 16, 48, 16), name="held", scope=tik.scope_cbuf_out)
    inst.data_move(left_l1, left, 0, k // 16, m, 0, 8)
    inst.data_move(right_l1, right, 0, 1, k // 16 * n, 0, 0)
    inst.matmul(held, left_l1, right_l1, m, k, n)
    conversion = {"quantize_params": {"mode": "fp322fp16", "mode_param": None}, "relu": True}
    inst.fixpipe(out, held, n // 16, m * 16 * 4 // 32, 0, 0, extend_params=conversion)
    inst.BuildCCE(kernel_name="matmul_with_fixpipe", inputs=[left, right], outputs=[out])
    x, w = uniform((m, k), seed=6), uniform((k, n), seed=7, low=-0.2, high=0.2)
    truth = np.maximum(x.astype(np.float64) @ w, 0)
    return {"left": to_nz(x), "right": to_nz(w.T)}, {"out": (to_nz(truth), 5e-3)}


@program
def whole_tensor_attention(tik, inst):
    """Compute one head of attention with matmul and the whole-tensor APIs. Rows stay in the fractal layout."""
    m, n, d = 32, 48, 32
    q = inst.Tensor("float16", (d // 16, m, 16), name="q", scope=tik.scope_gm)
    k = inst.Tensor("float16", (d // 16, n, 16), name="k", scope=tik.scope_gm)
    v = inst.Tensor("float16", (n // 16, d, 16), name="v", scope=tik.scope_gm)  # of the transposed value
    out = inst.Tensor("float16", (d // 16, m, 16), name="out", scope=tik.scope_gm)
    q_l1 = inst.Tensor("float16", (d // 16, m, 16), name="q_l1", scope=tik.scope_cbuf)
    k_l1 = inst.Tensor("float16", (d // 16, n, 16), name="k_l1", scope=tik.scope_cbuf)
    v_l1 = inst.Tensor("float16", (n // 16, d, 16), name="v_l1", scope=tik.scope_cbuf)
    p_l1 = inst.Tensor("float16", (n // 16, m, 16), name="p_l1", scope=tik.scope_cbuf)
    for target, source in ((q_l1, q), (k_l1, k), (v_l1, v)):
        inst.data_move(target, source, 0, 1, target.shape[0] * target.shape[1], 0, 0)
    scores_l0c = inst.Tensor("float32", (n // 16, m, 16), name="scores_l0c", scope=tik.scope_cc)
    inst.matmul(scores_l0c, q_l1, k_l1, m, d, n)
    scores = inst.Tensor("float32", (n // 16, m, 16), name="scores", scope=tik.scope_ubuf)
    inst.tensor_mov(scores, scores_l0c, "m", 1, m * n // 256, 0, 0)
    weights = inst.Tensor("float16", (n // 16, m, 16), name="weights", scope=tik.scope_ubuf)
    inst.h_mul(scores, scores, 0.125)
    inst.h_exp(scores, scores)
    partial, total = (inst.Tensor("float32", (m,), name=name, scope=tik.scope_ubuf) for name in ("partial", "total"))
    inst.h_duplicate(total, 0.0)
    for block in range(n // 16):
        column = inst.Tensor("float32", (m, 16), name=f"column_{block}", scope=tik.scope_ubuf)
        inst.h_data_move(column, scores[block, :, :])
        inst.h_reduce_sum(partial, column, 1)
        inst.h_add(total, total, partial)
    with inst.for_range(0, m) as row:
        one = inst.Scalar("float32", init_value=total[row])
        with inst.for_range(0, n // 16) as block:
            inst.h_div(scores[block, row, :], scores[block, row, :], one)
    inst.h_cast(weights, scores, "none")
    inst.data_move(p_l1, weights, 0, 1, m * n // 16, 0, 0)
    out_l0c = inst.Tensor("float32", (d // 16, m, 16), name="out_l0c", scope=tik.scope_cc)
    inst.matmul(out_l0c, p_l1, v_l1, m, n, d)
    result = inst.Tensor("float16", (d // 16, m, 16), name="result", scope=tik.scope_ubuf)
    inst.tensor_mov(result, out_l0c, "m", 1, m * d // 256, 0, 0)
    inst.data_move(out, result, 0, 1, m * d // 16, 0, 0)
    inst.BuildCCE(kernel_name="whole_tensor_attention", inputs=[q, k, v], outputs=[out])
    query, key, value = (uniform(shape, seed=seed) for seed, shape in enumerate(((m, d), (n, d), (n, d)), 10))
    p = np.exp(query.astype(np.float64) @ key.T.astype(np.float64) / 8)
    truth = p / p.sum(1, keepdims=True) @ value
    return {"q": to_nz(query), "k": to_nz(key), "v": to_nz(value.T)}, {"out": (to_nz(truth), 4e-3)}


#: All operators, Vector's too.
PROGRAMS = (
    *vector_operators.PROGRAMS,
    *(matmul_by_hand, layer_norm_whole_tensor, matmul_with_fixpipe, whole_tensor_attention),
)
