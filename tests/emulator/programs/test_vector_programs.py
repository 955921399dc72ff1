"""Vector instructions through the whole chain: recorded by the DSL, executed by ``tikemu.run``, against the naive
interpreter of the same program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tikemu
from tikemu import tik
from tikemu.errors import TikError, TikParamError

from tests.emulator.support import naive
from tests.emulator.support.vector_inputs import sample

SIZE = 2048


class Program:
    """Hold a kernel with two inputs, one output and scratch in the Unified Buffer."""

    def __init__(self, dtype: str, out: str = "") -> None:
        out = out or dtype
        self.tik = tik.Tik(disable_debug=False)
        self.dtype, self.size = dtype, np.dtype(dtype).itemsize
        self.x_gm, self.y_gm = (self.tik.Tensor(dtype, (SIZE,), tik.scope_gm, name) for name in ("x_gm", "y_gm"))
        self.out_gm = self.tik.Tensor(out, (SIZE,), tik.scope_gm, "out_gm")
        self.x, self.y = (self.tik.Tensor(dtype, (SIZE,), tik.scope_ubuf, name) for name in ("x", "y"))
        self.out = self.tik.Tensor(out, (SIZE,), tik.scope_ubuf, "out")
        for target, source in ((self.x, self.x_gm), (self.y, self.y_gm)):
            self.tik.data_move(target, source, 0, 1, SIZE * self.size // 32, 0, 0)
        lanes = 256 // np.dtype(out).itemsize
        self.tik.vec_dup(lanes, self.out, 1, SIZE // lanes, 8)
        self.lanes = 256 // self.size
        self.blocks = SIZE * np.dtype(out).itemsize // 32

    def run(self, strict: bool = True, seed: int = 0) -> None:
        """Execute with both, and compare bit for bit."""
        self.tik.data_move(self.out_gm, self.out, 0, 1, self.blocks, 0, 0)
        self.tik.BuildCCE("kernel", [self.x_gm, self.y_gm], [self.out_gm])
        rng = np.random.default_rng(seed)
        inputs = {"x_gm": sample(rng, self.dtype, SIZE), "y_gm": sample(rng, self.dtype, SIZE)}
        options = tikemu.Options(strict=strict, progress=False)
        result = tikemu.run(self.tik, inputs, options=options).outputs["out_gm"]
        expected = naive.run(self.tik._recorder.program, inputs)["out_gm"]
        assert (result.view(np.uint8) == expected.view(np.uint8)).all()


FLOATS = ("float16", "float32")


@pytest.fixture(autouse=True)
def _soc(soc: str) -> None:
    """Select Ascend910A."""


@pytest.mark.parametrize("dtype", FLOATS)
def test_element_wise_with_run_time_arguments(dtype: str) -> None:
    """Offsets, repeats, masks and scalars from loop variables and Scalars; repeats of 0 do nothing."""
    p = Program(dtype)
    scalar = p.tik.Scalar(dtype, "factor")
    scalar.set_as(p.y[3])
    with p.tik.for_range(0, 4) as i:
        p.tik.vec_add(p.lanes, p.out[i * 2 * p.lanes], p.x[i * p.lanes], p.y, 2, 8, 8, 0)
        p.tik.vec_muls(i + 1, p.out[i * p.lanes], p.x[i * p.lanes], scalar, i, 8, 8)
        p.tik.vec_max([0, (1 << 40) - 3], p.out, p.out, p.x[i * p.lanes], 1, 8, 8, 8)
    p.run()


@pytest.mark.parametrize("dtype", FLOATS)
def test_legacy_strides(dtype: str) -> None:
    p = Program(dtype)
    p.tik.vmla(p.lanes, p.out, p.x, p.y, 3, 1, 2, 0, 8, 16, 8)
    p.tik.vadd(
        p.lanes - 3, p.out, p.x, p.out, repeat=2, dst_blk=2, src0_blk=1, src1_blk=1, dst_rep=24, src0_rep=5, src1_rep=24
    )
    p.tik.vmadd(p.lanes, p.out[4 * p.lanes], p.x, p.y, 2, 1, 1, 1, 8, 8, 8)
    p.run(strict=False)


@pytest.mark.parametrize("legacy", [False, True])
def test_conversions(legacy: bool) -> None:
    p = Program("float32", "int32")
    arguments = (p.out, p.x, 9) + ((1, 1) if legacy else ()) + (8, 8)
    (p.tik.vconv if legacy else p.tik.vec_conv)(64, "floor", *arguments)
    p.tik.vec_conv(17, "to-zero", p.out[64], p.y, 2, 9, 3)
    p.run()


def test_half_conversion_and_axpy_of_mixed_types() -> None:
    p = Program("float16", "float32")
    p.tik.vec_conv(64, "", p.out, p.x, 20, 8, 4)
    p.tik.vec_axpy(64, p.out, p.y, 0.3, 20, 8, 4)
    p.run()


@pytest.mark.parametrize("dtype", FLOATS)
def test_select_by_comparison(dtype: str) -> None:
    p = Program(dtype)
    bits = p.tik.Tensor("uint16", (64,), tik.scope_ubuf, "bits")
    p.tik.vec_cmpv_gt(bits, p.x, p.y, 2, 8, 8)
    p.tik.vec_sel(p.lanes, 0, p.out, bits, p.x, p.y, 3, 8, 8, 8)
    mask = p.tik.vcmp_le(p.lanes - 1, p.x, p.y, 1, 1)
    p.tik.vsel(p.lanes, 0, p.out[3 * p.lanes], mask, p.x, p.y, 2, 1, 1, 1, 8, 8, 8)
    mask = p.tik.mov_tensor_to_cmpmask(bits)
    p.tik.vsel(p.lanes, 0, p.out[5 * p.lanes], mask, p.x, p.y, 1, 1, 1, 1, 8, 8, 8)
    p.run()


def test_reductions() -> None:
    p = Program("float16")
    work = p.tik.Tensor("float16", (256,), tik.scope_ubuf, "work")
    p.tik.vcadd(128, p.out, p.x, 5, 1, 1, 8)
    p.tik.vcmax(100, p.out[32], p.x, 5, 2, 1, 8)
    p.tik.vcgmin(128, p.out[64], p.y, 4, 1, 1, 8)
    p.tik.vcpadd(128, p.out[128], p.y, 2, 1, 1, 8)
    p.tik.vec_reduce_add(128, p.out[320], p.x, work, 16, 8)
    p.tik.vec_reduce_max(128, p.out[322], p.x, work, 16, 8, cal_index=True)
    p.run()


def test_transposes() -> None:
    p = Program("float16")
    p.tik.vec_trans(p.out, p.x, 3, 1, 2)
    p.tik.vtranspose(p.y, p.y)
    p.tik.vec_adds(128, p.out[1024], p.y, 0.0, 2, 8, 8)
    rows, columns = [p.x[128 * i] for i in range(16)], [p.out[1280 + 16 * i] for i in range(16)]
    p.tik.vnchwconv(False, False, columns, rows, 2, 16, 1)
    p.run()


def test_work_tensor_is_undefined_afterwards() -> None:
    """Strict mode: nothing may rest on what a high-precision instruction leaves in its scratch."""

    def kernel(read: bool) -> Program:
        p = Program("float32")
        work = p.tik.Tensor("float32", (256,), tik.scope_ubuf, "work")
        p.tik.vec_dup(64, work, 0.0, 4, 8)
        p.tik.vec_dup(64, p.x, 3.0, 2, 8)
        p.tik.vec_rec_high_preci(64, p.out, p.x, work[0:], 2, 8, 8)
        if read:
            p.tik.vec_adds(64, p.out, work, 0.0, 1, 8, 8)
        p.tik.data_move(p.out_gm, p.out, 0, 1, p.blocks, 0, 0)
        p.tik.BuildCCE("kernel", [p.x_gm, p.y_gm], [p.out_gm])
        return p

    inputs = {name: np.ones(SIZE, np.float32) for name in ("x_gm", "y_gm")}
    result = tikemu.run(kernel(False).tik, inputs, options=tikemu.Options(strict=True))
    assert (result.outputs["out_gm"][:128] == np.float32(1 / 3)).all()
    with pytest.raises(TikError, match="undefined bytes of tensor 'work'"):
        tikemu.run(kernel(True).tik, inputs, options=tikemu.Options(strict=True))


@pytest.mark.parametrize(
    ("call", "inputs"),
    [
        (lambda p: p.tik.vec_rec(64, p.out, p.x, 2, 8, 8), "rec"),
        (lambda p: p.tik.vec_rsqrt(64, p.out, p.x, 2, 8, 8), "rsqrt"),
        (lambda p: p.tik.vec_ln(64, p.out, p.x, 2, 8, 8), "ln"),
        (lambda p: p.tik.vdiv(64, p.out, p.y, p.x, 2, 1, 1, 1, 8, 8, 8), "div"),
    ],
    ids=["rec", "rsqrt", "ln", "div"],
)
def test_strict_mode_reports_unspecified_inputs(call: Callable[[Program], Any], inputs: str) -> None:
    """A zero in the last lane: an error in strict mode; the same without the zero, or outside the mask, passes."""
    values = np.linspace(1, 2, SIZE).astype(np.float32)
    spoiled = values.copy()
    spoiled[127] = 0.0

    def kernel() -> Any:
        p = Program("float32")
        call(p)
        p.tik.data_move(p.out_gm, p.out, 0, 1, p.blocks, 0, 0)
        p.tik.BuildCCE("kernel", [p.x_gm, p.y_gm], [p.out_gm])
        return p.tik

    strict = tikemu.Options(strict=True)
    tikemu.run(kernel(), {"x_gm": values, "y_gm": values}, options=strict)
    with pytest.raises(TikParamError, match="not specified"):
        tikemu.run(kernel(), {"x_gm": spoiled, "y_gm": values}, options=strict)
    largest = tikemu.run(kernel(), {"x_gm": spoiled, "y_gm": values}).outputs["out_gm"][127]
    assert abs(largest) == np.finfo(np.float32).max
